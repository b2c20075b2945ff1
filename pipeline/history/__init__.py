"""Reads the history that others keep already, for `gputide scan`: from queries to the rows of our warehouse."""
