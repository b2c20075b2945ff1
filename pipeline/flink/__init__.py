"""The Flink job: what it is given, its process, and what it publishes; the job itself is in `java`."""
