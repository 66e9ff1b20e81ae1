"""Kernels of S1 alone: embedding, storing and sampling a column of tokens."""
