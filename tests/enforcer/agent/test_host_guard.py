"""Pods whose framebuffer lies in host memory go before that runs out."""

from __future__ import annotations

from pathlib import Path

import pytest

from enforcer.agent.host_guard import HostGuard
from enforcer.agent.node_view import NodeView, SliceView
from enforcer.agent.watermark import Shortage
from enforcer.host_memory import PODS_GROUPS, HostMemory, host_memory
from fleet.inventory import Priority
from fleet.settings.agent import AgentSettings
from tests.enforcer.agent.nodes import CARD, CARD_BYTES, GIB, OTHER_CARD, START, slice_of, view_of

RULES = AgentSettings(host_memory_free_ratio_min=0.05, settle_seconds=30, closed_seconds=600)
"""20 GiB of the node's 400 must stay free."""
SHORT, ENOUGH, OVER = 19, 21, 31


def lender(
    number: int, priority: Priority = Priority.NORMAL, *, used: float | None = 50, duty: float | None = 0.0
) -> SliceView:
    held = None if used is None else int(used * GIB)
    return slice_of(
        number, priority, framebuffer_used_bytes=held, framebuffer_granted_bytes=60 * GIB, duty_cycle_ratio=duty
    )


def left(*gib: int) -> tuple[HostMemory, ...]:
    return tuple(HostMemory(total_bytes=400 * GIB, available_bytes=one * GIB) for one in gib)


def a_guard(*slices: SliceView, rules: AgentSettings = RULES) -> HostGuard:
    """One that has looked at these pods for a minute."""
    guard = HostGuard(rules)
    guard.is_needed(view_of(*slices, at=-60.0))
    return guard


def gone(
    guard: HostGuard, view: NodeView, memory: tuple[HostMemory, ...], refused: list[str] | None = None,
    kept: tuple[str, ...] = (),
) -> tuple[str, ...]:  # fmt: skip
    """Who goes at this look; those that a budget keeps are asked, and stay."""
    asked = guard.evictions(view, memory, [] if refused is None else refused) if guard.is_needed(view) else ()
    going = tuple(entry.pod for entry in asked if entry.pod not in kept)
    if going:
        guard.went(view.at_seconds)
    return going


def looks(guard: HostGuard, slices: tuple[SliceView, ...], *at: float, kept: tuple[str, ...] = ()) -> list[str]:
    return [pod for moment in at for pod in gone(guard, view_of(*slices, at=moment), left(SHORT), kept=kept)]


def test_pod_at_rest_goes_when_host_memory_is_short_and_its_card_is_closed() -> None:
    view = view_of(lender(1), lender(2, duty=0.6))
    guard = a_guard(*view.slices)
    assert gone(guard, view, left(20)) == ()
    assert guard.is_needed(view)
    (eviction,) = guard.evictions(view, left(SHORT), [])
    assert (eviction.pod, eviction.card, eviction.short_of) == ("pod-1", CARD, Shortage.HOST_MEMORY)
    # 100 GiB are held on a card of 80.
    assert (eviction.frees_bytes, eviction.closed_until) == (20 * GIB, START + 600.0)
    assert "agent.host_memory_free_ratio_min=0.05" in eviction.reason


def test_lowest_priority_goes_first_then_who_worked_longest_ago() -> None:
    guard = a_guard(lender(1, duty=0.6), lender(2))
    assert guard.is_needed(view_of(lender(1, duty=0.6), lender(2)))
    assert guard.is_needed(view_of(lender(1), lender(2, duty=0.6), at=5.0))
    assert looks(guard, (lender(1), lender(2)), 10.0) == ["pod-1"]
    low_at_work = (lender(1, Priority.HIGH), lender(2), lender(3, Priority.LOW, duty=0.9))
    assert looks(a_guard(*low_at_work), low_at_work, 0.0, 60.0, 180.0) == ["pod-3", "pod-2", "pod-1"]


def test_who_holds_nothing_by_its_region_goes_last_of_its_priority_and_before_the_next() -> None:
    pods = (lender(1), lender(2), lender(3, Priority.LOW, used=0), lender(4, Priority.LOW, used=1))
    assert looks(a_guard(*pods), pods, 0.0, 60.0, 180.0) == ["pod-4", "pod-3", "pod-1"]


def test_pod_that_is_made_anew_does_not_go_before_those_that_stayed() -> None:
    guard = a_guard(lender(1), lender(2), lender(3))
    assert looks(guard, (lender(1), lender(2), lender(3)), 0.0) == ["pod-1"]
    assert looks(guard, (lender(9), lender(2), lender(3)), 60.0, 180.0, 420.0) == ["pod-2", "pod-3", "pod-9"]


def test_one_pressure_costs_one_pod_and_each_further_one_twice_the_patience() -> None:
    pods = (lender(1), lender(2), lender(3))
    guard = a_guard(*pods)
    assert looks(guard, pods, 0.0) == ["pod-1"]
    for at, gib in ((1.0, ENOUGH), (2.0, SHORT), (20.0, ENOUGH), (59.0, SHORT)):
        assert gone(guard, view_of(*pods, at=at), left(gib)) == ()
    assert looks(guard, pods, 60.0, 61.0, 179.0, 180.0) == ["pod-2", "pod-3"], "what went was not enough"
    assert gone(guard, view_of(*pods, at=1000.0), left(OVER)) == ()
    assert looks(guard, pods, 1001.0) == ["pod-1"], "this is another pressure"


