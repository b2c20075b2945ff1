"""The provider's bill: read from files in FOCUS, and kept as far as it concerns known nodes."""
