"""Turns one attribution after the other into grants that begin and end.

A slice keeps its start for as long as it lasts; a pod of the same name but another UID is another life, and what has
changed in size or labels is another period. What is merely known better (the pod's UID and with it the time when it
was bound, the owner of its owner) is the same period, told anew: so it begins when the scheduler layer, which knows the
same pod by the same status, says that it does. Called by the node exporter once per round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from exporter.attribution.records import AttributedSlice, Attribution
from fleet.inventory import CardId, Grant

SliceName = tuple[str, str, str, CardId]
"""Namespace, pod, container and card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantChange:
    """What came and went since the attribution before; the first one names all that stands there.

    Attributes:
        started: grants whose period began, and grants that are known better now: those take the place of what was
            told of the same pod, container and card.
        ended: grants whose period is over, with `ended_at`; otherwise equal to what was once started.
    """

    started: tuple[Grant, ...]
    ended: tuple[Grant, ...]


class GrantPeriods:
    """Remembers which grants live. For one thread."""

    def __init__(self) -> None:
        self._living: dict[SliceName, AttributedSlice] = {}
        # As found, beside what it was told as: most rounds find the very same records.
        self._found: dict[SliceName, Grant] = {}

    @property
    def slices(self) -> tuple[AttributedSlice, ...]:
        """What lives, each with the start of its period."""
        return tuple(self._living.values())

    def follow(self, attribution: Attribution, now: datetime) -> GrantChange:
        """Takes the next attribution.

        Args:
            attribution: what was found.
            now: the moment, UTC; ends and changes are dated by it.
        """
        started: list[Grant] = []
        ended: list[Grant] = []
        living: dict[SliceName, AttributedSlice] = {}
        for found in attribution.slices:
            name = _name(found)
            before = self._living.get(name)
            if before is None:
                living[name] = found
                started.append(found.grant)
            elif found.grant is self._found.get(name) or _is_same_period(before, found):
                # Who is asked later may know less; what was told once is kept, its start above all.
                living[name] = replace(found, pod_uid=before.pod_uid, grant=before.grant)
            elif before.pod_uid is None:
                living[name] = found
                started.append(found.grant)
            elif _is_same_but_for_its_owner(before, found):
                living[name] = replace(found, grant=replace(found.grant, started_at=before.grant.started_at))
                started.append(living[name].grant)
            else:
                is_new_life = before.pod_uid != found.pod_uid
                since = max(before.grant.started_at, found.grant.started_at) if is_new_life else now
                ended.append(replace(before.grant, ended_at=now))
                living[name] = replace(found, grant=replace(found.grant, started_at=since))
                started.append(living[name].grant)
        ended += [replace(before.grant, ended_at=now) for name, before in self._living.items() if name not in living]
        self._living = living
        self._found = {_name(found): found.grant for found in attribution.slices}
        return GrantChange(started=tuple(started), ended=tuple(ended))


def _is_same_period(before: AttributedSlice, found: AttributedSlice) -> bool:
    if found.pod_uid is None and before.pod_uid is not None:
        # The API server can't be asked, or is behind; the kubelet goes on listing the slice.
        return True
    is_same_life = before.pod_uid == found.pod_uid
    return is_same_life and before.grant == replace(found.grant, started_at=before.grant.started_at)


def _is_same_but_for_its_owner(before: AttributedSlice, found: AttributedSlice) -> bool:
    of_before = replace(
        before.grant, workload=found.grant.workload, workload_kind=found.grant.workload_kind,
        started_at=found.grant.started_at,
    )  # fmt: skip
    return before.pod_uid == found.pod_uid and of_before == found.grant


def _name(found: AttributedSlice) -> SliceName:
    return found.grant.namespace, found.grant.pod, found.grant.container, found.grant.card
