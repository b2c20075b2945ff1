"""The card hours of each day: what was measured in them, which were idle, whose part is how large, at what price."""
