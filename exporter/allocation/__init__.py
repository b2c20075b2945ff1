"""The scheduler layer: what a cluster granted, read from the Kubernetes API."""
