"""The real API server behind the enforcer's ports."""
