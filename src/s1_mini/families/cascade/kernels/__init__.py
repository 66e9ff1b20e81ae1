"""Kernels that only the cascade has."""
