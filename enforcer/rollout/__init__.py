"""Applies a plan step by step and takes it back: what is written, in which order, watched how."""
