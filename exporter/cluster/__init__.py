"""What a cluster's API server says, watched and kept."""
