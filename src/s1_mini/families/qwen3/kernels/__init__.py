"""Kernels of Qwen3-TTS alone: sampling."""
