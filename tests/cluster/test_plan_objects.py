"""Plans lie in the cluster: any machine reads them, nobody edits them or approves in another's name."""

from __future__ import annotations

import time
import urllib.error
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.kubernetes.plan_objects import PROPOSALS_MAX
from enforcer.record.fingerprint import fingerprint_of
from enforcer.record.journal import StageState
from enforcer.record.plan_status import ConditionType, plan_status
from enforcer.record.plan_store import PlanStore, Wish, WishChange
from enforcer.record.shared_ledger import stored_runs
from enforcer.record.shared_plans import SharedPlans
from enforcer.safety.guard import Guard, GuardPolicy
from enforcer.snapshot import take_snapshot
from fleet.decisions import Plan
from fleet.documents import seal_plan
from fleet.errors import Corrupt, GputideError, Misconfigured, Refused
from fleet.inventory import WorkloadId
from tests.cluster.api import Api, Manifest
from tests.cluster.workloads import until
from tests.contracts.plans import PlanStoreContract
from tests.control_plane import ControlPlane, User
from tests.enforcer.builders import NOW, a_cluster, standard_plan
from tests.enforcer.test_plan_status import a_run

pytestmark = pytest.mark.cluster

PATH = "/apis/gputide.io/v1alpha1"
HEAD = {"apiVersion": "gputide.io/v1alpha1", "kind": "GpuPlan"}
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
Machine = Callable[..., SharedPlans]
_numbers = count(1)


@pytest.fixture
def machine(control_plane: ControlPlane, writer_kubeconfig: Path, tmp_path: Path) -> Iterator[Machine]:
    """Return a maker of machines: each has a folder of its own, of the name given, and an administrator's rights."""
    opened: list[KubernetesCluster] = []

    def make(name: str, kubeconfig: Path | None = None) -> SharedPlans:
        chosen = kubeconfig or control_plane.kubeconfig()
        place = ClusterPlace(kubeconfig=chosen, requests_per_second=500.0, requests_burst=500)
        opened.append(KubernetesCluster(place))
        made = SharedPlans(tmp_path / name, opened[-1].plans, "c1", partial(stored_runs, opened[-1].changes))
        made.pull()
        return made

    assert writer_kubeconfig.exists()
    yield make
    for one in opened:
        one.close()


@pytest.fixture
def plan(api: Api) -> Iterator[Plan]:
    """Return a plan that nobody else has; it is gone afterwards."""
    made = seal_plan(replace(standard_plan(), expires_at=NOW + timedelta(days=next(_numbers))))
    yield made
    if api.has(f"{PATH}/gpuplans/plan-{made.plan_id}"):
        api.delete(f"{PATH}/gpuplans/plan-{made.plan_id}")


class TestSharedPlans(PlanStoreContract):
    user = User.ADMIN.value

    @pytest.fixture
    def store(self, machine: Machine) -> PlanStore:
        return machine("one")

    @pytest.fixture
    def reopened(self, machine: Machine) -> Callable[[], PlanStore]:
        return lambda: machine(f"again-{next(_numbers)}")


def head(api: Api, plan: Plan) -> Manifest:
    return api.ask("GET", f"{PATH}/gpuplans/plan-{plan.plan_id}")


def parts(api: Api, plan: Plan) -> list[Manifest]:
    return [one for one in api.ask("GET", f"{PATH}/gpuplanparts")["items"] if one["spec"]["plan"] == plan.plan_id]


def test_machine_with_an_empty_folder_has_the_plan_and_what_it_was_made_for(
    machine: Machine, plan: Plan, tmp_path: Path
) -> None:
    fingerprint = fingerprint_of(take_snapshot(a_cluster(tmp_path)))
    machine("here").add(plan, fingerprint)
    there = machine("there")
    assert there.get(plan.plan_id) == plan
    assert there.fingerprint(plan.plan_id) == fingerprint


