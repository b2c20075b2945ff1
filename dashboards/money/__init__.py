"""What the cards cost and whose cost it is: chargeback, budgets, energy and the FOCUS export."""
