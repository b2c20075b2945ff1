"""HAMi's shared regions: found, read while they are written, and believed only where they hold together."""
