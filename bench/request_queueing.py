"""Services that share one card, request by request: how long requests take under each way of sharing.

Every service works on all its requests at once, at equal speed (continuous batching seen as processor sharing), with
the part of the card that it has at the moment: alone all of it, under a hard limit its share, under burst an equal part
among those that have requests, under priority all that those above leave. Between two events (an arrival, an end) all
speeds are constant, so times are exact. Time slicing is burst here: its quanta of some milliseconds are short against
requests of tenths of a second and more.

Called by `bench/quality/latency-table`, which writes `recommender.latency.table`. Processor sharing: Kleinrock,
Queueing Systems II (1976), chapter 4; equal parts among the active: generalised processor sharing,
Parekh and Gallager (1993).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from recommender.latency.inflation import SharingMode

Float64 = NDArray[np.float64]

_SPEED_MIN = 1e-12

F = TypeVar("F", bound=Callable[..., Any])


_NUMBER = {SharingMode.HARD: 0, SharingMode.BURST: 1, SharingMode.PRIORITY: 2}


def _compiled(function: F) -> F:
    compiled: Any = numba.njit(cache=True, nogil=True)(function)
    return cast(F, compiled)


def response_seconds(
    service: NDArray[np.int64],
    arrival_seconds: Float64,
    work_seconds: Float64,
    *,
    mode: SharingMode,
    share: Float64,
) -> Float64:
    """Plays the requests of all services of one card.

    Args:
        service: service of each request, 0 to services - 1, (requests,).
        arrival_seconds: when each arrives, ascending, (requests,).
        work_seconds: time each takes alone on a card of its own, > 0, (requests,).
        mode: how the card is shared. Under `PRIORITY` service 0 goes first and the others share the rest.
        share: part of the card per service, 0-1, (services,); counts under `HARD` only.

    Returns:
        Seconds from arrival to end per request, (requests,); NaN where a service without a share never ends one.
    """
    order = np.argsort(arrival_seconds, kind="stable")
    taken = np.full(len(order), np.nan)
    if len(order):
        taken[order] = _play(
            service[order].astype(np.int64),
            arrival_seconds[order].astype(np.float64),
            work_seconds[order].astype(np.float64),
            _NUMBER[mode],
            share.astype(np.float64),
        )
    return taken


@_compiled
def _play(service: Any, arrival: Any, work: Any, mode: int, share: Any) -> Any:
    """Requests in progress stand per service in a heap by the attained service at which they end."""
    requests = len(arrival)
    services = len(share)
    taken = np.full(requests, np.nan)
    attained = np.zeros(services)
    count = np.zeros(services, np.int64)
    per_service = np.zeros(services, np.int64)
    for k in range(requests):
        per_service[service[k]] += 1
    ends = np.empty((services, max(1, per_service.max())))
    names = np.empty((services, max(1, per_service.max())), np.int64)
    speed = np.zeros(services)
    now = arrival[0]
    upcoming = 0
    while True:
        _speeds(count, mode, share, speed)
        wait = np.inf if upcoming == requests else arrival[upcoming] - now
        first = -1
        for s in range(services):
            if count[s] and speed[s] > _SPEED_MIN:
                left = (ends[s, 0] - attained[s]) * count[s] / speed[s]
                if left < wait:
                    wait = left
                    first = s
        if wait == np.inf:
            break
        wait = max(wait, 0.0)
        now += wait
        for s in range(services):
            if count[s]:
                attained[s] += wait * speed[s] / count[s]
        if first >= 0:
            taken[names[first, 0]] = now - arrival[names[first, 0]]
            attained[first] = max(attained[first], ends[first, 0])
            _pop(ends[first], names[first], count[first])
            count[first] -= 1
        else:
            s = service[upcoming]
            if not count[s]:
                attained[s] = 0.0
            _push(ends[s], names[s], count[s], attained[s] + work[upcoming], upcoming)
            count[s] += 1
            upcoming += 1
    return taken


@_compiled
def _speeds(count: Any, mode: int, share: Any, speed: Any) -> None:
    """Part of the card that each service has while these have requests."""
    active = 0
    for s in range(len(count)):
        if count[s]:
            active += 1
    for s in range(len(count)):
        if not count[s]:
            speed[s] = 0.0
        elif mode == 0:
            speed[s] = share[s]
        elif mode == 1:
            speed[s] = 1.0 / active
        elif s == 0:
            speed[s] = 1.0
        elif count[0]:
            speed[s] = 0.0
        else:
            speed[s] = 1.0 / active


@_compiled
def _push(ends: Any, names: Any, size: int, end: float, name: int) -> None:
    """Adds to a heap whose smallest end comes first; equal ends by request."""
    k = size
    while k > 0:
        parent = (k - 1) // 2
        if ends[parent] < end or (ends[parent] == end and names[parent] < name):
            break
        ends[k] = ends[parent]
        names[k] = names[parent]
        k = parent
    ends[k] = end
    names[k] = name


@_compiled
def _pop(ends: Any, names: Any, size: int) -> None:
    """Takes the first out of a heap of that size."""
    last = size - 1
    end = ends[last]
    name = names[last]
    k = 0
    while True:
        child = 2 * k + 1
        if child >= last:
            break
        other = child + 1
        if other < last and (ends[other] < ends[child] or (ends[other] == ends[child] and names[other] < names[child])):
            child = other
        if end < ends[child] or (end == ends[child] and name < names[child]):
            break
        ends[k] = ends[child]
        names[k] = names[child]
        k = child
    ends[k] = end
    names[k] = name
