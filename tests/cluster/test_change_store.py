"""What plans change lies in the cluster: any machine reads it, one of two writers is late, nobody edits it unseen."""

from __future__ import annotations

import urllib.error
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from enforcer.backend import Move
from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.kubernetes.custom_resources import OBJECT_BYTES_MAX
from enforcer.record.journal import FieldIntent, Journal, ObjectIntent, StageRecord, StageState
from enforcer.record.ledger import Ledger
from enforcer.record.shared_ledger import SharedLedger
from fleet.errors import Corrupt, Refused, Unavailable
from fleet.inventory import WorkloadId
from tests.cluster.api import Api, Manifest
from tests.cluster.workloads import until
from tests.control_plane import ControlPlane, User

pytestmark = pytest.mark.cluster

NOW = datetime(2026, 3, 2, 12, 0, 0, 250_000, UTC)
PATH = "/apis/gputide.io/v1alpha1/gpuchanges"
OWN = "berlin"
_numbers = count(1)


@pytest.fixture
def machine(writer_kubeconfig: Path, tmp_path: Path) -> Iterator[Callable[[str], SharedLedger]]:
    """Return a maker of machines: each has a folder of its own, of the name given, and the writer's rights."""
    opened: list[KubernetesCluster] = []

    def make(name: str, cluster: str = OWN) -> SharedLedger:
        place = ClusterPlace(kubeconfig=writer_kubeconfig, requests_per_second=500.0, requests_burst=500)
        opened.append(KubernetesCluster(place))
        return SharedLedger(tmp_path / name / "ledger.jsonl", opened[-1].changes, cluster)

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def plan(api: Api) -> Iterator[str]:
    """Return the id of a plan that nobody else has; its objects are gone afterwards."""
    plan_id = f"{next(_numbers):012x}"
    yield plan_id
    for name in names(api, plan_id):
        api.delete(f"{PATH}/{name}")


def names(api: Api, plan_id: str) -> list[str]:
    found = api.ask("GET", PATH)["items"]
    return sorted(str(one["metadata"]["name"]) for one in found if one["spec"]["plan"] == plan_id)


def changes(api: Api, plan_id: str) -> Manifest:
    return api.ask("GET", f"{PATH}/plan-{plan_id}-1")


def an_intent() -> ObjectIntent:
    field = FieldIntent(field="spec.replicas", old="2", new="1")
    return ObjectIntent(
        kind="Deployment", namespace="team", name="web", resource_version="7", recommendation="r", fields=(field,)
    )


def a_move() -> Move:
    workload = WorkloadId("team/Deployment/web")
    return Move(namespace="team", pod="web-1", workload=workload, old=(), new=(), recommendation="r")


def begin(ledger: Ledger, plan_id: str, *, cluster: str = OWN, stages: int = 2) -> Journal:
    """A run that has begun its first stage."""
    journal = Journal(ledger)
    journal.write(plan_id, NOW, "begin", stages=list(range(1, stages + 1)), by="ann", cards_granted=[], cluster=cluster)
    record = StageRecord(plan_id=plan_id, stage=1, objects=[an_intent()], moves=[a_move()], canary=("a",))
    journal.begin_stage(record, NOW)
    return journal


def test_another_machine_with_an_empty_folder_reads_what_this_one_did_and_goes_on(
    api: Api, machine: Callable[[str], SharedLedger], plan: str
) -> None:
    here, there = machine("here"), machine("there")
    begin(here, plan)
    (run,) = Journal(there).runs(plan)
    assert (run.by, run.is_open, run.records[1].objects) == ("ann", True, [an_intent()])
    Journal(there).write(plan, NOW, "promoted", stage=1)
    Journal(there).write(plan, NOW, "end")
    (run,) = Journal(here).runs(plan)
    assert (run.is_open, run.records[1].state) == (False, StageState.PROMOTED)
    assert [entry.at for entry in here.entries(plan)] == [NOW] * len(here.entries(plan))
    assert here.verify() == there.verify() == len(here.entries())
    assert [entry.event for entry in here.entries(plan)][-2:] == ["promoted", "end"]
    assert changes(api, plan)["status"] == {"state": "Applied", "stages": "1", "pods": 1, "by": "ann"}


def test_list_of_a_cluster_shows_state_stages_and_who_asked(
    api: Api, machine: Callable[[str], SharedLedger], plan: str
) -> None:
    begin(machine("here"), plan)
    accept = "application/json;as=Table;v=v1;g=meta.k8s.io"
    table: Any = api.ask("GET", PATH, accept=accept)
    titles = [column["name"] for column in table["columnDefinitions"]]
    (row,) = [row["cells"] for row in table["rows"] if row["object"]["metadata"]["name"] == f"plan-{plan}-1"]
    shown = dict(zip(titles, row, strict=True))
    assert {key: shown[key] for key in ("Plan", "State", "By")} == {"Plan": plan, "State": "Applying", "By": "ann"}


def test_of_two_machines_that_write_at_once_one_is_late_and_has_written_nothing(
    machine: Callable[[str], SharedLedger], plan: str
) -> None:
    here, there = machine("here"), machine("there")
    begin(here, plan)
    assert len(there.entries(plan)) == len(here.entries(plan))
    store = there._store  # what `there` knows of the cluster, without the look before each write
    here.append([("evict", {"stage": 1, "pod": "a/b"})], plan_id=plan, at=NOW)
    known = here.entries(plan)
    with pytest.raises(Unavailable, match=f"plan {plan} .*another enforcer"):
        store.append(plan, len(known) - 1, [], {})
    assert there.entries(plan)[-1].event == "evict"
    assert len(there.entries(plan)) == len(known)


