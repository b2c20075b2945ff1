"""A whole cluster in memory: objects, controllers, scheduler and webhook, by their published rules."""
