"""Relief: what is done within seconds when a card overloads at run time, and how everybody comes home again."""
