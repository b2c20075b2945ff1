"""How far plans are ahead of others at the same harm: denser plans save more and harm more, so neither says it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def ahead(plans: Sequence[tuple[float, float]], present: Sequence[tuple[float, float]]) -> float:
    """Share of cards saved beyond what present plans would at the violation realised, mean over presets.

    Present plans between presets, and above the highest, are read off straight lines; below the lowest nothing is given
    for less violation.

    Args:
        plans: saved share and realised violation of each preset, 0-1, the most careful first.
        present: the same of present plans.
    """
    saved, at = np.array(present, float).T
    gains = []
    for own, realised in plans:
        there = max(realised, at[0])
        left = int(np.clip(np.searchsorted(at, there) - 1, 0, len(at) - 2))
        slope = (saved[left + 1] - saved[left]) / max(1e-6, at[left + 1] - at[left])
        gains.append(own - saved[left] - slope * (there - at[left]))
    return float(np.mean(gains))
