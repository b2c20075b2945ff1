"""The Flink job: its SQL, its process, and what it publishes."""
