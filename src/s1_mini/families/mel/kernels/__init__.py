"""Kernels of mel models."""
