"""What each container holds and uses now, from the newest analysis of its cluster."""

from __future__ import annotations

import math
from collections.abc import Callable

from dashboards.stored.fleet import Analysed
from dashboards.view_models.made_once import MADE
from dashboards.view_models.slice_uses import USE_HOURS, SliceUse, price_ratios


class StoredSlices:
    """`Slices` over the analyses of a warehouse.

    Args:
        analysed: the newest analysis of a cluster.
        compute_ratio: share of a card's price that its compute stands for, 0-1.
    """

    def __init__(self, analysed: Callable[[str], Analysed], *, compute_ratio: float) -> None:
        self._analysed = analysed
        self._compute_ratio = compute_ratio

    def slices(self, cluster: str) -> tuple[SliceUse, ...]:
        """One per container on a card that lives, by namespace, pod, container and card."""
        found = self._analysed(cluster)
        return MADE.of((found.profiles,), "slices", lambda: self._made(found))

    def _made(self, found: Analysed) -> tuple[SliceUse, ...]:
        grants = found.series.live_grants(found.profiles.as_of)
        figures = found.series.lately(grants, USE_HOURS).tolist()
        ratios = price_ratios(grants, compute_ratio=self._compute_ratio)
        return tuple(
            SliceUse(
                grant=grant,
                price_ratio=ratio,
                compute_mean=_known(mean),
                compute_max=_known(peak),
                framebuffer_used_max=None if math.isnan(used) else round(used),
            )
            for grant, ratio, (mean, peak, used) in zip(grants, ratios, figures, strict=True)
        )


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
