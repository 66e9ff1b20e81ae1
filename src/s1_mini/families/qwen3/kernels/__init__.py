"""Kernels that only Qwen3-TTS uses: sampling, and a whole frame for CPUs."""
