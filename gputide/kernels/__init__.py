"""Kernels compiled beforehand: what compiles them, and where numba finds them in an image."""
