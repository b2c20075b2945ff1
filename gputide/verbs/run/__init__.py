"""`gputide run`: everything that runs as a process of its own."""
