"""Models that share a card asleep: requests wake them, and who rests makes room."""
