"""Who may say no, and how much harm a service may suffer."""
