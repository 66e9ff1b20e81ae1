"""Kernels for a CPU, compiled by numba, because torch's overhead dominates many small operations.

The order of a row's sums does not depend on the number of rows. No module here imports torch.
"""
