"""Records turned into what pages, tables and reports show: pure functions."""
