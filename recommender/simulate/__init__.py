"""Plays policies on a fleet's history."""
