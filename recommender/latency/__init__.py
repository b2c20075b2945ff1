"""How much longer the slowest requests take on a shared card, and who must be spared it."""
