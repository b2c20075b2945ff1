"""What others do with the same fleet: rules of known tools, played by `plan simulate` and the leaderboard."""
