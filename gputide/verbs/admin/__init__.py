"""`gputide admin`: what administrators do with data, engines, access and messages."""
