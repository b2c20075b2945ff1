"""Approved stages as a pull request of the repository that keeps a cluster's manifests."""
