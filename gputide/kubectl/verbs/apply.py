"""`kubectl gputide apply`: the verb of `gputide`, for the cluster of the kubeconfig."""

from gputide.verbs.apply import app

__all__ = ["app"]
