"""Fields by path, admission, HAMi's webhook: small pure parts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.admission import (
    PlannedSeat,
    Sibling,
    admit,
    asked_otherwise,
    on_node,
    parse_seats,
    seating_mark,
    seating_of,
    seats_for,
    seats_text,
    why_closed,
)
from enforcer.manifest import Manifest, field_of, json_taken_back, set_field, values_equal, workload_parts
from enforcer.simulated.hami import HAMI_SYSTEM
from fleet.errors import Corrupt, Refused

PATHS = (
    "spec.replicas",
    "metadata.annotations[gputide.io/plan-id]",
    "spec.template.metadata.annotations[nvidia.com/use-gpuuuid]",
    "spec.template.spec.containers[server].resources.limits[nvidia.com/gpumem]",
    "spec.template.spec.containers[server].env[GPU_CORE_UTILIZATION_POLICY]",
    "data[config.json]",
)


def an_owner() -> dict[str, Any]:
    return {"metadata": {"name": "a"}, "spec": {"template": {"spec": {"containers": [{"name": "server"}]}}}}


@given(path=st.sampled_from(PATHS), value=st.integers(0, 10**6))
def test_what_is_written_is_read_and_taken_away_again(path: str, value: int) -> None:
    owner = an_owner()
    set_field(owner, path, str(value))
    assert field_of(owner, path) == str(value)
    set_field(owner, path, None)
    assert field_of(owner, path) is None


def test_replicas_stay_a_number_and_suspension_a_boolean() -> None:
    owner = an_owner()
    set_field(owner, "spec.replicas", "3")
    set_field(owner, "spec.suspend", "true")
    assert owner["spec"]["replicas"] == 3
    assert owner["spec"]["suspend"] is True


@pytest.mark.parametrize("path", ["", "a..b", "a[", "[]", "a]b"])
def test_path_outside_the_grammar_is_corrupt(path: str) -> None:
    with pytest.raises(Corrupt):
        field_of({}, path)


@given(words=st.lists(st.text(), min_size=1), place=st.integers(0, 9), value=st.text())
def test_word_of_a_command_is_replaced_or_added_and_comes_back(words: list[str], place: int, value: str) -> None:
    owner = an_owner()
    owner["spec"]["template"]["spec"]["containers"][0]["args"] = list(words)
    before, path = json.dumps(owner), f"spec.template.spec.containers[server].args[{place}]"
    old = field_of(owner, path)
    assert old == (words[place] if place < len(words) else None)
    if place > len(words):
        with pytest.raises(Corrupt, match="words"):
            set_field(owner, path, value)
        return
    set_field(owner, path, value)
    assert field_of(owner, path) == value
    set_field(owner, path, old)
    assert json.dumps(owner) == before


def test_container_that_is_not_there_cannot_be_changed() -> None:
    with pytest.raises(Corrupt, match="sidecar"):
        set_field(an_owner(), "spec.template.spec.containers[sidecar].resources.limits[cpu]", "1")


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [("4000", "4k", True), ("1Gi", "1024Mi", True), ("1", None, False), (None, None, True), ("1", "2", False)],
)
def test_resources_are_compared_as_quantities(first: str | None, second: str | None, equal: bool) -> None:
    assert values_equal(PATHS[3], first, second) is equal
    assert values_equal(PATHS[3], second, first) is equal


def test_annotations_are_compared_as_texts() -> None:
    assert not values_equal(PATHS[1], "4000", "4k")


def test_suspend_that_is_absent_is_false() -> None:
    assert values_equal("spec.suspend", None, "false")


def test_workload_without_three_parts_is_corrupt() -> None:
    with pytest.raises(Corrupt):
        workload_parts("team/a")


def a_pod(annotations: dict[str, str], limits: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "metadata": {"name": "a-0", "annotations": annotations},
        "spec": {"containers": [{"name": "server", "resources": {"limits": limits or {"nvidia.com/gpu": "1"}}}]},
    }


def a_sibling(card: str, *, name: str = "b", seat: str | None = None) -> Sibling:
    return Sibling(name=name, seat=seat, cards=(card,))


def open_to_all(seat: PlannedSeat) -> str | None:
    del seat
    return None


def a_seat(number: int, *, node: str = "n1") -> PlannedSeat:
    return PlannedSeat(node=node, cards=(f"GPU-{number}",))


def card_of(pod: dict[str, Any]) -> str | None:
    found = pod["metadata"]["annotations"].get("nvidia.com/use-gpuuuid")
    return None if found is None else str(found)


def test_pod_is_pinned_to_its_own_card_and_its_node() -> None:
    seats = {"a-0": a_seat(2, node="n2"), "a-1": a_seat(1)}
    pod = admit(a_pod({}), seats, [], open_to_all)
    assert card_of(pod) == "GPU-2"
    assert pod["spec"] == on_node(a_pod({})["spec"], "n2")


def test_pod_of_another_name_takes_the_seat_of_one_that_is_gone() -> None:
    seats = {"b-0": a_seat(1), "b-1": a_seat(2)}
    waiting = a_sibling("GPU-9", name="b-0")
    pod = admit(a_pod({}), seats, [waiting], open_to_all)
    assert card_of(pod) == "GPU-2"
    assert pod["metadata"]["annotations"]["gputide.io/seat"] == "b-1"
    given = a_sibling("GPU-2", name="b-x", seat="b-1")
    assert card_of(admit(a_pod({}), seats, [waiting, given], open_to_all)) == "GPU-1"


def test_pod_for_which_no_seat_is_left_goes_wherever_a_card_fits() -> None:
    waiting = Sibling(name="b-x", seat="b-0", cards=())
    pod = admit(a_pod({}), {"b-0": a_seat(1)}, [waiting], open_to_all)
    assert pod["metadata"]["annotations"] == {
        "gputide.io/unpinned": "each of its 1 planned seats is taken",
        "hami.io/gpu-scheduler-policy": "spread",
        "hami.io/node-scheduler-policy": "spread",
    }
    assert pod["spec"] == a_pod({})["spec"]


def test_pod_beyond_the_seats_keeps_a_policy_that_is_not_ours() -> None:
    waiting = Sibling(name="b-x", seat="b-0", cards=())
    asked = {"hami.io/gpu-scheduler-policy": "topology-aware", "hami.io/node-scheduler-policy": "binpack"}
    pod = admit(a_pod(asked), {"b-0": a_seat(1)}, [waiting], open_to_all)
    found = pod["metadata"]["annotations"]
    assert found["hami.io/gpu-scheduler-policy"] == "topology-aware"
    assert found["hami.io/node-scheduler-policy"] == "spread"


def test_pod_whose_seat_is_lost_keeps_its_grant_and_goes_wherever_a_card_fits() -> None:
    seat = PlannedSeat(node="n1", cards=("GPU-1",), limits=(("nvidia.com/gpumem", "500"),))
    pod = admit(a_pod({}), {"a-0": seat}, [], lambda _: "node n1 is gone")
    assert pod["metadata"]["annotations"] == {
        "gputide.io/seat": "a-0", "gputide.io/unpinned": "node n1 is gone",
        "hami.io/gpu-scheduler-policy": "spread", "hami.io/node-scheduler-policy": "spread",
    }  # fmt: skip
    assert "affinity" not in pod["spec"]
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] == "500"


def test_seat_that_nothing_stands_against_comes_before_one_that_is_lost() -> None:
    seats = {"b-0": a_seat(1), "b-1": a_seat(2, node="n2")}
    pod = admit(a_pod({}), seats, [], lambda seat: "gone" if seat.node == "n1" else None)
    assert card_of(pod) == "GPU-2"


def test_pod_that_has_its_node_already_gets_a_seat_of_that_node_or_none() -> None:
    pod = a_pod({})
    pod["spec"] = on_node(pod["spec"], "n2")  # as the controller of a DaemonSet makes it
    seats = {"b-0": a_seat(1), "b-1": a_seat(2, node="n2")}
    assert card_of(admit(pod, seats, [], open_to_all)) == "GPU-2"
    assert admit(pod, {"b-0": a_seat(1)}, [], open_to_all) is pod


def test_backend_without_a_choice_of_cards_pins_the_node_alone() -> None:
    pod = admit(a_pod({}), {"a-0": PlannedSeat(node="n1")}, [], open_to_all)
    assert pod["metadata"]["annotations"] == {"gputide.io/seat": "a-0"}
    assert pod["spec"] == on_node(a_pod({})["spec"], "n1")


def test_pod_without_a_plan_is_left_alone() -> None:
    pod = a_pod({"team": "x"})
    assert admit(pod, {}, [a_sibling("GPU-1")], open_to_all) is pod


def test_seat_may_hold_another_grant_than_the_template() -> None:
    limits = (("nvidia.com/gpucores", None), ("nvidia.com/gpumem", "500"))
    seat = PlannedSeat(node="n1", cards=("GPU-1",), limits=limits)
    pod = a_pod({}, {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "40"})
    seated = admit(pod, {"a-0": seat}, [], open_to_all)
    assert seated["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "500"}
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpucores"] == "40"


GRANT = {"nvidia.com/gpumem": "9000", "nvidia.com/gpucores": None}


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"nvidia.com/gpumem": "9000"}, None),
        # As the API server writes it.
        ({"nvidia.com/gpumem": "9k"}, None),
        ({"nvidia.com/gpumem": "9001"}, "container server asks for nvidia.com/gpumem=9001, planned was 9000"),
        ({"nvidia.com/gpumem": "a lot"}, "container server asks for nvidia.com/gpumem=a lot, planned was 9000"),
        ({}, "container server asks for nvidia.com/gpumem=none, planned was 9000"),
        (
            {"nvidia.com/gpumem": "9000", "nvidia.com/gpucores": "40"},
            "container server asks for nvidia.com/gpucores=40, planned was none",
        ),
    ],
)
def test_pod_that_asks_for_something_else_than_its_template_was_given_is_not_pinned(
    asked: dict[str, str], why: str | None
) -> None:
    limits = (("nvidia.com/gpumem", "500"),)
    seats = {"a-0": PlannedSeat(node="n1", cards=("GPU-1",), limits=limits)}
    pod = a_pod({"gputide.io/seating": seating_mark(seats, GRANT)}, {"nvidia.com/gpu": "1", **asked})
    pod["spec"]["containers"].append({"name": "sidecar", "resources": {"limits": {"cpu": "1"}}})
    assert seats_for(pod, an_owner_of(seats)) == seats
    seated = admit(pod, seats, [], open_to_all)
    assert seated["metadata"]["annotations"].get("gputide.io/unpinned") == why
    assert (card_of(seated), "affinity" in seated["spec"]) == (("GPU-1", True) if why is None else (None, False))
    # What somebody wrote stays as it is.
    granted = seated["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpumem")
    assert granted == ("500" if why is None else asked.get("nvidia.com/gpumem"))


def test_a_tenants_long_grant_is_not_read_to_its_end() -> None:
    pod = a_pod({"gputide.io/seating": "hash" + ";cpu=" * 50_000 + ";cpu=1"}, {"cpu": "", "nvidia.com/gpu": "1"})
    pod["spec"]["containers"] *= 1000
    assert asked_otherwise(pod) is None


def an_owner_of(seats: dict[str, PlannedSeat], kind: str = "Deployment") -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": "a", "annotations": {"gputide.io/seats": seats_text(seats)}}}


def test_pod_of_an_older_template_than_the_seats_gets_none_of_them() -> None:
    seats = {"a-0": a_seat(1)}
    current, older = ({"gputide.io/seating": seating_of(found)} for found in (seats, {"a-0": a_seat(2)}))
    assert seats_for(a_pod(current), an_owner_of(seats)) == seats
    assert seats_for(a_pod(older), an_owner_of(seats)) == {}
    assert seats_for(a_pod({}), an_owner_of(seats)) == {}
    assert seats_for(a_pod({}), an_owner_of(seats, "Job")) == seats


def test_pod_gets_seats_of_its_own_role_only() -> None:
    head, worker = replace(a_seat(1), role="headgroup"), replace(a_seat(2), role="gpu")
    pod = a_pod({"gputide.io/seating": seating_of({"w": worker})})
    pod["metadata"]["labels"] = {"ray.io/group": "gpu"}
    assert seats_for(pod, an_owner_of({"h": head, "w": worker}, "RayCluster")) == {"w": worker}


READY = {"type": "Ready", "status": "True"}


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (None, "node n1 is gone"),
        ({"metadata": {"deletionTimestamp": "x"}}, "node n1 is being deleted"),
        ({"metadata": {}, "spec": {"unschedulable": True}}, "node n1 is cordoned"),
        ({"metadata": {}, "status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, "node n1 is not ready"),
        (
            {"metadata": {"name": "n1", "labels": {"zone": "b"}}},
            "the pod may not run on node n1 by its own selector, affinity or tolerations",
        ),
        ({"metadata": {"name": "n1", "labels": {"zone": "a"}}}, "node n1 offers card GPU-1 no more"),
    ],
)
def test_seat_is_closed_while_a_pod_would_wait_for_it_in_vain(node: dict[str, Any] | None, why: str) -> None:
    assert why_closed(a_seat(1), {"nodeSelector": {"zone": "a"}}, node, {"GPU-2"}) == why


def test_seat_is_open_on_a_ready_node_that_has_its_card() -> None:
    node = {"metadata": {"name": "n1", "labels": {"zone": "a"}}, "status": {"conditions": [READY]}}
    assert why_closed(a_seat(1), {"nodeSelector": {"zone": "a"}}, node, {"GPU-1"}) is None


@given(
    st.dictionaries(
        st.text(min_size=1),
        st.builds(
            PlannedSeat,
            node=st.text(),
            role=st.text(),
            cards=st.just(("GPU-0", "GPU-1")),
            shares=st.just(()) | st.tuples(*[st.tuples(st.integers(0), st.integers(0))] * 2),
            limits=st.dictionaries(
                st.from_regex(r"[a-z0-9]{1,9}(\.[a-z]{1,9})?/[A-Za-z0-9]{1,9}", fullmatch=True),
                st.none() | st.integers(min_value=0).map(str),
            ).map(lambda d: tuple(sorted(d.items()))),
        ),
    )
)
def test_seats_are_read_as_written(seats: dict[str, PlannedSeat]) -> None:
    assert parse_seats(seats_text(seats)) == seats
    assert seating_of(parse_seats(seats_text(seats))) == seating_of(seats)


@pytest.mark.parametrize(
    "by",
    ["bad key!", "", "unprefixed", "gputide.io/seating", "gputide.io/x", "A.b/c", "a/b/c", "a/b\n", "a/" + "b" * 64,
     "a" * 254 + "/b", "a/\ud800"],
)  # fmt: skip
def test_seat_by_an_annotation_that_no_pod_can_have_or_that_is_ours_is_corrupt(by: str) -> None:
    with pytest.raises(Corrupt):
        parse_seats(json.dumps({"a": {"node": "n1", "cards": ["GPU-0"], "by": by}}))


@pytest.mark.parametrize(
    "limits", [{"cpu": "1"}, {"nvidia.com/x\ud800": "1"}, {"nvidia.com/gpumem": "much"}, {"nvidia.com/gpumem": "-1"}]
)
def test_seat_with_a_resource_or_an_amount_that_no_pod_can_have_is_corrupt(limits: dict[str, str]) -> None:
    with pytest.raises(Corrupt):
        parse_seats(json.dumps({"a": {"node": "n1", "limits": limits}}))


@pytest.mark.parametrize("shares", ["[[1, -1]]", "[[1]]", "[[1, 2], [3, 4]]", "[[Infinity, 1]]", "[1]", '[["x", 1]]'])
def test_seat_with_a_share_that_no_card_can_have_is_corrupt(shares: str) -> None:
    with pytest.raises(Corrupt):
        parse_seats(f'{{"a": {{"node": "n1", "cards": ["GPU-0"], "shares": {shares}}}}}')


@pytest.mark.parametrize("by", ["volcano.sh/vgpu-use-gpuuuid", "nvidia.com/include-gpu-uuid"])
def test_seat_by_the_annotation_of_another_scheduler_is_read(by: str) -> None:
    assert parse_seats(json.dumps({"a": {"node": "n1", "by": by}}))["a"].annotation == by


@pytest.mark.parametrize("text", ["[]", "{", '{"a": 1}', '{"a": {}}', "null"])
def test_damaged_seats_are_corrupt(text: str) -> None:
    with pytest.raises(Corrupt):
        parse_seats(text)


def test_whole_card_without_cores_gets_all_of_them() -> None:
    (ask,) = HAMI_SYSTEM.ask_of(HAMI_SYSTEM.mutate(a_pod({}))).containers
    assert (ask.count, ask.framebuffer_mib, ask.framebuffer_percent, ask.core_percent) == (1, None, 100, 100)


def test_framebuffer_without_count_means_one_card_and_no_core_limit() -> None:
    (ask,) = HAMI_SYSTEM.ask_of(HAMI_SYSTEM.mutate(a_pod({}, {"nvidia.com/gpumem": "4k"}))).containers
    assert (ask.count, ask.framebuffer_mib, ask.core_percent) == (1, 4000, 0)


def test_cores_are_clamped_to_the_card() -> None:
    (ask,) = HAMI_SYSTEM.ask_of(
        HAMI_SYSTEM.mutate(a_pod({}, {"nvidia.com/gpucores": "150", "nvidia.com/gpumem": "1"}))
    ).containers
    assert ask.core_percent == 100


@pytest.mark.parametrize("percent", ["-1", "101"])
def test_share_outside_the_card_is_denied(percent: str) -> None:
    with pytest.raises(Refused, match="expected 0 to 100"):
        HAMI_SYSTEM.mutate(a_pod({}, {"nvidia.com/gpumem-percentage": percent}))


@pytest.mark.parametrize(
    ("path", "text", "value"),
    [
        ("spec.minReadySeconds", "30", 30),
        ("spec.strategy.rollingUpdate.maxSurge", "0", 0),
        ("spec.strategy.rollingUpdate.maxUnavailable", "25%", "25%"),
        ("spec.updateStrategy.rollingUpdate.partition", "2", 2),
        ("spec.paused", "true", True),
    ],
)
def test_fields_of_a_rollout_have_the_types_of_the_api(path: str, text: str, value: object) -> None:
    manifest: dict[str, Any] = {}
    set_field(manifest, path, text)
    *parents, leaf = path.split(".")
    holder: Any = manifest
    for name in parents:
        holder = holder[name]
    assert holder[leaf] == value
    assert field_of(manifest, path) == text


def test_partition_that_is_absent_is_zero() -> None:
    assert values_equal("spec.updateStrategy.rollingUpdate.partition", None, "0")
    assert not values_equal("spec.updateStrategy.rollingUpdate.partition", None, "1")


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "CUDA_TASK_PRIORITY"},
        {"name": "CUDA_TASK_PRIORITY", "value": "1"},
        {"name": "CUDA_TASK_PRIORITY", "valueFrom": {"configMapKeyRef": {"name": "tiers", "key": "low"}}},
    ],
)
def test_variable_of_the_user_is_replaced_whole_and_comes_back_as_it_was(entry: Manifest) -> None:
    path = "spec.containers[server].env[CUDA_TASK_PRIORITY]"
    others = [{"name": "A", "value": "1"}, {"name": "Z", "value": "2"}]
    pod: Manifest = {"spec": {"containers": [{"name": "server", "env": [others[0], dict(entry), others[1]]}]}}
    before = field_of(pod, path)
    set_field(pod, path, "0")
    # A value beside a source is refused by the API server.
    assert pod["spec"]["containers"][0]["env"][1] == {"name": "CUDA_TASK_PRIORITY", "value": "0"}
    set_field(pod, path, before)
    # The API server leaves out a value that is empty.
    (first, again, last) = pod["spec"]["containers"][0]["env"]
    assert [first, last] == others
    assert {key: value for key, value in again.items() if value != ""} == entry


NONE: list[dict[str, object]] = []
OTHER = {"nodeName": "node-9", "deviceSplitCount": 4}
OURS = {"nodeName": "node-0", "deviceMemoryScaling": 3.0}


@pytest.mark.parametrize(
    ("old", "new", "current", "expected", "is_whole"),
    [
        (NONE, [OURS], [OURS, OTHER], [OTHER], True),
        ([OTHER], [OURS, OTHER], [OTHER], [OTHER], True),
        (NONE, [OURS], [{**OURS, "deviceSplitCount": 8}], [{"nodeName": "node-0", "deviceSplitCount": 8}], True),
        ([{**OURS, "deviceMemoryScaling": 2.0}], [OURS], [OTHER, OURS], [OTHER, {**OURS, "deviceMemoryScaling": 2.0}],
         True),
        (NONE, [OURS], [{**OURS, "deviceMemoryScaling": 4.0}], [{**OURS, "deviceMemoryScaling": 4.0}], False),
        (NONE, [OURS], [OURS, OURS], [OURS, OURS], False),
    ],
    ids=["another_node", "ours_gone", "another_key", "earlier_value", "another_value", "twice"],
)  # fmt: skip
def test_what_a_plan_wrote_into_a_text_comes_out_of_it(
    old: object, new: object, current: object, expected: object, is_whole: bool
) -> None:
    text, found = json_taken_back(json.dumps(old), json.dumps(new), json.dumps(current))
    assert (json.loads(text or ""), found) == (expected, is_whole)


@pytest.mark.parametrize("current", [None, "no JSON", "3", "[" * 100_000])
def test_text_that_cannot_be_read_is_left(current: str | None) -> None:
    assert json_taken_back("[]", json.dumps([OURS]), current) == (None, False)
