"""Plays recorded fleets: through the pipeline, or straight into histories."""
