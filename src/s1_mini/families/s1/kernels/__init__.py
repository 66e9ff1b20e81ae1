"""Kernels that only S1 uses: sampling with its repetition penalty, and a whole frame for CPUs."""
