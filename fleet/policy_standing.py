"""What becomes of each policy: for how many workloads it speaks, what of it is in force, and who says otherwise.

Pure: from all policies of a cluster and its workloads. What is in force is asked of `fleet.gpu_policy.decisions`, by
which plans are made too. Called by the process that follows policies, which writes it into their status.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fleet.gpu_policy import FIELDS, POLICIES_MAX, GpuPolicy, Level, by_namespace, carefulness, decisions, own_labels
from fleet.inventory import Grant, WorkloadId


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A workload that policies may speak of, with the labels of its pods as they are without policies."""

    workload: WorkloadId
    namespace: str
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """A field of a policy that decides, and for how many workloads."""

    field: str
    value: str
    workloads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What becomes of one policy.

    Attributes:
        workloads: how many it speaks of.
        rejected: why it counts as a wish to leave its pods alone; empty where it counts as it is written.
        conflicts: a clause for each other policy of its level that says otherwise of a field.
        overruled: a clause for each field by which it would loosen what the cluster's policies ask for.
    """

    workloads: int
    in_force: tuple[InForce, ...]
    rejected: str
    conflicts: tuple[str, ...]
    overruled: tuple[str, ...]


def subjects_of(grants: Iterable[Grant]) -> tuple[Subject, ...]:
    """The workloads of some grants; of a workload whose pods differ in their labels each way is one subject."""
    return tuple(
        dict.fromkeys(
            Subject(
                workload=grant.workload_id,
                namespace=grant.namespace,
                labels=tuple(sorted(own_labels(dict(grant.labels)).items())),
            )
            for grant in grants
        )
    )


def standings(policies: Sequence[GpuPolicy], subjects: Iterable[Subject]) -> dict[str, Standing]:
    """What becomes of each policy that is read (`fleet.gpu_policy.by_namespace`), by its title.

    Args:
        policies: all of the cluster; titles are unique, as names are.
    """
    by_space = by_namespace(policies)
    known = list(dict.fromkeys(subjects))
    spoken: dict[str, set[Subject]] = defaultdict(set)
    decided: dict[str, dict[tuple[str, str], set[WorkloadId]]] = defaultdict(lambda: defaultdict(set))
    for subject in known:
        labels = dict(subject.labels)
        speaking = [*by_space.get("", []), *by_space.get(subject.namespace, [])]
        for policy in speaking:
            if policy.speaks_of(subject.namespace, labels):
                spoken[policy.title].add(subject)
        for label, said in decisions(speaking, subject.namespace, labels, labels).items():
            if said.by:
                decided[said.by][label, said.value].add(subject.workload)
    clashes = {space: _clashes(own, spoken) for space, own in by_space.items() if len(own) <= POLICIES_MAX}
    floor = by_space.get("", [])
    return {
        policy.title: Standing(
            workloads=len({subject.workload for subject in spoken[policy.title]}),
            in_force=tuple(
                InForce(field=FIELDS[label], value=value, workloads=len(names))
                for (label, value), names in sorted(decided[policy.title].items())
            ),
            rejected=_rejected(policy, is_read=len(own) <= POLICIES_MAX),
            conflicts=tuple(clashes.get(policy.namespace, {}).get(policy.title, ())),
            overruled=tuple(_overruled(policy, floor)) if policy.namespace else (),
        )
        for own in by_space.values()
        for policy in own
    }


def _rejected(policy: GpuPolicy, *, is_read: bool) -> str:
    if not is_read:
        # How many more there are is not said: each further one would change what all others say.
        whose = f"namespace {policy.namespace}" if policy.namespace else "the cluster"
        return f"{whose} has more policies than the limit of {POLICIES_MAX}: its pods are left alone"
    return f"{policy.fault}; the pods that it speaks of are left alone" if policy.fault else ""


def _clashes(policies: Sequence[GpuPolicy], spoken: Mapping[str, set[Subject]]) -> dict[str, list[str]]:
    """What policies of one namespace, or of the cluster, say against each other at the same level."""
    found: dict[str, list[str]] = defaultdict(list)
    ordered = sorted(policies, key=lambda policy: policy.name)
    for place, one in enumerate(ordered):
        for other in ordered[place + 1 :]:
            if one.level is not other.level or not _meet(one, other, spoken):
                continue
            for label, mine, theirs in _differences(one, other):
                holds = max((mine, theirs), key=lambda value: carefulness(label, value))
                for here, there, value in ((one, other, theirs), (other, one, mine)):
                    found[here.title].append(f"{FIELDS[label]}: {there.title} says {value}, and {holds} holds")
    return found


def _meet(one: GpuPolicy, other: GpuPolicy, spoken: Mapping[str, set[Subject]]) -> bool:
    """Whether two policies of one level speak of the same pods."""
    if one.level is not Level.WORKLOAD or one.selector == other.selector:
        return True
    return not spoken.get(one.title, set()).isdisjoint(spoken.get(other.title, set()))


def _differences(one: GpuPolicy, other: GpuPolicy) -> Iterator[tuple[str, str, str]]:
    theirs = dict(other.wishes)
    for label, value in one.wishes:
        if label in theirs and theirs[label] != value:
            yield label, value, theirs[label]


def _overruled(policy: GpuPolicy, floor: Sequence[GpuPolicy]) -> Iterator[str]:
    least = decisions(floor, "", {}, {})
    for label, value in policy.wishes:
        said = least.get(label)
        if said is not None and carefulness(label, value) < carefulness(label, said.value):
            yield f"{FIELDS[label]}: {said.by} asks for {said.value}, and no policy of a namespace loosens that"
