"""What the warehouse knows of what applied plans saved and harmed.

Loads what reads the warehouse (Arrow, DuckDB: more than a hundred megabytes), so it is imported where it is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from enforcer.safety.harm_budget import Harm
from enforcer.suffered import HarmQuestion, PartHarm, joined
from enforcer.verify import verify
from fleet.data_folder import DataFolder
from fleet.decisions import Plan
from fleet.errors import NotEnoughData
from fleet.inventory import Inventory, WorkloadId
from fleet.outcomes import Outcome
from fleet.priority_holds import Holders
from fleet.settings.settings import Settings
from gputide.container.history import ask_believed, stored_between
from gputide.container.plans import journal
from gputide.container.warehouse import NOTHING_YET, warehouse_folder


def verified(
    folder: DataFolder, settings: Settings, plan: Plan, now: datetime, holders: Holders | None = None
) -> Outcome:
    """What an applied plan saved and harmed until now, beside what was predicted; nothing is kept.

    Args:
        holders: what holds low priority back now; None where nobody can say.
    """
    kept = journal(folder)
    return verify(
        plan,
        kept.runs(plan.plan_id),
        _Warehouse(folder, settings, plan.cluster),
        now=now,
        settings=settings,
        harm_ratio_max=settings.guard.harm_ratio_max,
        undone=frozenset(item for _, item in kept.undone_recommendations(plan.plan_id)),
        holders=holders,
    )


def harm_between(
    folder: DataFolder, settings: Settings, cluster: str | None, since: datetime, until: datetime
) -> Mapping[WorkloadId, Harm]:
    """Harm per workload of a cluster between two moments, by the folder's warehouse; none where nothing was collected.

    What `_HarmOfWarehouse` of `container.enforcer` answers the enforcer's port `HarmRecords` with.
    """
    try:
        _, parts = _Warehouse(folder, settings, cluster).harm(since, until, HarmQuestion())
    except NotEnoughData:
        return {}
    return {workload: one.steps.harm for workload, one in joined(parts).suffered.items()}


class _Warehouse:
    """`Measurements` over the warehouse."""

    def __init__(self, folder: DataFolder, settings: Settings, cluster: str | None) -> None:
        self._folder, self._settings, self._cluster = folder, settings, cluster

    def inventory(self, since: datetime, until: datetime) -> Inventory:
        """What stood there and who was granted what between two moments; see the port."""
        self._check()
        return stored_between(self._folder, self._settings, self._cluster, since, until).inventory

    def harm(self, since: datetime, until: datetime, question: HarmQuestion) -> tuple[Inventory, Sequence[PartHarm]]:
        """The same, and what was suffered; see the port."""
        self._check()
        return ask_believed(self._folder, self._settings, self._cluster, (since, until), question)

    def _check(self) -> None:
        if not warehouse_folder(self._folder, self._settings).exists():
            raise NotEnoughData(NOTHING_YET)
