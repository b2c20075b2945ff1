"""Plans as they lie in the store, read once: a plan of a large fleet takes seconds to read and never changes.

A plan is sealed by its content, so a file that has neither been touched nor replaced holds what was read from it. What
is kept is bounded by the number of things in it: of the plans that were asked for longest ago only what a list needs
stays, without who sits where and who was refused, and the rest is read anew when somebody opens one. In a web app a
list of plans goes without a large new one until a thread has read it. Called by the pages' plan desk and outcomes;
whoever changes a cluster reads the store itself.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import structlog

from enforcer.record.plan_store import PlanStore
from fleet.decisions import Plan
from fleet.errors import GputideError

THINGS_MAX = 1_500_000
"""Cards, slices, recommendations and refusals of all plans that are kept: about two gigabytes."""

QUICK_BYTES_MAX = 4 * 2**20
"""A file up to this size is read at once, however impatient: a third of a second."""

_Stamp = tuple[int, int, int]
_log = structlog.get_logger()


class KeptPlans:
    """The plans of one folder.

    Args:
        path: the plan store's folder.
        things_max: things of all plans that are kept; the newest asked for is kept whatever it holds.
        is_patient: True to wait for large files; else a list goes without them while they are read, unless none is
            known yet.
    """

    def __init__(self, path: Path, *, things_max: int = THINGS_MAX, is_patient: bool = True) -> None:
        self._path = path
        self._store = PlanStore(path)
        self._things_max = things_max
        self._is_patient = is_patient
        self._reader: threading.Thread | None = None
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._kept: OrderedDict[str, tuple[_Stamp, Plan]] = OrderedDict()
        self._listed: dict[str, tuple[_Stamp, Plan]] = {}

    def plans(self, cluster: str) -> tuple[Plan, ...]:
        """Every plan of a cluster, in the order in which they were kept, the newest last.

        Beyond the bound old ones come without placement, schedule and refusals; `get` gives them whole.

        Raises:
            Refused: one was edited.
            Corrupt: one can't be read.
        """
        ids = self._store.ids()
        if not self._is_patient and self._kept:
            later = [plan_id for plan_id in ids if self._is_long(plan_id)]
            self._read_beside(later)
            ids = tuple(plan_id for plan_id in ids if plan_id not in later)
        return tuple(plan for plan in map(self._for_list, ids) if plan.cluster == cluster)

    def get(self, plan_id: str) -> Plan:
        """One plan, by its id or the start of it.

        Raises:
            Misconfigured: there is no such plan, or more than one.
            Refused: it was edited.
            Corrupt: the file can't be read.
        """
        stamp = self._stamp(plan_id)
        with self._lock:
            kept = self._kept.get(plan_id)
            if kept is not None and kept[0] == stamp:
                self._kept.move_to_end(plan_id)
                return kept[1]
        with self._reading:
            # One at a time: eight requests at once would read one plan eight times.
            kept = self._kept.get(plan_id)
            plan = self._store.get(plan_id) if kept is None or kept[0] != stamp else kept[1]
        with self._lock:
            if stamp is not None and plan.plan_id == plan_id:
                self._kept[plan_id] = (stamp, plan)
                self._kept.move_to_end(plan_id)
                self._listed.pop(plan_id, None)
                self._drop()
        return plan

    def _for_list(self, plan_id: str) -> Plan:
        listed = self._listed.get(plan_id)
        return listed[1] if listed is not None and listed[0] == self._stamp(plan_id) else self.get(plan_id)

    def _is_long(self, plan_id: str) -> bool:
        """Whether it takes long to give this plan: a large file that was not read yet."""
        stamp, kept = self._stamp(plan_id), self._kept.get(plan_id) or self._listed.get(plan_id)
        return stamp is not None and stamp[1] > QUICK_BYTES_MAX and (kept is None or kept[0] != stamp)

    def _read_beside(self, ids: list[str]) -> None:
        if not ids or (self._reader is not None and self._reader.is_alive()):
            return

        def read() -> None:
            for plan_id in ids:
                try:
                    self.get(plan_id)
                except GputideError as exc:
                    _log.warning("plan cannot be read", plan=plan_id, reason=str(exc))

        self._reader = threading.Thread(target=read, name="reading plans", daemon=True)
        self._reader.start()

    def _drop(self) -> None:
        things = sum(_things(plan) for _, plan in self._kept.values())
        while len(self._kept) > 1 and things > self._things_max:
            plan_id, (stamp, plan) = self._kept.popitem(last=False)
            self._listed[plan_id] = (stamp, replace(plan, placement=(), schedule=(), refused=()))
            things -= _things(plan)

    def _stamp(self, plan_id: str) -> _Stamp | None:
        """What tells that a file was touched or replaced; None where no plan has exactly this id."""
        if not plan_id.isalnum():
            return None
        try:
            found = (self._path / f"{plan_id}.json").stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def _things(plan: Plan) -> int:
    slices = sum(len(place.slices) for place in plan.placement)
    return len(plan.placement) + slices + len(plan.recommendations) + len(plan.refused)
