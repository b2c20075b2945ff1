"""`kubectl gputide`: the command line for who works with kubectl, over the cluster's own API server."""
