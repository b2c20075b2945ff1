"""Cards as NVIDIA's management library tells of them."""
