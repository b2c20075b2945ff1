"""Pods whose framebuffer lies in host memory go before that runs out."""

from __future__ import annotations

from pathlib import Path

import pytest

from enforcer.agent.host_guard import HostGuard
from enforcer.agent.node_view import NodeView, SliceView
from enforcer.agent.watermark import Eviction, Shortage
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


def gone(guard: HostGuard, view: NodeView, memory: tuple[HostMemory, ...]) -> tuple[Eviction, ...]:
    return guard.evictions(view, memory) if guard.is_needed(view) else ()


def test_pod_at_rest_goes_when_host_memory_is_short_and_its_card_is_closed() -> None:
    view = view_of(lender(1), lender(2, Priority.LOW, duty=0.6))
    assert gone(HostGuard(RULES), view, left(20)) == ()
    (eviction,) = gone(HostGuard(RULES), view, left(SHORT))
    assert (eviction.pod, eviction.card, eviction.short_of) == ("pod-1", CARD, Shortage.HOST_MEMORY)
    # 100 GiB are held on a card of 80.
    assert (eviction.frees_bytes, eviction.closed_until) == (20 * GIB, START + 600.0)
    assert "agent.host_memory_free_ratio_min=0.05" in eviction.reason


def test_lowest_priority_goes_first_then_who_rested_longest() -> None:
    guard = HostGuard(RULES)
    assert guard.is_needed(view_of(lender(1, duty=0.6), lender(2)))
    assert guard.is_needed(view_of(lender(1), lender(2, duty=0.6), at=5.0))
    assert gone(guard, view_of(lender(1), lender(2), at=10.0), left(SHORT))[0].pod == "pod-1"
    three = view_of(lender(1, Priority.HIGH), lender(2), lender(3, Priority.LOW))
    guard = HostGuard(RULES)
    order = [gone(guard, view_of(*three.slices, at=at), left(SHORT))[0].pod for at in (0.0, 30.0, 60.0, 90.0)]
    assert order == ["pod-3", "pod-2", "pod-1", "pod-3"], "one that stays is passed over until all others were asked"


def test_one_pressure_costs_one_pod() -> None:
    guard, view = HostGuard(RULES), view_of(lender(1), lender(2))
    assert gone(guard, view, left(SHORT))
    for at, gib in ((1.0, ENOUGH), (2.0, SHORT), (20.0, ENOUGH), (29.0, SHORT)):
        assert gone(guard, view_of(*view.slices, at=at), left(gib)) == ()
    assert gone(guard, view_of(*view.slices, at=30.0), left(SHORT)), "what went was not enough"
    assert gone(guard, view_of(*view.slices, at=31.0), left(OVER)) == ()
    assert gone(guard, view_of(*view.slices, at=32.0), left(SHORT)), "this is another pressure"


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
    assert gone(HostGuard(RULES), view_of(*slices), left(0)) == ()


def test_what_nobody_knows_counts_as_granted_and_as_at_rest() -> None:
    view = view_of(lender(1, used=None, duty=None), lender(2, used=None, duty=0.9))
    (eviction,) = gone(HostGuard(RULES), view, left(SHORT))
    assert (eviction.pod, eviction.frees_bytes) == ("pod-1", 40 * GIB)


def test_who_works_goes_where_nobody_rests() -> None:
    view = view_of(lender(1, Priority.HIGH, duty=0.5), lender(2, Priority.NORMAL, duty=0.5))
    assert gone(HostGuard(RULES), view, left(SHORT))[0].pod == "pod-2"


def test_guard_that_is_switched_off_or_knows_nothing_lets_everybody_stay() -> None:
    view = view_of(lender(1), lender(2))
    assert gone(HostGuard(AgentSettings(host_memory_free_ratio_min=0.0)), view, left(0)) == ()
    assert gone(HostGuard(RULES), view, ()) == ()


def test_limit_of_all_pods_binds_before_the_node() -> None:
    (eviction,) = gone(HostGuard(RULES), view_of(lender(1), lender(2)), left(200, SHORT))
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
                "kubepods.slice/memory.stat": f"anon 5\ninactive_file {15 * GIB}\n",
            },
            [40, 25],
        ),
        (
            {
                "memory/kubepods/memory.limit_in_bytes": str(90 * GIB),
                "memory/kubepods/memory.usage_in_bytes": str(80 * GIB),
                "memory/kubepods/memory.stat": f"inactive_file 7\ntotal_inactive_file {GIB}\n",
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
