"""The verbs of `kubectl gputide`; each is the Typer `app` of the module of its name."""
