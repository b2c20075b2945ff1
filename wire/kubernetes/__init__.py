"""The API server: connections, credentials, lists and watches."""
