"""Reads GPU counters, by node, and publishes them as metrics and recorded traces."""