def test_pod_that_a_budget_keeps_costs_no_time_and_is_asked_again_after_all_others() -> None:
    pods = (lender(1), lender(2))
    guard = a_guard(*pods)
    assert looks(guard, pods, 0.0, 0.5, kept=("pod-1",)) == ["pod-2"]
    assert looks(guard, pods, 60.5, 61.0, 120.0, 120.5, kept=("pod-2",)) == ["pod-1"]


def test_agent_that_was_just_started_or_whose_clock_was_set_back_waits_first() -> None:
    pods = (lender(1), lender(2))
    guard = HostGuard(RULES)
    assert looks(guard, pods, 0.0, 29.0, 30.0) == ["pod-1"]
    assert looks(guard, pods, 29.9, 30.1, 89.0, 89.9) == ["pod-2"]


def test_nobody_goes_for_a_shortage_that_lending_cannot_have_made() -> None:
    refused: list[str] = []
    pods = (lender(1, used=41), lender(2, used=40))
    guard, view = a_guard(*pods), view_of(*pods)
    assert gone(guard, view, left(17), refused) == ()
    assert f"wants {3 * GIB} more, and lent framebuffer holds {GIB} at most" in refused[0]
    assert gone(guard, view, left(SHORT)) == ("pod-1",)


@pytest.mark.parametrize(
    "slices",
    [
        (lender(1, used=30), lender(2, used=40)),
        (lender(1, used=70), slice_of(2, Priority.LOW, framebuffer_used_bytes=4 * GIB)),
        (slice_of(1, Priority.LOW, framebuffer_granted_bytes=CARD_BYTES, framebuffer_used_bytes=None),),
        (lender(1), slice_of(2, Priority.LOW, card=OTHER_CARD, framebuffer_granted_bytes=60 * GIB)),
    ],
    ids=["all of it is on the card", "nobody holds more than its grant", "whole card", "card nobody measures"],
)
def test_node_on_which_nothing_can_lie_in_host_memory_is_left_alone(slices: tuple[SliceView, ...]) -> None:
    assert gone(a_guard(*slices), view_of(*slices), left(0)) == ()


def test_what_nobody_knows_counts_as_granted_and_as_at_rest() -> None:
    view = view_of(lender(1, used=None, duty=0.9), lender(2, used=None, duty=None))
    guard = a_guard(*view.slices)
    assert guard.is_needed(view)
    (eviction,) = guard.evictions(view, left(SHORT), [])
    assert (eviction.pod, eviction.frees_bytes) == ("pod-2", 40 * GIB)


def test_guard_that_is_switched_off_or_knows_nothing_lets_everybody_stay() -> None:
    view = view_of(lender(1), lender(2))
    off = AgentSettings(host_memory_free_ratio_min=0.0)
    assert gone(a_guard(*view.slices, rules=off), view, left(0)) == ()
    assert gone(a_guard(*view.slices), view, ()) == ()


def test_limit_of_all_pods_binds_before_the_node() -> None:
    guard, view = a_guard(lender(1), lender(2)), view_of(lender(1), lender(2))
    assert guard.is_needed(view)
    (eviction,) = guard.evictions(view, left(200, SHORT), [])
    assert f"{SHORT * GIB} of {400 * GIB} bytes" in eviction.reason


@pytest.mark.parametrize(
    ("files", "available_gib"),
    [
        ({}, [40]),
        ({"kubepods.slice/memory.max": "max", "kubepods.slice/memory.current": str(GIB)}, [40]),
        (
            {
                "kubepods.slice/memory.max": str(90 * GIB),
                "kubepods.slice/memory.current": str(80 * GIB),
                "kubepods.slice/memory.stat": f"anon 5\ninactive_file {5 * GIB}\nactive_file {10 * GIB}\n",
            },
            [40, 25],
        ),
        (
            {
                "memory/kubepods/memory.limit_in_bytes": str(90 * GIB),
                "memory/kubepods/memory.usage_in_bytes": str(80 * GIB),
                "memory/kubepods/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}\nactive_file 9\n",
            },
            [40, 11],
        ),
        ({"kubepods/memory.max": str(90 * GIB)}, [40]),
    ],
    ids=["no group", "no limit", "version 2", "version 1", "use not known"],
)
def test_node_and_the_group_of_its_pods_say_what_is_left(
    tmp_path: Path, files: dict[str, str], available_gib: list[int]
) -> None:
    meminfo = f"MemTotal: {100 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {40 * GIB // 1024} kB\n"
    for name, text in {"meminfo": meminfo, **files}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = host_memory(tmp_path, PODS_GROUPS, tmp_path)
    assert [one.available_bytes // GIB for one in found] == available_gib
    assert found[0].total_bytes == 100 * GIB


@pytest.mark.parametrize("meminfo", [None, "", "MemTotal: 100 kB\n", "MemTotal: 100 kB\nMemAvailable: many kB\n"])
def test_node_that_does_not_say_what_it_has_left_is_unknown_not_empty(tmp_path: Path, meminfo: str | None) -> None:
    if meminfo is not None:
        (tmp_path / "meminfo").write_text(meminfo)
    assert host_memory(tmp_path, PODS_GROUPS, tmp_path) == ()
