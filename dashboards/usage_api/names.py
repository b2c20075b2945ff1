"""Names of the API `usage.gputide.io`; apart, so that `kubectl gputide` asks without loading what answers."""

from __future__ import annotations

from typing import Any

GROUP = "usage.gputide.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
PODS_NAME, CARDS_NAME, COSTS_NAME = "gpupods", "gpucards", "gpucosts"
"""Plurals of its kinds, as in paths."""
ADVICE_NAME = "advice"
"""Subresource of a pod: what is known of it, and what the newest plan says."""

Object = dict[str, Any]
"""An object as the API server gives it."""
