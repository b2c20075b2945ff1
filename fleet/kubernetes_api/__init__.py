"""How a Kubernetes API server is spoken to, over the standard library: read and written by."""