def test_entry_that_somebody_edited_is_found_out(api: Api, machine: Callable[[str], SharedLedger], plan: str) -> None:
    begin(machine("here"), plan)
    found = changes(api, plan)
    found["spec"]["entries"][1]["content"] = '{"stage":7}'
    api.ask("PUT", f"{PATH}/plan-{plan}-1", found)
    with pytest.raises(Corrupt, match=f"GpuChange objects of plan {plan}: entry 2 was edited"):
        machine("there").entries(plan)


def test_api_server_takes_no_object_with_fewer_entries_or_of_another_plan(
    api: Api, machine: Callable[[str], SharedLedger], plan: str
) -> None:
    begin(machine("here"), plan)
    whole = changes(api, plan)
    for spoilt in (
        {**whole, "spec": {**whole["spec"], "entries": whole["spec"]["entries"][:-1]}},
        {**whole, "spec": {**whole["spec"], "plan": "f" * 12}},
    ):
        with pytest.raises(urllib.error.HTTPError) as refused:
            api.ask("PUT", f"{PATH}/plan-{plan}-1", spoilt)
        assert refused.value.code == 422


def test_large_plan_lies_in_several_objects_each_below_a_mebibyte(
    api: Api, machine: Callable[[str], SharedLedger], plan: str
) -> None:
    here = machine("here")
    begin(here, plan)
    # Digits that no packing makes much smaller.
    texts = [f"{number:x}" * 1500 for number in range(10**9, 10**9 + 400)]
    here.append([("evict", {"stage": 1, "pod": text}) for text in texts], plan_id=plan, at=NOW)
    here.append([("evict", {"stage": 1, "pod": "last"})], plan_id=plan, at=NOW)
    parts = [api.ask("GET", f"{PATH}/{name}") for name in names(api, plan)]
    assert len(parts) > 2
    assert max(len(str(part)) for part in parts) < 2**20
    assert [entry.content for entry in machine("there").entries(plan)] == [e.content for e in here.entries(plan)]


def test_entry_that_fits_no_object_is_refused_and_nothing_is_kept_of_it(
    machine: Callable[[str], SharedLedger], plan: str
) -> None:
    here = machine("here")
    begin(here, plan)
    before = here.entries(plan)
    # A quarter of hexadecimal digits is gained by packing.
    noise = "".join(f"{pow(3, number, 2**127 - 1):x}" for number in range(1, OBJECT_BYTES_MAX // 12))
    with pytest.raises(
        Refused, match=rf"'evict' in the cluster: it has \d+ bytes, and an object holds {OBJECT_BYTES_MAX}"
    ):
        here.append([("evict", {"stage": 1, "pod": noise})], plan_id=plan, at=NOW)
    assert here.entries(plan) == before


def test_cluster_that_lost_a_plan_in_force_gets_it_back_from_a_folder_and_others_are_left_out(
    api: Api, machine: Callable[[str], SharedLedger], plan: str
) -> None:
    here = machine("here")
    begin(here, plan)
    known = here.entries(plan)
    foreign = "abcdef012345"
    begin(Ledger(here._path), foreign, cluster="paris")
    api.delete(f"{PATH}/plan-{plan}-1")
    assert here.entries(plan) == known
    assert machine("there").entries(plan)[-1].event == "stage"
    assert names(api, foreign) == []


def test_folder_and_cluster_that_tell_different_stories_are_not_gone_on_with(
    machine: Callable[[str], SharedLedger], plan: str
) -> None:
    begin(machine("here"), plan)
    there = machine("there")
    begin(Ledger(there._path), plan, stages=3)
    with pytest.raises(Corrupt, match=f"entry 1 of plan {plan} in ledger"):
        there.entries(plan)
    assert there.entries()


def test_cluster_without_the_kind_is_refused_with_what_mends_it(
    api: Api, machine: Callable[[str], SharedLedger], plan: str
) -> None:
    definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpuchanges.gputide.io"
    kept = api.ask("GET", definition)
    api.delete(definition)
    try:
        _until_not_served(api)
        with pytest.raises(Refused, match=r"does not know gpuchanges\.gputide\.io; kubectl apply -f docs/custom-res"):
            machine("here").entries(plan)
    finally:
        del kept["metadata"]["resourceVersion"], kept["metadata"]["uid"], kept["status"]
        _until_made(api, kept)


def test_reader_may_not_write_changes(control_plane: ControlPlane, tmp_path: Path, writer_kubeconfig: Path) -> None:
    assert writer_kubeconfig.exists()
    cluster = KubernetesCluster(ClusterPlace(kubeconfig=control_plane.kubeconfig(User.STRANGER)))
    try:
        ledger = SharedLedger(tmp_path / "ledger.jsonl", cluster.changes, OWN)
        with pytest.raises(Exception, match=r"RBAC lacks verb list on resource gpuchanges\.gputide\.io"):
            ledger.entries()
    finally:
        cluster.close()


def _until_not_served(api: Api) -> None:
    until(lambda: api.status("GET", PATH) == 404, "gpuchanges are gone")


def _until_made(api: Api, definition: Manifest) -> None:
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

    def made() -> bool:
        api.create(path, definition)
        return api.status("GET", PATH) == 200

    until(made, "gpuchanges are served")
