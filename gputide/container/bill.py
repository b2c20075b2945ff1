"""Opens what providers billed for nodes: imports files of it, and holds it against applied plans."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

from dashboards.money.import_bill import ReadBill, SameRows, import_files
from dashboards.money.kept_bill import read_bill, replaced, write_bill
from dashboards.queries import Views
from enforcer.record.billed import BillSpan, ClusterNow, PlanBill, plan_bills, releases_of
from enforcer.record.journal import StageState
from fleet.data_folder import writing
from fleet.errors import Misconfigured, NotEnoughData
from fleet.inventory import NodeLife
from fleet.money.bill import BilledNames, BillPart, NodeName, billed_names
from gputide.container.plans import journal
from gputide.container.warehouse import warehouse
from gputide.session import Session
from pipeline.records.sightings import SILENT_SECONDS

_MAP_BYTES_MAX = 16 * 2**20


def import_bill(
    session: Session, files: Sequence[Path], map_file: Path | None, same_rows: SameRows
) -> tuple[ReadBill, BilledNames]:
    """Read files of a bill and keep what they say of known nodes, all of it or nothing.

    Args:
        map_file: names the `ResourceId` of nodes; None where the inventory's ids do.

    Raises:
        NotEnoughData: no node was ever seen.
        Corrupt: a file can't be read; see `import_files`.
    """
    folder = session.folder()
    stored = warehouse(folder, session.settings)
    known = {
        NodeName(cluster, node): life.provider_ids
        for cluster in stored.clusters()
        for node, life in stored.node_lives(cluster).items()
    }
    if not known:
        raise NotEnoughData("cannot import a bill: no node was seen yet, and a bill is kept as far as it names one")
    mapped = () if map_file is None else read_map(map_file, set(known))
    names = billed_names(known, mapped)
    found = import_files(files, names, same_rows=same_rows)
    with writing(folder):
        write_bill(folder.bill, replaced(read_bill(folder.bill), found.parts))
    return found, names


def read_map(path: Path, known: set[NodeName]) -> tuple[tuple[NodeName, str], ...]:
    """Nodes with the `ResourceId` that a CSV with the heading `node,ResourceId` gives them.

    Args:
        known: nodes that it may name.

    Raises:
        Misconfigured: it can't be read, is too large, or a row names no node of exactly one cluster.
    """
    try:
        if path.stat().st_size > _MAP_BYTES_MAX:
            raise Misconfigured(f"cannot use {path}: larger than {_MAP_BYTES_MAX} bytes")
        rows = list(csv.reader(path.read_text("utf-8-sig").splitlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as exc:
        raise Misconfigured(f"cannot use {path}: {exc}") from exc
    if not rows or rows[0] != ["node", "ResourceId"]:
        raise Misconfigured(f"cannot use {path}: its heading must be node,ResourceId")
    found = []
    for number, row in enumerate(rows[1:], 1):
        own = sorted(name for name in known if row and name.node == row[0])
        if len(row) != 2 or not row[1].strip() or len(own) != 1:
            raise Misconfigured(
                f"cannot use {path}: row {number}: {','.join(row)[:200]!r}: must be a node of one cluster, and an id"
            )
        found.append((own[0], row[1]))
    return tuple(found)


def bills_of(
    session: Session, cluster: str, *, views: Views | None = None, since: datetime | None = None,
    until: datetime | None = None,
) -> tuple[PlanBill, ...]:  # fmt: skip
    """What became of a cluster's applied plans on the bill, newest first; none where no bill was imported.

    Args:
        views: the ports of the pages, where they are open.
        since: first day that counts; None for a week before each plan was applied.
        until: end of the last day; None for now.
    """
    parts = read_bill(session.folder().bill)
    return chains_of(session, cluster, parts, views=views, since=since, until=until) if parts else ()


def chains_of(
    session: Session, cluster: str, parts: Sequence[BillPart] = (), *, views: Views | None = None,
    since: datetime | None = None, until: datetime | None = None,
) -> tuple[PlanBill, ...]:  # fmt: skip
    """What became of a cluster's applied plans, newest first, also where no bill says what that saved.

    Args:
        parts: what was imported of bills.
    """
    folder, now = session.folder(), session.now()
    if views is None:
        # Reading files of a bill needs none of it, and a hundred megabytes less.
        from gputide.container.pages import views_of

        views = views_of(session)
    plans = views.plans.plans(cluster)
    kept = journal(folder, cluster=cluster)
    applied_at = {
        entry.plan.plan_id: {
            record.stage: record.applied_at
            for run in kept.runs(entry.plan.plan_id)
            for record in run.records.values()
            if record.state is StageState.PROMOTED and record.applied_at is not None
        }
        for entry in plans
        if entry.applied_stages
    }
    stored = warehouse(folder, session.settings)
    standing = ClusterNow(
        inventory=stored.inventory(cluster, as_of=now), gone=_gone(stored.node_lives(cluster, as_of=now), now),
        released=releases_of(kept.runs()),
    )  # fmt: skip
    span = BillSpan(since=since, until=now if until is None else until)
    return plan_bills(plans, applied_at, views.outcomes.outcomes(cluster), standing, parts, span)


def _gone(lives: dict[str, NodeLife], now: datetime) -> dict[str, datetime]:
    """When each node that is gone was last seen; while nothing at all is seen, none is known to be gone."""
    newest = min(now, max((life.last_seen for life in lives.values()), default=now))
    silent = timedelta(seconds=SILENT_SECONDS)
    return {node: life.last_seen for node, life in lives.items() if newest - life.last_seen > silent}
