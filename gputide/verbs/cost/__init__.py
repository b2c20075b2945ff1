"""`gputide cost`: costs, budgets, prices and the FOCUS export."""
