"""`kubectl gputide approve`: the verb of `gputide`, for the cluster of the kubeconfig."""

from gputide.verbs.plan.approve import app

__all__ = ["app"]
