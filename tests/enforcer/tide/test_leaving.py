"""Pods that leave are chosen so that machines are freed whole."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from enforcer.dialect import SeatSlice
from enforcer.seat import PodSeat
from enforcer.tide.leaving import leaving, marks_of
from fleet.decisions import ScheduledReplicas
from fleet.inventory import CardId, WorkloadId

A, B = WorkloadId("team/Deployment/a"), WorkloadId("team/Deployment/b")


def seat(workload: WorkloadId, number: int, node: str, cost: str | None = None) -> PodSeat:
    part = SeatSlice(container="main", card=f"{node}-{workload[-1]}{number}", framebuffer_mib=24_576, core_percent=100)
    return PodSeat(
        namespace="team", pod=f"{workload[-1]}-{number}", workload=workload, node=node, slices=(part,), is_ready=True,
        restarts=0, is_oom_killed=False, resource_version="1", deletion_cost=cost,
    )  # fmt: skip


def scheduled(workload: WorkloadId, replicas: int, *frees: str) -> ScheduledReplicas:
    return ScheduledReplicas(
        workload=workload, replicas=replicas, start="22:00", end="07:00", time_zone="UTC",
        frees=tuple(map(CardId, frees)),
    )  # fmt: skip


def test_machine_that_can_be_emptied_is_emptied_wherever_pods_came_back_to() -> None:
    pods = {A: [seat(A, 0, "n1"), seat(A, 1, "n2"), seat(A, 2, "n2")], B: [seat(B, 0, "n1"), seat(B, 1, "n3")]}
    schedule = [scheduled(A, 1, "gone-1", "gone-2"), scheduled(B, 1, "gone-3")]
    found = leaving(schedule, [A, B], pods)
    assert {entry.pod for entry in found} == {"b-1", "a-1", "a-2"}


def test_pods_on_the_cards_of_the_plan_leave_while_they_sit_there() -> None:
    pods = {A: [seat(A, 0, "n1"), seat(A, 1, "n1"), seat(A, 2, "n2")]}
    assert [entry.pod for entry in leaving([scheduled(A, 1, "n1-a1", "n2-a2")], [A], pods)] == ["a-1", "a-2"]


def test_pod_that_leaves_is_marked_once() -> None:
    (mark,) = marks_of([seat(A, 0, "n1"), seat(A, 1, "n1", "-1000")])
    assert (mark.name, mark.fields[0].old, mark.fields[0].new) == ("a-0", None, "-1000")


@given(
    placed=st.lists(st.tuples(st.sampled_from([A, B]), st.sampled_from(["n1", "n2", "n3"])), max_size=12),
    stay=st.tuples(st.integers(1, 5), st.integers(1, 5)),
)
def test_as_many_leave_as_the_schedule_says(placed: list[tuple[WorkloadId, str]], stay: tuple[int, int]) -> None:
    pods: dict[WorkloadId, list[PodSeat]] = defaultdict(list)
    for number, (workload, node) in enumerate(placed):
        pods[workload].append(seat(workload, number, node))
    frozen: Mapping[WorkloadId, Sequence[PodSeat]] = pods
    found = leaving([scheduled(A, stay[0], "x"), scheduled(B, stay[1], "y")], [A, B], frozen)
    gone = Counter(entry.workload for entry in found)
    assert len({entry.pod for entry in found}) == len(found)
    for workload, replicas in ((A, stay[0]), (B, stay[1])):
        assert gone[workload] == max(0, len(pods.get(workload, ())) - replicas)
