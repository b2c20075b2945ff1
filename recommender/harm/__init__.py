"""How much a plan will hurt: surprises, scenarios, calibrated risk, and pairs that don't get on."""
