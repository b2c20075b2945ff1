"""Decodes and encodes remote-write bodies, and knows every series that was seen."""
