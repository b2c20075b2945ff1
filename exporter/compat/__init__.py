"""Readings under the names of other exporters."""
