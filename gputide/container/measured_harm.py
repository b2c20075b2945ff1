"""What the warehouse knows of what applied plans saved and harmed.

Loads what reads the warehouse (pandas, DuckDB: more than a hundred megabytes), so it is imported where it is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from enforcer.safety.harm_budget import Harm
from enforcer.verify import harm_by_workload, verify
from fleet.data_folder import DataFolder
from fleet.decisions import Plan
from fleet.errors import NotEnoughData
from fleet.inventory import WorkloadId
from fleet.outcomes import Outcome
from fleet.priority_holds import Holders
from fleet.settings.settings import Settings
from gputide.container.plans import journal
from gputide.container.warehouse import WarehouseMeasurements


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
        WarehouseMeasurements(folder, settings, cluster=plan.cluster),
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
        history = WarehouseMeasurements(folder, settings, cluster=cluster).history(since, until)
    except NotEnoughData:
        return {}
    return harm_by_workload(history, settings.analyzer)
