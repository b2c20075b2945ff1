"""What each GPU-sharing backend enforces: one record per backend, listed in `register`."""
