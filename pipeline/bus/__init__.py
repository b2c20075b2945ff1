"""Carries records from the receiver to the rollup: as files, or through Kafka."""
