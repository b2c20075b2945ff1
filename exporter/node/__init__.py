"""One node: its cards joined with the pods that were granted them."""
