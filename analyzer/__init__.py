"""Pure arithmetic over samples: utilisation, waste, bottlenecks and cost."""
