"""What each kind of workload is to a change: where its pod templates stand, how it is sized, what its status says."""
