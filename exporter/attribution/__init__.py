"""Who was granted which slice of which card, and whose process sits there."""
