"""Triton kernels for what lies between matrix products; imported only where Triton and a GPU are."""
