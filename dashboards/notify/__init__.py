"""Messages to people: what is sent, to whom, how often, and in which service's format."""
