"""Carries samples from the exporters to the rollups and the warehouse."""
