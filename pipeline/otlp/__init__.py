"""OpenTelemetry's protocol: bodies of metrics into the columns of remote write, and what a sender is answered."""
