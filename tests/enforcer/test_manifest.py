"""Fields by path, admission, HAMi's webhook: small pure parts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enforcer.admission import PlannedSeat, Sibling, admit, parse_seats, seats_text
from enforcer.manifest import Manifest, field_of, set_field, values_equal, workload_parts
from enforcer.simulated.hami_webhook import ask_of, mutate
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


def test_pod_is_narrowed_to_its_own_card() -> None:
    seats = seats_text({"a-0": PlannedSeat(cards=("GPU-2",)), "a-1": PlannedSeat(cards=("GPU-1",))})
    pod = admit(a_pod({"gputide.io/seats": seats, "gputide.io/cards": "GPU-1,GPU-2"}), [])
    assert pod["metadata"]["annotations"]["nvidia.com/use-gpuuuid"] == "GPU-2"


def test_pod_of_unknown_name_takes_the_first_card_that_no_sibling_holds() -> None:
    pod = admit(a_pod({"gputide.io/cards": "GPU-1,GPU-1,GPU-2"}), [a_sibling("GPU-1")])
    assert pod["metadata"]["annotations"]["nvidia.com/use-gpuuuid"] == "GPU-1"
    pod = admit(a_pod({"gputide.io/cards": "GPU-1,GPU-1,GPU-2"}), [a_sibling("GPU-1"), a_sibling("GPU-1")])
    assert pod["metadata"]["annotations"]["nvidia.com/use-gpuuuid"] == "GPU-2"


def test_pod_of_another_name_takes_the_seat_of_one_that_is_gone() -> None:
    seats = seats_text({"b-0": PlannedSeat(cards=("GPU-1",)), "b-1": PlannedSeat(cards=("GPU-2",))})
    waiting = a_sibling("GPU-9", name="b-0")
    pod = admit(a_pod({"gputide.io/seats": seats}), [waiting])
    assert pod["metadata"]["annotations"]["nvidia.com/use-gpuuuid"] == "GPU-2"
    assert pod["metadata"]["annotations"]["gputide.io/seat"] == "b-1"
    given = a_sibling("GPU-2", name="b-x", seat="b-1")
    pod = admit(a_pod({"gputide.io/seats": seats}), [waiting, given])
    assert pod["metadata"]["annotations"]["nvidia.com/use-gpuuuid"] == "GPU-1"


def test_pod_for_whom_no_seat_is_left_comes_back_as_it_is() -> None:
    seats = seats_text({"b-0": PlannedSeat(cards=("GPU-1",))})
    pod = a_pod({"gputide.io/seats": seats})
    assert admit(pod, [a_sibling("GPU-1", seat="b-0")]) is pod


def test_card_of_a_sibling_that_waits_for_its_scheduler_is_not_given_to_one_more() -> None:
    seats = seats_text({"b-0": PlannedSeat(cards=("GPU-1",)), "b-1": PlannedSeat(cards=("GPU-2",))})
    waiting = [Sibling(name=f"b-{key}", seat=seat, cards=()) for key, seat in (("x", "b-0"), ("y", "b-1"))]
    pod = a_pod({"gputide.io/seats": seats, "gputide.io/cards": "GPU-1,GPU-2"})
    assert admit(pod, waiting) is pod


def test_one_more_pod_is_narrowed_to_as_many_cards_as_its_siblings_have_or_not_at_all() -> None:
    seats = seats_text({f"b-{n}": PlannedSeat(cards=(f"GPU-{2 * n}", f"GPU-{2 * n + 1}")) for n in range(2)})
    pod = a_pod({"gputide.io/seats": seats, "gputide.io/cards": "GPU-0,GPU-1,GPU-2,GPU-3"})
    elsewhere = Sibling(name="b-x", seat="b-0", cards=("GPU-8", "GPU-9"))
    sitting = Sibling(name="b-y", seat="b-1", cards=("GPU-2", "GPU-3"))
    found = admit(pod, [elsewhere, sitting])["metadata"]["annotations"]["nvidia.com/use-gpuuuid"]
    assert found == "GPU-0,GPU-1"
    half = Sibling(name="b-z", seat=None, cards=("GPU-1",))
    assert admit(pod, [elsewhere, sitting, half]) is pod


def test_pod_without_a_plan_is_left_alone() -> None:
    pod = a_pod({"team": "x"})
    assert admit(pod, [a_sibling("GPU-1")]) is pod


def test_seat_may_hold_another_grant_than_the_template() -> None:
    seat = PlannedSeat(cards=("GPU-1",), limits=(("nvidia.com/gpucores", None), ("nvidia.com/gpumem", "500")))
    pod = a_pod({"gputide.io/seats": seats_text({"a-0": seat})}, {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "40"})
    limits = admit(pod, [])["spec"]["containers"][0]["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "500"}
    assert pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpucores"] == "40"


@given(
    st.dictionaries(
        st.text(min_size=1),
        st.builds(
            PlannedSeat,
            cards=st.lists(st.text(), min_size=1).map(tuple),
            limits=st.dictionaries(st.text(), st.none() | st.text()).map(lambda d: tuple(sorted(d.items()))),
        ),
    )
)
def test_seats_are_read_as_written(seats: dict[str, PlannedSeat]) -> None:
    assert parse_seats(seats_text(seats)) == seats


@pytest.mark.parametrize("text", ["[]", "{", '{"a": 1}', '{"a": {}}', "null"])
def test_damaged_seats_are_corrupt(text: str) -> None:
    with pytest.raises(Corrupt):
        parse_seats(text)


def test_whole_card_without_cores_gets_all_of_them() -> None:
    (ask,) = ask_of(mutate(a_pod({}))).containers
    assert (ask.count, ask.framebuffer_mib, ask.framebuffer_percent, ask.core_percent) == (1, None, 100, 100)


def test_framebuffer_without_count_means_one_card_and_no_core_limit() -> None:
    (ask,) = ask_of(mutate(a_pod({}, {"nvidia.com/gpumem": "4k"}))).containers
    assert (ask.count, ask.framebuffer_mib, ask.core_percent) == (1, 4000, 0)


def test_cores_are_clamped_to_the_card() -> None:
    (ask,) = ask_of(mutate(a_pod({}, {"nvidia.com/gpucores": "150", "nvidia.com/gpumem": "1"}))).containers
    assert ask.core_percent == 100


@pytest.mark.parametrize("percent", ["-1", "101"])
def test_share_outside_the_card_is_denied(percent: str) -> None:
    with pytest.raises(Refused, match="expected 0 to 100"):
        mutate(a_pod({}, {"nvidia.com/gpumem-percentage": percent}))


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
