"""Inference components: several models on the same instances, each with its own copies, down to none."""
