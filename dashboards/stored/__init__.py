"""Answers the pages' questions from the data folder: one module per port of `dashboards.queries`."""
