"""How often somebody counted a workload's replicas up or down: an autoscaler is seen by what it does.

A history holds no autoscaler, only pods that come and go. A restart replaces a pod within minutes and leaves the count
as it was, so counts are compared from hour to hour. Called by `permits` for the tide, which must not work against
what scales it already.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from fleet.inventory import Grant, WorkloadId

LOOK_BACK_DAYS = 7
_HOUR_SECONDS = 3600


Span = tuple[datetime, datetime]
"""Begin and end, UTC."""


def scalings(
    grants: Iterable[Grant], *, now: datetime, since: datetime, own: Mapping[WorkloadId, Sequence[Span]] | None = None
) -> dict[WorkloadId, int]:
    """Changes of each workload's number of pods from one hour to the next.

    Args:
        grants: every period of every grant that is known, also ended ones.
        now: the moment; what lies later is not counted.
        since: start of the history; pods that began before anybody looked say nothing.
        own: spans in which our own tide moved a workload's replicas: what changed then was no autoscaler.

    Returns:
        Changes over the last `LOOK_BACK_DAYS` days, by workload; workloads without any are left out.
    """
    begin = max(since, now - timedelta(days=LOOK_BACK_DAYS))
    hours = max(0, int((now - begin).total_seconds() // _HOUR_SECONDS))
    first = now - timedelta(seconds=_HOUR_SECONDS * hours)
    lives: dict[WorkloadId, dict[str, list[tuple[int, int]]]] = defaultdict(lambda: defaultdict(list))
    for grant in grants:
        start = _mark(grant.started_at, first, hours)
        end = hours + 1 if grant.ended_at is None else _mark(grant.ended_at, first, hours)
        if start < end:
            lives[grant.workload_id][grant.pod_id].append((start, end))
    found: dict[WorkloadId, int] = {}
    for workload, pods in lives.items():
        change: Counter[int] = Counter()
        for spans in pods.values():
            for start, end in _merged(spans):
                change[start] += 1
                change[end] -= 1
        ours = {hour for begin, end in (own or {}).get(workload, ()) for hour in _hours_of(begin, end, first, hours)}
        count = sum(step != 0 and 0 < mark <= hours and mark not in ours for mark, step in change.items())
        if count:
            found[workload] = count
    return found


def _hours_of(begin: datetime, end: datetime, first: datetime, hours: int) -> range:
    """Marks at which a change within a span is seen; pods come and go for a while after it is asked for."""
    return range(_mark(begin, first, hours), _mark(end, first, hours) + 2)


def _mark(moment: datetime, first: datetime, hours: int) -> int:
    """The first full hour of the look back that is not before a moment: 0 … hours, or one more for none."""
    passed = math.ceil((moment - first).total_seconds() / _HOUR_SECONDS)
    return min(max(0, passed), hours + 1)


def _merged(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """One pod's spans without overlap: its slices and the grants that followed one another are one pod."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged
