"""Talks to sockets for all rooms: HTTP, TLS, tokens, Prometheus, Kubernetes."""
