"""Kernels of S1 alone: embedding, sampling and storing the tokens of a position."""
