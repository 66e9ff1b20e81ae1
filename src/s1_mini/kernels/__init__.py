"""Fused operations: each a function that uses Triton where it can, and torch elsewhere."""
