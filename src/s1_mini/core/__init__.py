"""Scheduling: decides which request does what next. It does not import torch."""
