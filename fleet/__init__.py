"""What every room speaks of: GPUs, samples, workloads, money and the errors they share."""
