"""All settings: one section per file, put together in `settings`."""
