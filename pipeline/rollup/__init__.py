"""Makes additive rows of what is on the bus: embedded, or as a Flink job."""
