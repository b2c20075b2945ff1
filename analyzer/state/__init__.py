"""What a workload, a slice and a card hour are called: idle, allocated, used, unused; names, definitions, totals."""
