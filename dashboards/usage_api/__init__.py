"""The API `usage.gputide.io`, which the Kubernetes API server serves as its own (API aggregation)."""
