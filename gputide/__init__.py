"""The command line, the settings and the composition of the rooms into one product."""
