"""What a node's GPU sharing really enforces, measured from inside a container that it limits."""
