"""Judges what a plan left behind in a simulated cluster: each stage fully applied or fully restored, nothing between.

Shared by the bar of faults and its test; `live_faults` judges a real cluster in the same words. It compares whole
objects and seats with those of a cluster that nobody touched and of one that the same plan was applied to without any
fault, so it asks none of the code that it judges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from enforcer.cluster import DELETION_COST_ANNOTATION
from enforcer.manifest import Manifest, set_field
from enforcer.record.journal import Journal, StageState
from enforcer.record.ledger import Ledger
from enforcer.simulated.cluster import SeatState, SimulatedCluster

APPLIED, RESTORED, ELSEWHERE, GONE, HALF = "applied", "restored", "restored*", "gone", "HALF"

_OWNER_KINDS = ("Deployment", "StatefulSet", "DaemonSet", "Job", "Notebook")
_BESIDE = "revisionHistoryLimit"
"""Field that those who edit beside the plan set: it is theirs, so it is not compared."""

Places = Counter[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """A cluster as it stands.

    Attributes:
        owners: workload to its object, without what the API server and controllers count.
        places: workload to where its pods sit with which grant, or their states; replicas are alike.
        faults: pods that are not ready, too many, or still marked, one sentence each.
    """

    owners: Mapping[str, Manifest]
    places: Mapping[str, Places]
    faults: tuple[str, ...]

    @classmethod
    def of(cls, cluster: SimulatedCluster, edited: frozenset[str] = frozenset()) -> Sight:
        """Look at a cluster.

        Args:
            cluster: the cluster.
            edited: workloads whose pods roll by what somebody else set.
        """
        owners = {
            f"{owner['metadata']['namespace']}/{kind}/{owner['metadata']['name']}": _as_written(owner)
            for kind in _OWNER_KINDS
            for owner in cluster.list_objects(kind)
        }
        pods = {(pod["metadata"]["namespace"], pod["metadata"]["name"]): pod for pod in cluster.list_objects("Pod")}
        places: dict[str, Places] = {}
        faults = []
        for seat in cluster.seats():
            is_seated = seat.state is SeatState.RUNNING
            place = f"{seat.card} {seat.framebuffer_granted_bytes} B {seat.compute_granted_ratio:g} {seat.priority}"
            places.setdefault(str(seat.workload), Counter())[place if is_seated else seat.state.value] += 1
            pod = pods.pop((seat.namespace, seat.name), None)
            if pod is None:
                continue
            statuses = pod["status"]["containerStatuses"]
            is_ready = bool(statuses) and all(entry["ready"] for entry in statuses)
            if not is_ready and str(seat.workload) not in edited:
                faults.append(f"{seat.namespace}/{seat.name} is not ready")
            if DELETION_COST_ANNOTATION in pod["metadata"].get("annotations", {}):
                faults.append(f"{seat.namespace}/{seat.name} is still marked with {DELETION_COST_ANNOTATION}")
        starts = tuple(f"{workload.split('/')[0]}/{workload.split('/')[2]}-" for workload in edited)
        left = [f"{namespace}/{name}" for namespace, name in sorted(pods)]
        faults += [f"{pod} is one too many" for pod in left if not starts or not pod.startswith(starts)]
        return cls(owners=owners, places=places, faults=tuple(faults))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spared:
    """What a fault itself did, so that it does not count as ours.

    Attributes:
        gone: workloads that somebody deleted.
        edited: workload and field that somebody set to a value of their own; its pods sit by that value.
        is_disturbed: True where pods were made anew by somebody else, so that others found their cards taken.
    """

    gone: frozenset[str] = frozenset()
    edited: tuple[tuple[str, str], ...] = ()
    is_disturbed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How a case ended.

    Attributes:
        ends: per stage `applied`, `restored`, `restored*` (on other cards, for what somebody edited took the old ones),
            `gone` (somebody deleted all of it) or `HALF`.
        complaints: what is not whole, one sentence each; empty where all is.
    """

    ends: tuple[str, ...]
    complaints: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WholenessJudge:
    """Says whether a cluster is whole.

    Attributes:
        before: a cluster that nobody touched.
        after: one that the plan was applied to.
        stages: stage to the workloads that it changes.
    """

    before: Sight
    after: Sight
    stages: Mapping[int, tuple[str, ...]]

    def judge(self, cluster: SimulatedCluster, ledger: Ledger, plan_id: str, spared: Spared) -> Verdict:
        """Judge a cluster and its ledger.

        Args:
            cluster: as it was left.
            ledger: what was written down.
            plan_id: plan.
            spared: what the fault did.

        Raises:
            Corrupt: the ledger does not verify.
        """
        sight = Sight.of(cluster, frozenset(workload for workload, _ in spared.edited))
        complaints = list(sight.faults)
        ends = []
        for stage, workloads in self.stages.items():
            end, why = self._stage(sight, workloads, spared)
            ends.append(end)
            complaints += [f"stage {stage}: {sentence}" for sentence in why]
        planned = {workload for workloads in self.stages.values() for workload in workloads}
        for workload in self.before.owners.keys() - planned:
            if not self._is(self.before, sight, workload, spared):
                complaints.append(f"{workload} is not of the plan and was changed")
        complaints += ledger_complaints(ledger, plan_id, dict(zip(self.stages, ends, strict=True)))
        return Verdict(ends=tuple(ends), complaints=tuple(complaints))

    def _stage(self, sight: Sight, workloads: tuple[str, ...], spared: Spared) -> tuple[str, list[str]]:
        left = [workload for workload in workloads if workload not in spared.gone]
        if not left:
            return GONE, []
        for end, wanted in ((APPLIED, self.after), (RESTORED, self.before)):
            if all(self._is(wanted, sight, workload, spared) for workload in left):
                return end, []
        if spared.is_disturbed and all(
            self._is(self.before, sight, workload, spared, by_grant=True) for workload in left
        ):
            return ELSEWHERE, []
        said = [
            f"{workload} is {_end_of(self._is(self.after, sight, workload, spared))}"
            if self._is(self.after, sight, workload, spared) or self._is(self.before, sight, workload, spared)
            else f"{workload} is neither: {_difference(self.before, self.after, sight, workload)}"
            for workload in left
        ]
        return HALF, said

    def _is(self, wanted: Sight, sight: Sight, workload: str, spared: Spared, *, by_grant: bool = False) -> bool:
        """Whether a workload's object and pods are as in another sight, apart from what somebody edited."""
        found = sight.owners.get(workload)
        if found is None:
            return False
        edited = [path for name, path in spared.edited if name == workload]
        is_same = _without(found, edited) == _without(wanted.owners[workload], edited)
        places, planned = sight.places.get(workload, Counter()), wanted.places[workload]
        if by_grant:
            places, planned = _grants(places), _grants(planned)
        return is_same and (bool(edited) or places == planned)


