"""Tensor files: read them safely, write them, and fit tensors into modules strictly. Independent of families."""
