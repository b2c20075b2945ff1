"""Applies accepted recommendations to a cluster, within guards, and can undo them."""
