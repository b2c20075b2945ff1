"""`kubectl gputide undo`: the verb of `gputide`, for the cluster of the kubeconfig."""

from gputide.verbs.undo import app

__all__ = ["app"]
