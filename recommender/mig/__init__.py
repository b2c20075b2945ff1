"""MIG: layouts that hardware allows, who fits which, and in which order cards are cut."""