def test_list_of_a_cluster_shows_what_a_plan_brings_and_what_is_wanted(api: Api, machine: Machine, plan: Plan) -> None:
    machine("here").add(plan)
    machine("here").change_wish(plan.plan_id, WishChange(add=frozenset({1}), by="ann"))
    table: Any = api.ask("GET", f"{PATH}/gpuplans", accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    titles = [column["name"] for column in table["columnDefinitions"]]
    (row,) = [one["cells"] for one in table["rows"] if one["object"]["metadata"]["name"] == f"plan-{plan.plan_id}"]
    shown = dict(zip(titles, row, strict=True))
    assert {key: shown[key] for key in ("Cluster", "Wanted", "Cards Freed", "Per Week")} == {
        "Cluster": "c1", "Wanted": "[1]", "Cards Freed": 4, "Per Week": "$100",
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [{"cardsFreed": 99}, {"stages": []}, {"sha256": "0" * 64}, {"parts": 7}, {"plan": "f" * 12}, {"apply": [9]}],
)
def test_api_server_takes_no_other_change_of_a_plan_than_of_what_is_wanted(
    api: Api, machine: Machine, plan: Plan, change: dict[str, Any]
) -> None:
    machine("here").add(plan)
    path = f"{PATH}/gpuplans/plan-{plan.plan_id}"
    with pytest.raises(urllib.error.HTTPError) as refused:
        api.patch(path, {"spec": change})
    assert refused.value.code == 422
    api.patch(path, {"spec": {"apply": [2]}})
    assert machine("there").wish(plan.plan_id).stages == frozenset({2})


def test_object_by_another_name_than_its_plans_is_refused(api: Api, machine: Machine, plan: Plan) -> None:
    machine("here").add(plan)
    first = parts(api, plan)[0]
    for found, kind, spec in (
        (head(api, plan), "gpuplans", {"apply": [2]}),
        (first, "gpuplanparts", {"part": 2}),
        (first, "gpuplanparts", {"part": 201}),
    ):
        hostile = {**found, "metadata": {"name": "zz"}, "spec": {**found["spec"], **spec}}
        with pytest.raises(urllib.error.HTTPError) as refused:
            api.ask("POST", f"{PATH}/{kind}", hostile)
        assert refused.value.code == 422


def test_part_of_a_plan_is_never_changed_and_goes_with_it(api: Api, machine: Machine, plan: Plan) -> None:
    machine("here").add(plan)
    path = f"{PATH}/gpuplanparts/plan-{plan.plan_id}-1"
    with pytest.raises(urllib.error.HTTPError) as refused:
        api.patch(path, {"spec": {"data": "AAAA"}})
    assert refused.value.code == 422
    api.delete(f"{PATH}/gpuplans/plan-{plan.plan_id}")
    until(lambda: not parts(api, plan), "its parts are gone", 60.0)


def test_large_plan_lies_in_parts_below_a_mebibyte_each(api: Api, machine: Machine, plan: Plan) -> None:
    # Digits that no packing makes much smaller.
    noise = "".join(f"{pow(3, number, 2**127 - 1):x}" for number in range(1, 80_000))
    large = seal_plan(replace(plan, settings=(("noise", noise),)))
    machine("here").add(large)
    try:
        found = parts(api, large)
        assert len(found) > 1
        assert max(len(str(part)) for part in found) < 2**20
        assert machine("there").get(large.plan_id) == large
    finally:
        api.delete(f"{PATH}/gpuplans/plan-{large.plan_id}")


def test_plan_whose_part_is_missing_is_not_trusted_until_its_maker_stores_it_again_and_hides_no_other(
    api: Api, machine: Machine, plan: Plan
) -> None:
    here = machine("here")
    here.add(plan)
    other = seal_plan(replace(plan, created_at=plan.created_at + timedelta(seconds=1)))
    here.add(other)
    api.delete(f"{PATH}/gpuplanparts/plan-{plan.plan_id}-1")
    there = machine("there")
    assert there.get(other.plan_id) == other
    with pytest.raises(Corrupt, match=f"GpuPlanPart plan-{plan.plan_id}-1 is missing"):
        there.get(plan.plan_id)
    here.add(plan)
    assert machine("there").get(plan.plan_id) == plan


def test_approval_in_another_name_is_refused_by_the_admission_policy(api: Api, machine: Machine, plan: Plan) -> None:
    machine("here").add(plan)
    manifest = {
        "apiVersion": "gputide.io/v1alpha1", "kind": "GpuApproval",
        "metadata": {"name": f"plan-{plan.plan_id}-forged"},
        "spec": {"plan": plan.plan_id, "stages": [1], "approvedBy": "bob"},
    }  # fmt: skip

    def refusal() -> str:
        try:
            api.ask("POST", f"{PATH}/gpuapprovals", manifest)
        except urllib.error.HTTPError as refused:
            return f"{refused.code} {refused.read().decode()}"
        api.delete(f"{PATH}/gpuapprovals/plan-{plan.plan_id}-forged")
        return ""

    until(lambda: bool(refusal()), "the policy is in force", 60.0)
    assert refusal().startswith("403 ")
    assert "spec.approvedBy must be admin" in refusal()


def test_approval_counts_only_if_the_admission_policy_stood_when_it_was_made(
    api: Api, machine: Machine, plan: Plan
) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings"
    here = machine("here")
    here.add(plan)
    here.approve(plan, [1], by="", at=NOW)
    assert [given.by for given in machine("there").approvals(plan.plan_id)] == ["admin"]
    binding = api.ask("GET", f"{path}/gputide-approvals")
    forged = {"apiVersion": "gputide.io/v1alpha1", "kind": "GpuApproval",
              "metadata": {"name": f"forged-{plan.plan_id}"},
              "spec": {"plan": plan.plan_id, "stages": [1, 2], "approvedBy": "bob"}}  # fmt: skip

    def is_forged() -> bool:
        try:
            return bool(api.ask("POST", f"{PATH}/gpuapprovals", forged))
        except urllib.error.HTTPError:
            return False

    api.delete(f"{path}/gputide-approvals")
    try:
        until(is_forged, "nobody checks names any more", 60.0)
        assert machine("now").approvals(plan.plan_id) == ()
        with pytest.raises(Refused, match="no admission policy held approvals"):
            machine("now").approve(plan, [1], by="", at=NOW)
        time.sleep(1.1)  # the server's times are whole seconds
    finally:
        del binding["metadata"]["resourceVersion"], binding["metadata"]["uid"]
        api.create(path, binding)
    again = machine("again")
    assert again.approvals(plan.plan_id) == ()
    again.report(plan.plan_id, plan_status([1, 2], (), (), Wish()))
    (said,) = [one for one in head(api, plan)["status"]["conditions"] if one["type"] == ConditionType.APPROVED]
    assert "approvals of admin, bob do not count" in said["message"]
    again.approve(plan, [1], by="", at=NOW)
    assert [(given.by, given.stages) for given in again.approvals(plan.plan_id)] == [("admin", (1,))]
    api.delete(f"{PATH}/gpuapprovals/forged-{plan.plan_id}")


def approver_binding(name: str, subject: dict[str, str]) -> Manifest:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gputide-approver"},
        "subjects": [subject],
    }  # fmt: skip


