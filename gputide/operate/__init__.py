"""Operates an installation: engines on this machine, backups."""
