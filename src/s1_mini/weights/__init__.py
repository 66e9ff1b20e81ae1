"""Tensor files: reading them safely, writing them, fitting them into modules strictly. Knows no family's names."""
