"""The pages on which people see the fleet, its waste and what to do about it."""
