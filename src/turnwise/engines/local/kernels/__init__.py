"""Triton kernels for the operations between matrix products; imported only where Triton and a GPU are present."""
