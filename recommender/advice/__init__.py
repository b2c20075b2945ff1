"""The kinds of advice, listed in `register`."""
