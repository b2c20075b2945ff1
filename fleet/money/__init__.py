"""What cards cost, and whose cost it is: one price book, asked per card and hour, and everything summed from it.

Exact `Decimal` amounts and integer millionths of card hours; no file, clock or environment. The recommender, the
enforcer, the dashboards and the command line share it; the node exporter does not load it.
"""
