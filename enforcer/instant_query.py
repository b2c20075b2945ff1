"""Asks whoever keeps metrics what holds now: the port behind watching a change and behind latency objectives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One series of an answer.

    Attributes:
        labels: its labels; what stands there may come from tenants.
        value: its value; never NaN.
    """

    labels: Mapping[str, str]
    value: float


class InstantQuery(Protocol):
    """Answers PromQL."""

    def vector(self, query: str) -> tuple[Sample, ...]:
        """Every series that a query has now; empty where it has none.

        Raises:
            Unavailable: it can't be asked, or answers something else.
        """
        ...
