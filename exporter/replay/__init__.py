"""Plays a trace as if it ran now, with pods where a plan has put them."""