def ledger_complaints(ledger: Ledger, plan_id: str, ends: Mapping[int, str]) -> list[str]:
    """Where the ledger is open still, or says another end than the cluster shows.

    Args:
        ledger: what was written down.
        plan_id: plan.
        ends: stage to how it ended, in the words of `Verdict`.

    Raises:
        Corrupt: the ledger does not verify.
    """
    ledger.verify()
    journal = Journal(ledger)
    runs = journal.runs(plan_id)
    found = ["the ledger has an open run"] if any(run.is_open for run in runs) else []
    found += ["the ledger has an open undo"] if journal.open_undos() else []
    last = {number: record.state for run in runs for number, record in run.records.items()}
    for stage, end in ends.items():
        is_kept = last.get(stage) is StageState.PROMOTED
        if end in (APPLIED, RESTORED, ELSEWHERE) and is_kept != (end == APPLIED):
            found.append(f"stage {stage} is {end}, and the ledger says {last.get(stage, 'never begun')}")
    return found


def _grants(places: Places) -> Places:
    """What pods are granted, wherever they sit."""
    found: Places = Counter()
    for place, count in places.items():
        found[place.partition(" ")[2] or place] += count
    return found


def _as_written(owner: Manifest) -> Manifest:
    for name in ("resourceVersion", "generation"):
        owner["metadata"].pop(name, None)
    owner["spec"].pop(_BESIDE, None)
    owner.pop("status", None)
    return owner


def _without(manifest: Manifest, fields: list[str]) -> Any:
    if not fields:
        return manifest
    found = _copied(manifest)
    for path in fields:
        set_field(found, path, None)
    return found


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    return [_copied(part) for part in value] if isinstance(value, list) else value


def _end_of(is_applied: object) -> str:
    return APPLIED if is_applied else RESTORED


def _difference(before: Sight, after: Sight, sight: Sight, workload: str) -> str:
    found = sight.owners.get(workload)
    if found is None:
        return "it is gone"
    if found not in (before.owners[workload], after.owners[workload]):
        return f"its object stands between: {found['metadata'].get('annotations')}, {found['spec']}"
    return f"its pods sit {dict(sight.places.get(workload, {}))}, planned {dict(after.places[workload])}"
