"""What to do when a card overloads at run time: rules only, nothing is done here.

The enforcer, which relieves real cards, and the simulator, which says beforehand what relief is worth, decide by the
same modules: `rules` (the limits), `overload` (when a card is overloaded), `pace` (when a move is due), `moves` (what
earlier moves forbid) and `choice` (which pod leaves, and where to). `rules` is imported by the settings, so it has no
numpy; the others do.
"""
