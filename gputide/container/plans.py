"""Opens the plans of a data folder, what was changed by them, and what a stage of one would change now.

Called by the verbs `plan`, `apply`, `undo` and `verify`, by pages and by the demo.
"""

from __future__ import annotations

from enforcer.record.fingerprint import fingerprint_of
from enforcer.record.journal import Journal
from enforcer.record.ledger import Ledger
from enforcer.record.plan_store import PlanStore
from enforcer.snapshot import take_snapshot
from fleet.data_folder import DataFolder
from fleet.decisions import Plan
from fleet.errors import NotEnoughData
from fleet.settings.settings import Settings
from gputide.container.cluster import backend, is_known, open_cluster, own_cluster


def plan_store(folder: DataFolder) -> PlanStore:
    """The plans."""
    return PlanStore(folder.plans)


def journal(folder: DataFolder, *, cluster: str | None = None) -> Journal:
    """What was changed, from the audit log; in one cluster where it is given."""
    return Journal(Ledger(folder.ledger), cluster=cluster)


def keep_plan(folder: DataFolder, settings: Settings, plan: Plan) -> None:
    """Keep a sealed plan, with the fingerprint of the cluster that it was made for where that is the enforcer's."""
    fingerprint = None
    if is_known(folder, settings) and own_cluster(folder, settings) in (None, plan.cluster):
        with open_cluster(folder, settings) as cluster:
            dialect = backend(settings, plan.created_at).dialect
            fingerprint = fingerprint_of(take_snapshot(cluster, dialect))
    plan_store(folder).add(plan, fingerprint)


def chosen_plan(folder: DataFolder, plan_id: str | None, *, cluster: str | None = None) -> Plan:
    """The plan of an id or its start; without one the newest, of `cluster` where that is given.

    Raises:
        Misconfigured: no such plan.
        Refused: it was edited.
        NotEnoughData: there is no plan at all.
    """
    if plan_id is not None:
        return plan_store(folder).get(plan_id)
    newest = plan_store(folder).newest(cluster)
    if newest is None:
        of = "" if cluster is None else f" for cluster {cluster!r}"
        raise NotEnoughData(f"there is no plan yet{of}; make one with `gputide plan make`")
    return newest
