"""Triton kernels, one module per operation; imported only when a kernel is launched."""
