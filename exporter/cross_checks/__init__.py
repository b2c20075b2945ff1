"""Counters held against each other, reading by reading."""
