"""Fused operations: functions that use Triton if possible, and torch otherwise."""
