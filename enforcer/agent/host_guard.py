"""Who goes before a node's host memory runs out, where pods of its cards lend each other framebuffer.

What a card can't hold lies in host memory. When less of that is left than must stay free, one pod is evicted: of those
whose framebuffer may lie there the one of lowest priority, and of these the one that has rested longest, because its
framebuffer left the card first (`fleet.lending`). Its card is closed to newcomers for a while. A pod that works has its
framebuffer on the card, so it goes only where nobody rests. The next one goes only after the first had time to leave
and memory is still short; the pressure is over once half as much again is left, so that memory which goes up and down
about the limit costs one pod. Where nobody knows what a pod holds, that is its grant at most; nobody holds more than
its grant, whatever its region says. Pure; called by `node_agent`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from enforcer.agent.node_view import NodeView, SliceView
from enforcer.agent.watermark import Eviction, Shortage
from enforcer.host_memory import HostMemory
from fleet.inventory import Priority
from fleet.settings.agent import AgentSettings

OVER_RATIO = 1.5
"""What must be left, of what must stay free, until a pressure is over."""
_SAME_SIZE_RATIO = 0.005
"""By so much driver and scheduler may differ in what a card has."""
_RANKS = (Priority.LOW, Priority.NORMAL, Priority.HIGH)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lender:
    """A pod on a card whose pods hold more than it has.

    Attributes:
        away_bytes: the most of its framebuffer that can lie in host memory.
        rests: it is at rest, as far as anybody knows.
    """

    pod_id: str
    slice: SliceView
    away_bytes: int
    rests: bool


class HostGuard:
    """Remembers who worked when, and who was evicted; mutable: `is_needed` and `evictions` move it on."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings, self._free_ratio_min = settings, settings.host_memory_free_ratio_min
        self._worked_at: dict[str, float] = {}
        self._told_at: float | None = None
        self._told: frozenset[str] = frozenset()
        self._lenders: tuple[_Lender, ...] = ()

    def is_needed(self, view: NodeView) -> bool:
        """Whether framebuffer of any card may lie in host memory."""
        working = {entry.pod_id: view.at_seconds for entry in view.slices if not self._rests(entry)}
        there = {entry.pod_id for entry in view.slices}
        self._worked_at = {pod: at for pod, at in {**self._worked_at, **working}.items() if pod in there}
        self._lenders = self._found(view) if self._free_ratio_min else ()
        return bool(self._lenders)

    def evictions(self, view: NodeView, memory: Sequence[HostMemory]) -> tuple[Eviction, ...]:
        """Who goes now, after `is_needed` of the same view: at most one pod.

        Args:
            memory: of the node and of groups with a limit; empty where nobody knows.
        """
        if not memory:
            return ()
        tightest = max(memory, key=self._missing)
        missing, now = self._missing(tightest), view.at_seconds
        if missing <= 0:
            if all(one.available_bytes >= OVER_RATIO * self._free_ratio_min * one.total_bytes for one in memory):
                self._told_at, self._told = None, frozenset()
            return ()
        # A clock that was set back must not make it wait for hours.
        if self._told_at is not None and 0 <= now - self._told_at < self._settings.settle_seconds:
            return ()
        others = [one for one in self._lenders if one.pod_id not in self._told]
        victim = min(others or self._lenders, key=self._order, default=None)
        if victim is None:
            return ()
        self._told_at = now
        self._told = frozenset({victim.pod_id}) | (self._told if others else frozenset())
        return (
            Eviction(
                namespace=victim.slice.namespace,
                pod=victim.slice.pod,
                card=victim.slice.card,
                frees_bytes=victim.away_bytes,
                closed_until=now + self._settings.closed_seconds,
                reason=f"{tightest.available_bytes} of {tightest.total_bytes} bytes of host memory free, "
                f"agent.host_memory_free_ratio_min={self._free_ratio_min:g} wants {missing} more",
                short_of=Shortage.HOST_MEMORY,
            ),
        )

    def _missing(self, memory: HostMemory) -> int:
        return int(memory.total_bytes * self._free_ratio_min) - memory.available_bytes

    def _rests(self, entry: SliceView) -> bool:
        return entry.duty_cycle_ratio is None or entry.duty_cycle_ratio <= self._settings.working_ratio

    def _order(self, lender: _Lender) -> tuple[bool, int, float, int, str]:
        worked_at = self._worked_at.get(lender.pod_id, 0.0)
        rank = _RANKS.index(lender.slice.priority)
        return not lender.rests, rank, worked_at, -lender.away_bytes, lender.pod_id

    def _found(self, view: NodeView) -> tuple[_Lender, ...]:
        """Pods on each card that hold more together than it has; of a card that nobody measures nothing is known."""
        found: list[_Lender] = []
        for card in view.cards:
            slices = view.on_card(card.card)
            away = sum(map(_held, slices)) - card.framebuffer_bytes
            if away <= _SAME_SIZE_RATIO * card.framebuffer_bytes:
                continue
            pods: defaultdict[str, list[SliceView]] = defaultdict(list)
            for entry in slices:
                pods[entry.pod_id].append(entry)
            found += [
                _Lender(
                    pod_id=pod,
                    slice=max(own, key=_held),
                    away_bytes=min(away, sum(map(_held, own))),
                    rests=all(map(self._rests, own)),
                )
                for pod, own in pods.items()
                if any(map(_held, own))
            ]
        return tuple(found)


def _held(entry: SliceView) -> int:
    granted, used = entry.framebuffer_granted_bytes, entry.framebuffer_used_bytes
    return granted if used is None else min(granted, used)
