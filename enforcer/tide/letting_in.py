"""Who is let in at night, in which order and until when: Jobs and Workloads that are marked for it, and Kueue's queues.

A Job with the label `gputide.io/tide: night` is suspended by day (batch/v1: `spec.suspend`; its pods are stopped when
it is suspended again). A Workload of Kueue with that label is inactive by day (`spec.active`; Kueue evicts an admitted
one that gets inactive, whatever kind of job it stands for); a Job that has a Workload is Kueue's to start and to stop:
what others write to its `spec.suspend` Kueue takes back. So does a JobSet with the Jobs that it owns, and a Job of
Volcano's own kind has nothing to suspend; both are named and left alone. A queue of Kueue that is named in the settings
is held by day (`spec.stopPolicy` of a ClusterQueue: `Hold` admits no new workload, `HoldAndDrain` evicts too; `None`
admits). All read on themselves until when they may run, so that work can end by itself before. What is let in depends
on the promise of its tier (`fleet.tiers`): not for fewer hours than that, nor where nights had to end before their time
more often.

Sources: kubernetes/api:batch/v1/types.go; kubernetes-sigs/kueue:apis/kueue/v1beta1/clusterqueue_types.go,
workload_types.go; kubernetes-sigs/jobset:pkg/controllers/jobset_controller.go;
volcano-sh/volcano:pkg/controllers/job/job_controller_actions.go (a PodGroup has the labels of its Job).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime

from enforcer.cluster import ClusterReader
from enforcer.manifest import Manifest, field_of
from enforcer.ownership import controller_of
from enforcer.record.journal import FieldIntent, ObjectIntent
from enforcer.tide.homecoming import TidePolicy
from enforcer.tide.scaling import tide_intent
from fleet.errors import Misconfigured
from fleet.inventory import WorkloadId
from fleet.tiers import NIGHT_TIERS, Guarantee, Tier, tier_of
from fleet.units import format_time

TIDE_LABEL = "gputide.io/tide"
RUNS_UNTIL_ANNOTATION = "gputide.io/runs-until"
"""On a Job or queue that was let in: when it will be asked to save and be stopped, ISO 8601."""
_TIME_LETTERS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LettingIn:
    """Who is let in.

    Attributes:
        intents: what is written, those of the tier that is promised most first.
        tiers: tier of each, in the same order.
        left: work that waits for another night, and why.
    """

    intents: tuple[ObjectIntent, ...] = ()
    tiers: tuple[Tier, ...] = ()
    left: tuple[tuple[WorkloadId, str], ...] = ()


def letting_in(
    reader: ClusterReader, policy: TidePolicy, now: datetime, until: datetime, evictions_per_hour: float | None
) -> LettingIn:
    """Who is let in until a moment.

    Args:
        evictions_per_hour: how often work of earlier nights had to go before its time, per hour that it ran; None
            where there were too few nights to say.

    Raises:
        Unavailable: the cluster can't be reached.
    """
    works = {kind: reader.list_objects(kind) for kind in ("Job", "Workload")}
    found = [
        (_tier(work), _until(work, tide_intent(work, field, waits, runs), until))
        for kind, field, waits, runs in (
            ("Job", "spec.suspend", "true", "false"),
            ("Workload", "spec.active", "false", "true"),
        )
        for work in works[kind]
        if _labels(work).get(TIDE_LABEL) == "night" and field_of(work, field) == waits
    ]
    for queue in reader.list_objects("ClusterQueue"):
        stop = field_of(queue, "spec.stopPolicy")
        if queue["metadata"]["name"] in policy.queues and stop in ("Hold", "HoldAndDrain"):
            found.append((_tier(queue), _until(queue, tide_intent(queue, "spec.stopPolicy", stop, "None"), until)))
    hours = (until - now).total_seconds() / 3600.0
    why = {tier: _broken(policy.guarantees.get(tier, Guarantee()), hours, evictions_per_hour) for tier in NIGHT_TIERS}
    found.sort(key=lambda entry: NIGHT_TIERS.index(entry[0]))
    of_kueue = {owner: work["metadata"]["name"] for work in works["Workload"] for owner in owners_of_pods(work)}
    left = {
        intent.workload: said
        for tier, intent in found
        if (
            said := _too_long(intent)
            or _of_kueue(of_kueue.get(intent.workload))
            or _of_set(intent, works["Job"])
            or (why[tier] and f"tier {tier}: {why[tier]}")
        )
    }
    let_in = [(tier, intent) for tier, intent in found if intent.workload not in left]
    return LettingIn(
        intents=tuple(intent for _, intent in let_in),
        tiers=tuple(tier for tier, _ in let_in),
        left=(*left.items(), *_of_volcano(reader)),
    )


def _too_long(intent: ObjectIntent) -> str | None:
    """Why what a tenant wrote of a Job is not kept: the audit log would grow by a quarter of a megabyte a night."""
    until = intent.fields[-1].old or ""
    if len(until) <= _TIME_LETTERS_MAX:
        return None
    return f"its {RUNS_UNTIL_ANNOTATION} is no time, but {len(until)} letters; take it away"


def _of_kueue(work: str | None) -> str | None:
    """Why a Job that a Workload of Kueue stands for is not let in by itself."""
    if work is None:
        return None
    return f"Kueue starts and stops it: mark its Workload {work}, or name its ClusterQueue in tide.queues"


def _of_set(intent: ObjectIntent, jobs: Sequence[Manifest]) -> str | None:
    """Why a Job that a JobSet keeps as itself is not let in."""
    found = next((job for job in jobs if intent.kind == "Job" and _key(job) == (intent.namespace, intent.name)), None)
    kind, name = (found and controller_of(found)) or ("", "")
    return f"{kind} {name} starts and stops it" if kind == "JobSet" else None


def _of_volcano(reader: ClusterReader) -> list[tuple[WorkloadId, str]]:
    """Marked Jobs of Volcano's own kind, by their PodGroups, and why they are not let in."""
    groups: Sequence[Manifest] = ()
    with suppress(Misconfigured):  # doctor says who may not read them
        groups = reader.list_objects("PodGroup")
    return [
        (
            WorkloadId(f"{group['metadata']['namespace']}/Job/{owner['name']}"),
            "a Job of batch.volcano.sh can't be suspended; make it one of batch/v1 with schedulerName: volcano",
        )
        for group in groups
        for owner in group["metadata"].get("ownerReferences") or ()
        if _labels(group).get(TIDE_LABEL) == "night" and str(owner.get("apiVersion")).startswith("batch.volcano.sh/")
    ]


