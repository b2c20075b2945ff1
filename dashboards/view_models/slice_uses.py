"""What each container holds of a card now, and what it used of it lately.

Made by `dashboards.stored.fleet`; shown by the API that the Kubernetes API server aggregates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fleet.inventory import Grant
from fleet.money.split import MILLION, CardHours, split_card_hours
from fleet.money.tenancies import granted_shares

USE_HOURS = 24
"""How far back its use is looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceUse:
    """One container on one card.

    Attributes:
        grant: what it was granted.
        price_ratio: share of the card's price that it pays by allocation, 0-1.
        compute_mean: mean compute over the last `USE_HOURS`, share of the card, 0-1; None where nothing was collected.
        compute_max: largest sample of them.
        framebuffer_used_max: most framebuffer that it used in them, bytes.
    """

    grant: Grant
    price_ratio: float
    compute_mean: float | None
    compute_max: float | None
    framebuffer_used_max: int | None


def price_ratios(grants: tuple[Grant, ...], *, compute_ratio: float) -> tuple[float, ...]:
    """Share of its card's price that each of all live grants pays by allocation, as a chargeback splits an hour.

    Args:
        compute_ratio: share of a card's price that its compute stands for, 0-1.
    """
    places: dict[str, int] = {}
    place = np.array([places.setdefault(grant.card, len(places)) for grant in grants], np.int64)
    shares = np.array([granted_shares(grant) for grant in grants], np.float64).reshape(len(grants), 2)
    unknown = np.full(len(grants), np.nan)
    split = split_card_hours(
        CardHours(
            count=len(places),
            card_hour=place,
            compute_granted=shares[:, 0],
            framebuffer_granted=shares[:, 1],
            compute_used=unknown,
            framebuffer_used=unknown,
        ),
        compute_ratio=compute_ratio,
        blended_use_ratio=0.0,
    )
    return tuple((split.allocation.rows / MILLION).tolist())