def test_service_account_approves_nothing_though_it_may_make_approvals(
    api: Api, machine: Machine, plan: Plan, control_plane: ControlPlane
) -> None:
    machine("here").add(plan)
    api.create(ROLES, approver_binding("robot", {"kind": "ServiceAccount", "name": "default", "namespace": "gputide"}))
    robot = machine("robot", control_plane.kubeconfig_of_token("robot", api.token("gputide", "default")))

    def refusal() -> str:
        with pytest.raises(GputideError) as refused:
            robot.approve(plan, [1], by="", at=NOW)
        return str(refused.value)

    try:
        until(lambda: "people approve, and no service account does" in refusal(), "the policy says so", 60.0)
    finally:
        api.delete(f"{ROLES}/robot")
    assert machine("there").approvals(plan.plan_id) == ()


def test_person_who_approves_twice_is_one_person(api: Api, machine: Machine, plan: Plan) -> None:
    here = machine("here")
    here.add(plan)
    here.approve(plan, [1], by="", at=NOW)
    again = {"apiVersion": "gputide.io/v1alpha1", "kind": "GpuApproval", "metadata": {"name": f"again-{plan.plan_id}"},
             "spec": {"plan": plan.plan_id, "stages": [1], "approvedBy": "admin"}}  # fmt: skip
    api.ask("POST", f"{PATH}/gpuapprovals", again)
    try:
        given = machine("there").approvals(plan.plan_id)
        assert [one.by for one in given] == ["admin", "admin"]
        guard = Guard(GuardPolicy(two_approvals_cards_min=1))
        with pytest.raises(Refused, match="two_approvals_cards_min"):
            guard.check_approvals(plan, [1], given, 4)
    finally:
        api.delete(f"{PATH}/gpuapprovals/again-{plan.plan_id}")


