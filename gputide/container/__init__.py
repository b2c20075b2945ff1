"""Turns settings into adapters: what opens bus, warehouse, cluster and the rest, each in the module of its name."""
