"""How often framebuffer came back to pods that lend it to each other, by who worked when.

Nothing that is kept shows pages that move. But CUDA's driver sends out what came to the card longest ago, so where a
pod works again and holds more, together with all that worked since it last did, than the card has, a part of its
framebuffer had left and came back (stack distance: R. L. Mattson et al., Evaluation Techniques for Storage Hierarchies,
IBM Systems Journal 9, 1970). A pod that starts loads all that it needs, which is no switch, and may push others out; of
pods that start in one step the last one stays, which nobody knows, so one switch a card may be too many. Turns within
one step are not seen. Pods that work in the same steps and don't fit together change places in each. Shares nothing
with `fleet.lending`, by which plans predict. Called by `verify`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def turns(
    works: NDArray[np.bool_], starts: NDArray[np.bool_], held_bytes: NDArray[np.float64], capacity_bytes: float
) -> int:
    """Times that framebuffer came back.

    Args:
        works: (pods, steps).
        starts: steps in which a pod starts or is granted anew, (pods, steps).
        held_bytes: what each pod holds while it works, (pods,).
        capacity_bytes: framebuffer of the card.
    """
    found = 0
    works = works | starts
    since: dict[int, set[int]] = {}
    """Who worked since each pod did."""
    for step in np.flatnonzero(works.any(axis=0)).tolist():
        now = np.flatnonzero(works[:, step]).tolist()
        for pod in now:
            others = since.get(pod, set())
            found += bool(others and not starts[pod, step] and held_bytes[[pod, *others]].sum() > capacity_bytes)
        since |= {pod: set() for pod in now}
        for pod, others in since.items():
            others.update(other for other in now if other != pod)
    return found
