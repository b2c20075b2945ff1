"""Who goes before a node's host memory runs out, where pods of its cards lend each other framebuffer.

What a card can't hold lies in host memory. When less of that is left than must stay free, one pod is evicted, of those
on cards whose pods hold more than they have: the one of lowest priority, and of these the one that worked longest ago,
because its framebuffer left the card first (`fleet.lending`). A pod that just appeared has just loaded, so it counts
as one that worked. Its card is closed to newcomers for a while. The next one goes only after the first had time to
leave and memory is still short, after twice as long each time; the pressure is over once half as much again is left, so
that memory which goes up and down about the limit costs one pod. Nobody goes for a shortage that lending can't have
made: what may lie in host memory must cover what is missing. Where nobody knows what a pod holds, that is its grant at
most; nobody holds more than its grant, whatever its region says, and who holds nothing by its region goes last of its
priority. Pure; called by `node_agent`.
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
_DOUBLED_MAX = 6
_RANKS = (Priority.LOW, Priority.NORMAL, Priority.HIGH)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lender:
    """A pod on a card whose pods hold more than it has.

    Attributes:
        away_bytes: the most of its framebuffer that can lie in host memory.
    """

    pod_id: str
    slice: SliceView
    away_bytes: int


class HostGuard:
    """Remembers who worked when, and who was asked to go; mutable: all of its methods move it on."""

    def __init__(self, settings: AgentSettings) -> None:
        self._settings, self._free_ratio_min = settings, settings.host_memory_free_ratio_min
        self._worked_at: dict[str, float] = {}
        self._asked: set[str] = set()
        self._gone = 0
        self._waits_since: float | None = None
        self._lenders: tuple[_Lender, ...] = ()
        self._away_bytes = 0

    def is_needed(self, view: NodeView) -> bool:
        """Whether framebuffer of any card may lie in host memory."""
        now, limit = view.at_seconds, self._settings.working_ratio
        working = {one.pod_id: now for one in view.slices if (one.duty_cycle_ratio or 0.0) > limit}
        seen = {one.pod_id: self._worked_at.get(one.pod_id, now) for one in view.slices}
        self._worked_at = seen | working
        # An agent that was just started, or whose clock was set back, doesn't know who left a moment ago.
        if self._waits_since is None or now < self._waits_since:
            self._waits_since = now
        self._find(view)
        return bool(self._lenders)

    def evictions(self, view: NodeView, memory: Sequence[HostMemory], refused: list[str]) -> tuple[Eviction, ...]:
        """Who is to go now, after `is_needed` of the same view: at most one pod.

        Args:
            memory: of the node and of groups with a limit; empty where nobody knows.
            refused: gets why nobody goes although memory is short.
        """
        if not memory:
            return ()
        tightest = max(memory, key=self._missing)
        missing, now = self._missing(tightest), view.at_seconds
        if missing <= 0:
            if all(one.available_bytes >= OVER_RATIO * self._free_ratio_min * one.total_bytes for one in memory):
                self._asked, self._gone = set(), 0
            return ()
        patience = self._settings.settle_seconds * 2 ** min(self._gone, _DOUBLED_MAX)
        if self._waits_since is not None and now - self._waits_since < patience:
            return ()
        short = (
            f"{tightest.available_bytes} of {tightest.total_bytes} bytes of host memory free, "
            f"agent.host_memory_free_ratio_min={self._free_ratio_min:g} wants {missing} more"
        )
        if self._away_bytes < missing:
            refused.append(
                f"nobody goes for host memory: {short}, and lent framebuffer holds {self._away_bytes} at most"
            )
            return ()
        victim = min((one for one in self._lenders if one.pod_id not in self._asked), key=self._order, default=None)
        if victim is None:
            self._asked, self._waits_since = set(), now
            return ()
        self._asked.add(victim.pod_id)
        return (
            Eviction(
                namespace=victim.slice.namespace,
                pod=victim.slice.pod,
                card=victim.slice.card,
                frees_bytes=victim.away_bytes,
                closed_until=now + self._settings.closed_seconds,
                reason=short,
                short_of=Shortage.HOST_MEMORY,
            ),
        )

    def went(self, at_seconds: float) -> None:
        """The pod that was asked goes; one that a budget keeps does not, and the next is asked at the next look."""
        self._gone += 1
        self._waits_since = at_seconds

    def _missing(self, memory: HostMemory) -> int:
        return int(memory.total_bytes * self._free_ratio_min) - memory.available_bytes

    def _order(self, lender: _Lender) -> tuple[int, bool, float, int, str]:
        rank = _RANKS.index(lender.slice.priority)
        return rank, not lender.away_bytes, self._worked_at[lender.pod_id], -lender.away_bytes, lender.pod_id

    def _find(self, view: NodeView) -> None:
        """Pods on each card that hold more together than it has; of a card that nobody measures nothing is known."""
        found: list[_Lender] = []
        self._away_bytes = 0
        for card in view.cards if self._free_ratio_min else ():
            slices = view.on_card(card.card)
            away = sum(map(_held, slices)) - card.framebuffer_bytes
            if away <= _SAME_SIZE_RATIO * card.framebuffer_bytes:
                continue
            self._away_bytes += away
            pods: defaultdict[str, list[SliceView]] = defaultdict(list)
            for entry in slices:
                pods[entry.pod_id].append(entry)
            found += [
                _Lender(pod_id=pod, slice=max(own, key=_held), away_bytes=min(away, sum(map(_held, own))))
                for pod, own in pods.items()
            ]
        self._lenders = tuple(found)


def _held(entry: SliceView) -> int:
    granted, used = entry.framebuffer_granted_bytes, entry.framebuffer_used_bytes
    return granted if used is None else min(granted, used)
