"""Pure rules which turn findings into priced recommendations."""