def test_content_of_another_plan_under_a_plans_name_is_refused(api: Api, machine: Machine, plan: Plan) -> None:
    """Somebody who may make plans stores one whose parts fit their own digest, and not the plan's id."""
    other = seal_plan(replace(plan, created_at=plan.created_at + timedelta(seconds=1)))
    machine("here").add(other)
    stolen, path = parts(api, other)[0]["spec"], f"{PATH}/gpuplans"
    forged = {**head(api, other)["spec"], "plan": plan.plan_id}
    api.create(path, {**HEAD, "metadata": {"name": f"plan-{plan.plan_id}"}, "spec": forged})
    api.create(f"{PATH}/gpuplanparts", {
        **HEAD, "kind": "GpuPlanPart", "metadata": {"name": f"plan-{plan.plan_id}-1"},
        "spec": {**stolen, "plan": plan.plan_id},
    })  # fmt: skip
    try:
        with pytest.raises(GputideError, match=other.plan_id[:12]):
            machine("there").get(plan.plan_id)
    finally:
        api.delete(f"{PATH}/gpuplanparts/plan-{plan.plan_id}-1")
        api.delete(f"{path}/plan-{other.plan_id}")


def test_approval_that_is_withdrawn_counts_no_more(api: Api, machine: Machine, plan: Plan) -> None:
    here = machine("here")
    here.add(plan)
    here.approve(plan, [1, 2], by="", at=NOW)
    (found,) = [one for one in api.ask("GET", f"{PATH}/gpuapprovals")["items"] if one["spec"]["plan"] == plan.plan_id]
    assert found["spec"]["approvedBy"] == "admin"
    api.delete(f"{PATH}/gpuapprovals/{found['metadata']['name']}")
    assert here.approvals(plan.plan_id) == ()
    assert here.approved_stages(plan.plan_id) == frozenset()


