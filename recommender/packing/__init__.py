"""Pods onto as few cards as harm allows: greedily, exactly, and the bounds that prove how good a packing is."""
