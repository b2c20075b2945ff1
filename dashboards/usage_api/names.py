"""Names of the API `usage.gputide.io`, and how its figures are said.

Apart, so that `kubectl gputide` asks without loading what answers.
"""

from __future__ import annotations

from typing import Any

from fleet.units import format_bytes_short, format_percent

GROUP = "usage.gputide.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
PODS_NAME, CARDS_NAME, COSTS_NAME = "gpupods", "gpucards", "gpucosts"
"""Plurals of its kinds, as in paths."""
ADVICE_NAME = "advice"
"""Subresource of a pod: what is known of it, and what the newest plan says."""

Object = dict[str, Any]
"""An object as the API server gives it."""


def summed(pod: Object, name: str) -> Any:
    """Sum of a figure over the slices of a `GpuPod`; None where it is known of none."""
    known = [part[name] for part in pod["slices"] if part[name] is not None]
    return sum(known) if known else None


def said_ratio(ratio: float | None) -> str:
    """A ratio in percent."""
    return "unknown" if ratio is None else format_percent(ratio)


def said_bytes(count: int | None) -> str:
    """A size for the eye."""
    return "unknown" if count is None else format_bytes_short(count)
