"""Cards as NVIDIA's management library reports them."""
