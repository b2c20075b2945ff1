"""The verbs of the command line, each a thin layer over the rooms."""
