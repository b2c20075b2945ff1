"""Fleets that nobody owns, written as traces."""
