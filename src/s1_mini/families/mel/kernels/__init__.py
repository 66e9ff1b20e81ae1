"""What only mel models compute with kernels of their own."""
