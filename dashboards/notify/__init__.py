"""Messages to people: what is told, to whom, how often, and in which service's format."""
