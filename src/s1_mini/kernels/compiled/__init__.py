"""CPU kernels compiled by numba. With torch, overhead would take most of the time of these many small operations.

The order of a row's sums does not depend on the number of rows. No module in this package imports torch.
"""
