"""Fused tensor functions, each with a Triton kernel and an equivalent in torch for devices without Triton."""
