"""A pod belongs to the topmost owner that is known, whatever its kind, and to itself where nobody owns it."""

import itertools

import pytest

from exporter.allocation.records import OwnerLinkRecord
from exporter.attribution.attributor import WorkloadName, workload_of


def link(kind: str, name: str) -> OwnerLinkRecord:
    return OwnerLinkRecord(uid=f"{kind}/{name}", kind=kind, name=name)


def owned(*chain: OwnerLinkRecord) -> dict[str, OwnerLinkRecord]:
    """Each object of a chain is owned by the next."""
    return {lower.uid: upper for lower, upper in itertools.pairwise(chain)}


RS, DEPLOYMENT = link("ReplicaSet", "web-7d4b9c"), link("Deployment", "web")
JOB, CRON = link("Job", "nightly-29000000"), link("CronJob", "nightly")


@pytest.mark.parametrize(
    ("chain", "workload"),
    [
        ([RS, DEPLOYMENT], WorkloadName(kind="Deployment", name="web")),
        ([JOB, CRON], WorkloadName(kind="CronJob", name="nightly")),
        ([link("StatefulSet", "db")], WorkloadName(kind="StatefulSet", name="db")),
        ([link("PyTorchJob", "llm")], WorkloadName(kind="PyTorchJob", name="llm")),
        ([link("Job", "j"), link("JobSet", "s"), link("Trial", "t")], WorkloadName(kind="Trial", name="t")),
        ([link("Node", "node-1")], WorkloadName(kind="Pod", name="p")),
        ([], WorkloadName(kind="Pod", name="p")),
    ],
)
def test_the_topmost_known_owner_is_the_workload(chain: list[OwnerLinkRecord], workload: WorkloadName) -> None:
    assert workload_of("p", chain[0] if chain else None, {}, owned(*chain)) == workload


@pytest.mark.parametrize(
    ("labels", "kind"),
    [({"pod-template-hash": "7d4b9c"}, "Deployment"), ({"rollouts-pod-template-hash": "7d4b9c"}, "Rollout")],
)
def test_a_replica_set_that_may_not_be_read_gives_its_maker_away_by_the_hash(labels: dict[str, str], kind: str) -> None:
    assert workload_of("p", RS, labels, {}) == WorkloadName(kind=kind, name="web")


@pytest.mark.parametrize("labels", [{}, {"pod-template-hash": "other"}, {"pod-template-hash": ""}])
def test_a_replica_set_of_nobodys_stays_one(labels: dict[str, str]) -> None:
    assert workload_of("p", RS, labels, {}) == WorkloadName(kind="ReplicaSet", name="web-7d4b9c")


def test_a_name_that_is_nothing_but_the_hash_is_left_alone() -> None:
    bare = link("ReplicaSet", "-7d4b9c")
    assert workload_of("p", bare, {"pod-template-hash": "7d4b9c"}, {}).kind == "ReplicaSet"


def test_owners_in_a_circle_end_somewhere() -> None:
    a, b = link("A", "a"), link("B", "b")
    assert workload_of("p", a, {}, {a.uid: b, b.uid: a}) == WorkloadName(kind="B", name="b")


def test_a_chain_without_end_is_cut() -> None:
    chain = [link("Link", str(number)) for number in range(100)]
    assert workload_of("p", chain[0], {}, owned(*chain)).name == "15"
