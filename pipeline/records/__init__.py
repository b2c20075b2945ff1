"""What travels over the bus: samples as wide rows, as bytes and as JSON."""
