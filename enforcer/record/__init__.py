"""What was planned, for which cluster, and what was done about it, kept so that it can be proved and undone."""
