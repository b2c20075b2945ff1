"""What others do with the same fleet: rules of known tools, played beside ours by `simulate` and the leaderboard."""