def _key(manifest: Manifest) -> tuple[str, str]:
    return manifest["metadata"]["namespace"], manifest["metadata"]["name"]


def owners_of_pods(work: Manifest) -> tuple[WorkloadId, ...]:
    """Whose pods run where a Job or Workload is let in: a Workload stands for the objects that own it."""
    metadata = work["metadata"]
    own = ({"kind": work["kind"], "name": metadata["name"]},)
    owners = metadata.get("ownerReferences") or () if work["kind"] == "Workload" else own
    return tuple(WorkloadId(f"{metadata['namespace']}/{one['kind']}/{one['name']}") for one in owners)


def _tier(work: Manifest) -> Tier:
    """The tier of a Job or queue; one that names none of the night's is batch."""
    template = ((work.get("spec") or {}).get("template") or {}).get("metadata") or {}
    tier = tier_of({**(template.get("annotations") or {}), **(template.get("labels") or {}), **_labels(work)})
    return tier if tier in NIGHT_TIERS else Tier.BATCH


def _labels(work: Manifest) -> Mapping[str, str]:
    return work["metadata"].get("labels") or {}


def _until(work: Manifest, intent: ObjectIntent, until: datetime) -> ObjectIntent:
    """The same, which says until when the work may run."""
    field = f"metadata.annotations[{RUNS_UNTIL_ANNOTATION}]"
    said = FieldIntent(field=field, old=field_of(work, field), new=format_time(until))
    return replace(intent, fields=(*intent.fields, said))


def _broken(promised: Guarantee, hours: float, evictions_per_hour: float | None) -> str | None:
    """Which promise of a tier would not be kept tonight."""
    if hours < promised.hours_min:
        return f"{hours:.1f} h are left, {promised.hours_min:g} h are promised"
    limit = promised.evictions_per_hour_max
    if limit is not None and evictions_per_hour is not None and evictions_per_hour > limit:
        return f"nights ended early {evictions_per_hour:.3f} times per hour of work, {limit:g} are promised"
    return None
