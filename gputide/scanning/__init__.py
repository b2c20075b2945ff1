"""The first answer from an existing Prometheus."""