def test_web_app_approves_in_the_name_of_who_signed_in_and_only_for_those_who_may(
    api: Api, machine: Machine, plan: Plan
) -> None:
    here = machine("here")
    here.add(plan)
    with pytest.raises(GputideError, match='User "ann" cannot create resource "gpuapprovals"'):
        here.approve(plan, [1], by="ann", at=NOW)
    person = {"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}
    api.create(ROLES, approver_binding(f"ann-{plan.plan_id}", person))
    try:
        until(lambda: approves(here, plan, "ann"), "ann may approve", 60.0)
    finally:
        api.delete(f"{ROLES}/ann-{plan.plan_id}")
    assert [given.by for given in machine("there").approvals(plan.plan_id)] == ["ann"]


def approves(store: PlanStore, plan: Plan, by: str) -> bool:
    try:
        return store.approve(plan, [1], by=by, at=NOW).by == by
    except GputideError:
        return False


def test_writer_stores_plans_and_approves_none(machine: Machine, writer_kubeconfig: Path, plan: Plan) -> None:
    writer = machine("writer", writer_kubeconfig)
    writer.add(plan)
    with pytest.raises(Misconfigured, match=r"RBAC lacks verb create on resource gpuapprovals\.gputide\.io"):
        writer.approve(plan, [1], by="", at=NOW)
    with pytest.raises(Refused, match="cannot impersonate"):
        writer.approve(plan, [1], by="ann", at=NOW)
    assert writer.approvals(plan.plan_id) == ()


def test_status_is_written_by_our_field_manager_and_times_change_with_the_condition_alone(
    api: Api, machine: Machine, writer_kubeconfig: Path, plan: Plan
) -> None:
    writer = machine("writer", writer_kubeconfig)
    writer.add(plan)
    status = plan_status([1, 2], (), (), Wish(stages=frozenset({1}), generation=2))
    writer.report(plan.plan_id, status)
    first = head(api, plan)
    writer.report(plan.plan_id, replace(status, state="Approved"))
    second = head(api, plan)["status"]
    assert second["conditions"] == first["status"]["conditions"]
    assert (first["status"]["state"], second["state"]) == ("Proposed", "Approved")
    assert {one["type"] for one in second["conditions"]} == {kind.value for kind in ConditionType}
    owners = {one["manager"] for one in first["metadata"]["managedFields"] if one.get("subresource") == "status"}
    assert owners == {"gputide"}


def test_what_happens_to_a_plan_is_told_by_its_status_and_by_events_that_describe_shows(
    api: Api, machine: Machine, writer_kubeconfig: Path, plan: Plan
) -> None:
    writer = machine("writer", writer_kubeconfig)
    writer.add(plan)
    uid = head(api, plan)["metadata"]["uid"]
    away = {WorkloadId("team/Deployment/a"): "node node-1 is gone"}

    def said(
        *states: StageState, departed: Mapping[WorkloadId, str] | None = None, refusal: str | None = None
    ) -> list[tuple[str, str, str, int]]:
        wish = Wish(stages=frozenset({1, 2}), generation=2)
        status = plan_status(
            [1, 2], (), [replace(a_run(*states), is_open=True)], wish, departed=departed, refusal=refusal
        )
        for _ in range(2):
            writer.report(plan.plan_id, status)
        # As `kubectl describe` asks for them.
        found = api.ask("GET", f"/api/v1/events?fieldSelector=involvedObject.uid%3D{uid}")["items"]
        return sorted((one["type"], one["reason"], one["message"], one["count"]) for one in found)

    kept = ("Normal", "Promoted", "kept stage 1", 1)
    departed = ("Warning", "Departed", "pods go wherever a card fits: team/Deployment/a: node node-1 is gone", 1)
    assert said(StageState.OPEN) == []
    assert shown(api, plan) == {"State": "Applying", "Progress": "0/2", "Under Way": "1"}
    assert said(StageState.PROMOTED, StageState.OPEN) == [kept]
    assert said(StageState.PROMOTED, StageState.RESTORING, departed=away) == [kept, departed]
    assert shown(api, plan) == {"State": "Restoring", "Progress": "1/2", "Under Way": "2 (restoring)"}
    assert said(StageState.PROMOTED, refusal="it is Sunday") == [
        kept, departed, ("Warning", "Refused", "it is Sunday", 1)
    ]  # fmt: skip
    (now,) = [one for one in head(api, plan)["status"]["conditions"] if one["type"] == ConditionType.DEPARTED]
    assert (now["status"], now["reason"]) == ("True", "PlacedElsewhere")


def shown(api: Api, plan: Plan) -> dict[str, str | None]:
    """Where a plan stands, in the list that kubectl prints."""
    table: Any = api.ask("GET", f"{PATH}/gpuplans", accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    titles = [column["name"] for column in table["columnDefinitions"]]
    (row,) = [one["cells"] for one in table["rows"] if one["object"]["metadata"]["name"] == f"plan-{plan.plan_id}"]
    return {name: cell for name, cell in zip(titles, row, strict=True) if name in ("State", "Progress", "Under Way")}


def test_plan_of_somebody_who_may_report_nothing_is_shown_as_proposed(
    api: Api, machine: Machine, control_plane: ControlPlane, plan: Plan
) -> None:
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": "a-planner"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "gputide-planner"},
        "subjects": [{"kind": "ServiceAccount", "name": "default", "namespace": "gputide"}],
    }  # fmt: skip
    api.create(ROLES, binding)
    try:
        planner = control_plane.kubeconfig_of_token("planner", api.token("gputide", "default"))
        machine("planner", planner).add(plan)
    finally:
        api.delete(f"{ROLES}/a-planner")
    assert shown(api, plan) == {"State": "Proposed", "Progress": None, "Under Way": None}


def test_wish_that_somebody_edits_by_hand_is_of_nobody_we_know(api: Api, machine: Machine, plan: Plan) -> None:
    here = machine("here")
    here.add(plan)
    assert here.change_wish(plan.plan_id, WishChange(add=frozenset({1, 2}), by="ann")).by == "ann"
    api.patch(f"{PATH}/gpuplans/plan-{plan.plan_id}", {"spec": {"apply": [1]}})
    assert (here.wish(plan.plan_id).stages, here.wish(plan.plan_id).by) == (frozenset({1}), "")


def test_plan_that_is_being_deleted_is_gone_though_a_finalizer_of_somebody_keeps_it(
    api: Api, machine: Machine, plan: Plan
) -> None:
    here, path = machine("here"), f"{PATH}/gpuplans/plan-{plan.plan_id}"
    here.add(plan)
    here.change_wish(plan.plan_id, WishChange(add=frozenset({1}), by="ann"))
    api.patch(path, {"metadata": {"finalizers": ["example.com/keep"]}})
    try:
        api.delete(path)
        assert here.wish(plan.plan_id).is_gone
        assert here.wishes()[plan.plan_id].is_gone
        with pytest.raises(Refused, match="its GpuPlan is gone"):
            here.change_wish(plan.plan_id, WishChange(add=frozenset({2}), by="ann"))
    finally:
        api.patch(path, {"metadata": {"finalizers": None}})
    assert here.wish(plan.plan_id).is_gone


def proposals(writer_kubeconfig: Path, folder: Path, number: int) -> list[Plan]:
    """Plans that the planner made one after the other, each stored by the writer's rights and marked."""
    with closing(KubernetesCluster(ClusterPlace(kubeconfig=writer_kubeconfig, requests_per_second=500.0))) as cluster:
        store = SharedPlans(folder, cluster.plans, "c1", partial(stored_runs, cluster.changes))
        made = []
        for _ in range(number):
            made.append(seal_plan(replace(standard_plan(), expires_at=NOW + timedelta(days=next(_numbers)))))
            store.add(made[-1])
            store.drop(cluster.plans.supersede(made[-1].plan_id)[1])
            time.sleep(1.1)  # the server's times have whole seconds
    return made


def test_older_proposals_that_nobody_took_up_go_and_every_other_plan_stays(
    api: Api, writer_kubeconfig: Path, machine: Machine, plan: Plan, tmp_path: Path
) -> None:
    machine("person").add(plan)
    first = proposals(writer_kubeconfig, tmp_path / "planner", PROPOSALS_MAX)
    assert all(api.has(f"{PATH}/gpuplans/plan-{one.plan_id}") for one in first), "no more than may stand"
    approved, wanted, left = first[:3]
    person = machine("person")
    person.approve(person.get(approved.plan_id), [1], by="", at=NOW)
    person.change_wish(wanted.plan_id, WishChange(add=frozenset({1}), by="ann"))
    later = proposals(writer_kubeconfig, tmp_path / "planner", PROPOSALS_MAX - 1)
    try:
        standing = [one for one in (*first, *later) if api.has(f"{PATH}/gpuplans/plan-{one.plan_id}")]
        assert standing == [approved, wanted, first[-1], *later]
        assert api.has(f"{PATH}/gpuplans/plan-{plan.plan_id}"), "a person made it"
        until(lambda: not api.has(f"{PATH}/gpuplanparts/plan-{left.plan_id}-1"), "its parts go with it", 60.0)
        assert not list((tmp_path / "planner").glob(f"{left.plan_id}*"))
        said = [one["message"] for one in api.ask("GET", "/api/v1/events")["items"] if one["reason"] == "Superseded"]
        assert any(f"plan-{left.plan_id}" in one for one in said)
    finally:
        for one in (*first, *later):
            if api.has(f"{PATH}/gpuplans/plan-{one.plan_id}"):
                api.delete(f"{PATH}/gpuplans/plan-{one.plan_id}")


def test_writer_deletes_no_plan_of_a_person_and_none_that_is_wanted(
    api: Api, writer_kubeconfig: Path, machine: Machine, plan: Plan, tmp_path: Path
) -> None:
    machine("person").add(plan)
    (wanted,) = proposals(writer_kubeconfig, tmp_path / "planner", 1)
    person = machine("person")
    person.change_wish(wanted.plan_id, WishChange(add=frozenset({1}), by="ann"))
    token = api.token("gputide", "gputide-writer")
    try:
        for one in (plan, wanted):
            with pytest.raises(urllib.error.HTTPError) as refused:
                api.ask("DELETE", f"{PATH}/gpuplans/plan-{one.plan_id}", token=token)
            assert b"does not DELETE" in refused.value.read()
    finally:
        api.delete(f"{PATH}/gpuplans/plan-{wanted.plan_id}")
