"""The idle culler: a service whose cards showed no work for a while is scaled to nothing until somebody asks for it.

As gpu-pruner does it (`wseaton/gpu-pruner:gpu-pruner/src/main.rs`, `query.promql.j2`): the largest sample of the last
30 minutes is exactly zero on every card of the owner, and then 300 s of grace. It never brings anything back; here the
first request does, and waits until the framebuffer is loaded. Pure; called by the front door's `plan simulate`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fleet.usage import Float32

WINDOW_SECONDS = 1800
GRACE_SECONDS = 300


def asleep(compute: Float32, workload_of: NDArray[np.int32], step_seconds: int) -> NDArray[np.bool_]:
    """When each pod is scaled to nothing.

    Args:
        compute: demand, share of a card, (rows, steps); NaN = not collected, which is no sign of idleness.
        workload_of: workload of each row, (rows,): all pods of an owner sleep or none does.
        step_seconds: length of a step.

    Returns:
        (rows, steps). A pod that sleeps wakes in the step in which its owner is asked for work again.
    """
    wait = -(-(WINDOW_SECONDS + GRACE_SECONDS) // step_seconds)
    is_quiet = np.ones((int(workload_of.max(initial=-1)) + 1, compute.shape[1]), bool)
    np.logical_and.at(is_quiet, workload_of, compute == 0.0)
    steps = np.arange(compute.shape[1])
    last_work = np.maximum.accumulate(np.where(is_quiet, -1, steps), axis=1)
    sleeps = is_quiet & (steps - last_work > wait)
    return sleeps[workload_of]
