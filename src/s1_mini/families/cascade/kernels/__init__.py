"""Kernels of the cascade."""
