"""How each GPU-sharing system writes grants, cards and device ids as text: one grammar per file."""
