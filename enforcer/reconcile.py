"""What applied plans wrote and what stands in the cluster now: shown, and written again only when somebody asks.

Somebody edits an object, a chart is upgraded, a controller fills a field in anew: then a plan's saving is gone or its
slices are not what they were promised to be, and nobody notices. Called by `gputide plan drift`
and, for pods in other seats, by the reconciler.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from enforcer.admission import PLAN_ANNOTATION, SEAT_ANNOTATION, UNPINNED_ANNOTATION, parse_seats
from enforcer.backends.planned_seats import SEATS_FIELD
from enforcer.cluster import ClusterReader, ClusterWriter, FieldChange
from enforcer.manifest import Manifest, field_of, values_equal, workload_parts
from enforcer.ownership import workload_of_pod
from enforcer.record.journal import FieldIntent, Journal, ObjectIntent, RunRecord, StageState
from fleet.errors import Corrupt, Refused
from fleet.inventory import WorkloadId


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """One field that is not as an applied plan left it.

    Attributes:
        planned: value that the plan wrote; None where it took the field away.
        found: value that stands there now; None where there is none.
    """

    plan_id: str
    stage: int
    recommendation: str
    kind: str
    namespace: str
    name: str
    field: str
    planned: str | None
    found: str | None
    is_gone: bool

    @property
    def workload(self) -> WorkloadId:
        """`namespace/Kind/name`."""
        return WorkloadId(f"{self.namespace}/{self.kind}/{self.name}")


_Written = Mapping[tuple[str, str, str, str], tuple[RunRecord, int, ObjectIntent, FieldIntent]]
"""Fields with the run, stage and intent that wrote them, by kind, namespace, name and field."""


def find_drift(journal: Journal, reader: ClusterReader) -> tuple[Drift, ...]:
    """Fields that are not as the plans in force left them, and pods that could not be pinned to their seats.

    Of an owner whose shares somebody edited the pods are left out: they are where they are because of that.

    Args:
        journal: every run. Of a field that several wrote the last one counts; stages and recommendations that were
            restored or undone count for nothing, and neither do fields of pods, which come and go.

    Raises:
        Unavailable: it can't be reached.
    """
    last = _last_written(journal)
    objects: dict[tuple[str, str, str], Manifest | None] = {}
    found = []
    for (kind, namespace, name, field), (run, number, intent, part) in sorted(last.items()):
        key = (kind, namespace, name)
        if key not in objects:
            objects[key] = reader.get(*key)
        manifest = objects[key]
        now = None if manifest is None else field_of(manifest, field)
        if manifest is not None and values_equal(field, now, part.new):
            continue
        found.append(
            Drift(
                plan_id=run.plan_id,
                stage=number,
                recommendation=intent.recommendation,
                kind=kind,
                namespace=namespace,
                name=name,
                field=field,
                planned=part.new,
                found=now,
                is_gone=manifest is None,
            )
        )
    edited = {(drift.kind, drift.namespace, drift.name) for drift in found if ".resources." in drift.field}
    seated = {place: entry for place, entry in last.items() if place[3] == SEATS_FIELD}
    return (*found, *_unpinned(seated, edited, reader))


def departures(journal: Journal, reader: ClusterReader) -> Mapping[str, Mapping[WorkloadId, str]]:
    """Why pods of services are not in the seats that plans in force have for them; replicas beyond a plan too.

    Returns:
        One reason per service, by plan. Pods are listed of namespaces that have planned seats.

    Raises:
        Unavailable: the cluster can't be reached.
    """
    seated = {place: entry for place, entry in _last_written(journal).items() if place[3] == SEATS_FIELD}
    found: dict[str, dict[WorkloadId, str]] = {}
    for namespace in dict.fromkeys(place[1] for place in seated):
        for pod in reader.list_objects("Pod", namespace):
            why = (pod["metadata"].get("annotations") or {}).get(UNPINNED_ANNOTATION)
            place = None if why is None else _place_of(pod, seated)
            if place is not None:
                run, _, intent, _ = seated[place]
                found.setdefault(run.plan_id, {}).setdefault(intent.workload, str(why))
    return found


def _last_written(journal: Journal) -> _Written:
    """What plans in force wrote last."""
    last: dict[tuple[str, str, str, str], tuple[RunRecord, int, ObjectIntent, FieldIntent]] = {}
    undone = journal.undone_recommendations()
    for run in journal.runs():
        for number, record in sorted(run.records.items()):
            if record.state is not StageState.PROMOTED:
                continue
            for intent in record.objects:
                if intent.kind == "Pod" or (run.plan_id, intent.recommendation) in undone:
                    continue
                for part in intent.fields:
                    last[*intent.key, part.field] = (run, number, intent, part)
    return last


def _unpinned(seated: _Written, edited: Collection[tuple[str, str, str]], reader: ClusterReader) -> list[Drift]:
    """Pods that go wherever a card fits though a seat was planned for them, but for those of edited owners.

    A pod without a seat counts only where a planned seat is held by nobody: a replica beyond them has none to miss.
    """
    free = {place: len(parse_seats(entry[3].new or "{}")) for place, entry in seated.items()}
    found = []
    for namespace in dict.fromkeys(place[1] for place in seated):
        pods = reader.list_objects("Pod", namespace)
        # Those that have a seat's name first: they leave fewer free.
        for pod in sorted(pods, key=lambda pod: SEAT_ANNOTATION not in (pod["metadata"].get("annotations") or {})):
            annotations = pod["metadata"].get("annotations") or {}
            why, has_seat = annotations.get(UNPINNED_ANNOTATION), SEAT_ANNOTATION in annotations
            place = _place_of(pod, seated)
            if place is None or (why is None and not has_seat) or (not has_seat and free[place] <= 0):
                continue
            free[place] -= 1
            if why is None or place[:3] in edited:
                continue
            run, number, intent, _ = seated[place]
            found.append(
                Drift(
                    plan_id=run.plan_id,
                    stage=number,
                    recommendation=intent.recommendation,
                    kind="Pod",
                    namespace=namespace,
                    name=str(pod["metadata"]["name"]),
                    field=f"metadata.annotations[{UNPINNED_ANNOTATION}]",
                    planned=None,
                    found=str(why),
                    is_gone=False,
                )
            )
    return found


def _place_of(pod: Manifest, seated: _Written) -> tuple[str, str, str, str] | None:
    """Which owner's seats a pod belongs to: its workload's, else those of the plan that its template is of."""
    namespace, kind, name = workload_parts(workload_of_pod(pod, {}))
    if (kind, namespace, name, SEATS_FIELD) in seated:
        return kind, namespace, name, SEATS_FIELD
    plan_id = (pod["metadata"].get("annotations") or {}).get(PLAN_ANNOTATION)
    own = (place for place, entry in seated.items() if entry[0].plan_id == plan_id and place[1] == namespace)
    return None if plan_id is None else next(own, None)


def repair(
    drifts: Sequence[Drift], reader: ClusterReader, writer: ClusterWriter, journal: Journal, by: str
) -> tuple[str, ...]:
    """Write the planned values again, object by object, on the condition that nobody changed them since.

    What stood there is in the ledger before it goes; an undo of the plan leads to what was before the plan.

    Returns:
        What could not be mended, one sentence each.

    Raises:
        Unavailable: the cluster can't be reached.
    """
    refused = []
    for key in dict.fromkeys((drift.kind, drift.namespace, drift.name) for drift in drifts):
        own = [drift for drift in drifts if (drift.kind, drift.namespace, drift.name) == key]
        if own[0].kind == "Pod":
            refused.append(f"pod {key[1]}/{key[2]} is not in its planned seat: {own[0].found}; make a new plan")
            continue
        manifest = reader.get(*key)
        if manifest is None:
            refused.append(f"{own[0].workload} is gone")
            continue
        fields = [[drift.field, field_of(manifest, drift.field), drift.planned] for drift in own]
        journal.write(
            own[0].plan_id, reader.now(), "repair", by=by, object=list(key), fields=fields, stage=own[0].stage
        )  # fmt: skip
        changes = [FieldChange(field=drift.field, value=drift.planned) for drift in own]
        try:
            writer.patch(*key, changes, manifest["metadata"]["resourceVersion"])
        except (Refused, Corrupt) as exc:  # Corrupt: a container that was renamed has no such field any more
            refused.append(str(exc))
            continue
        writer.record_event(*key, "GputideRepaired", f"{len(changes)} fields of plan {own[0].plan_id}")
    return tuple(refused)
