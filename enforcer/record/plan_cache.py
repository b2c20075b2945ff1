"""Plans of the store, kept in memory: a plan of a large fleet takes seconds to read and never changes.

A plan is sealed by its content, so a file that was neither touched nor replaced still holds what was read from it.
Memory is bounded by the number of items in all plans: a plan that was not asked for lately loses its placement,
schedule and refusals, and is read again when somebody opens it. Of the placement it keeps the cards of the pods that
it changes, by which a list says which stages are in place. In a web app the list of plans leaves out a large new
plan until a thread has read it. Called by the pages; code that changes a cluster reads the store itself.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from enforcer.record.plan_store import PlanStore
from enforcer.record.savings import planned_cards
from fleet.decisions import Plan
from fleet.errors import GputideError
from fleet.logs import logger

ITEMS_MAX = 1_500_000
"""Cards, slices, recommendations and refusals of all plans in memory: about two gigabytes."""

QUICK_BYTES_MAX = 4 * 2**20
"""A file up to this size is read at once in a web app too: it takes a third of a second."""

_Stamp = tuple[int, int, int]
_log = logger(__name__)


class PlanCache:
    """The plans of one folder.

    Each call raises as `PlanStore.get`.

    Args:
        items_max: items of all plans in memory; the plan that was asked for last is kept whatever it holds.
        is_patient: True to wait for large files; else a list leaves them out while they are read, unless no plan
            is known yet.
    """

    def __init__(self, path: Path, *, items_max: int = ITEMS_MAX, is_patient: bool = True) -> None:
        self._path = path
        self._store = PlanStore(path)
        self._items_max = items_max
        self._is_patient = is_patient
        self._reader: threading.Thread | None = None
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._kept: OrderedDict[str, tuple[_Stamp, Plan]] = OrderedDict()
        self._listed: dict[str, tuple[_Stamp, Plan]] = {}
        self._placed: dict[str, Mapping[str, frozenset[str]]] = {}

    def plans(self, cluster: str) -> tuple[Plan, ...]:
        """Every plan of a cluster, the newest last.

        Old plans beyond the bound have no placement, schedule and refusals; `get` returns them whole.
        """
        ids = self._store.ids()
        if not self._is_patient and self._kept:
            later = [plan_id for plan_id in ids if self._is_long(plan_id)]
            self._read_beside(later)
            ids = tuple(plan_id for plan_id in ids if plan_id not in later)
        return tuple(plan for plan in map(self._for_list, ids) if plan.cluster == cluster)

    def get(self, plan_id: str) -> Plan:
        """One plan, by its id or the start of it."""
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

    def planned_cards(self, plan: Plan) -> Mapping[str, frozenset[str]]:
        """`planned_cards` of a plan that is whole or was given by `plans`."""
        return planned_cards(plan) if plan.placement else self._placed.get(plan.plan_id, {})

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
        items = sum(_items(plan) for _, plan in self._kept.values())
        while len(self._kept) > 1 and items > self._items_max:
            plan_id, (stamp, plan) = self._kept.popitem(last=False)
            self._placed[plan_id] = planned_cards(plan)
            self._listed[plan_id] = (stamp, replace(plan, placement=(), schedule=(), refused=()))
            items -= _items(plan)

    def _stamp(self, plan_id: str) -> _Stamp | None:
        """Changes when the file is touched or replaced; None where no plan has exactly this id."""
        if not plan_id.isalnum():
            return None
        try:
            found = (self._path / f"{plan_id}.json").stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def _items(plan: Plan) -> int:
    slices = sum(len(place.slices) for place in plan.placement)
    return len(plan.placement) + slices + len(plan.recommendations) + len(plan.refused)
