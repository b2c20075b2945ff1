"""Who sleeps: low priority of overloaded cards, until they have been without trouble for a while.

Decided anew from the overloads and the ledger, so that the orders of a relief that was killed are taken back by the
next. Who shall sleep is held against the API server first: the pod that is meant, and not one that opted out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from enforcer.agent.node_view import ContainerKey, SliceView
from enforcer.relief.overload import Overload
from enforcer.relief.relief_context import ReliefContext, ReliefPolicy
from enforcer.relief.wishes import has_opted_out
from fleet.errors import Misconfigured, Refused
from fleet.sentences import Sentence

_BELIEVED = timedelta(minutes=1)
"""For how long it is believed of somebody that he must not be put to sleep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepPlan:
    """What is to be written into the orders of nodes.

    Attributes:
        wanted: who sleeps, by node and card.
        changed: cards of which that is news, and why.
        over: cards on which everybody may wake.
    """

    wanted: Mapping[tuple[str, str], frozenset[ContainerKey]]
    changed: Mapping[tuple[str, str], Sentence]
    over: tuple[tuple[str, str], ...]


class Sleeping:
    """Remembers since when cards are in trouble, and when orders were last renewed; mutable: every plan moves it on."""

    def __init__(self, tools: ReliefContext, policy: ReliefPolicy) -> None:
        self._tools, self._policy = tools, policy
        self._trouble_at: dict[tuple[str, str], datetime] = {}
        self._renewed_at: datetime | None = None
        self._awake: dict[ContainerKey, datetime] = {}

    def plan(self, found: Sequence[Overload]) -> SleepPlan | None:
        """What is to be written now; None where the orders that stand are right and fresh.

        Raises:
            Unavailable: the cluster can't be reached.
        """
        now = self._tools.reader.now()
        standing = {(entry.node, entry.card): entry for entry in self._tools.journal.open_squeezes()}
        wanted: dict[tuple[str, str], frozenset[ContainerKey]] = {}
        reasons: dict[tuple[str, str], Sentence] = {}
        for entry in found:
            place = entry.node, entry.card
            self._trouble_at[place], reasons[place] = now, entry.reason
            known = standing[place].containers if place in standing else frozenset()
            keys = self._sleepers(entry.low, known, now)
            if keys:
                wanted[place] = keys
        calm = timedelta(seconds=self._policy.calm_seconds)
        for place, squeeze in standing.items():
            last = self._trouble_at.setdefault(place, squeeze.at)
            if place not in wanted and now - last < calm:
                wanted[place] = squeeze.containers
        changed = {
            place: reasons[place]
            for place, keys in wanted.items()
            if place in reasons and (place not in standing or standing[place].containers != keys)
        }
        over = tuple(place for place in standing if place not in wanted)
        renew = timedelta(seconds=self._policy.squeeze_seconds / 3)
        is_old = self._renewed_at is None or now - self._renewed_at >= renew
        if not changed and not over and not (wanted and is_old):
            return None
        return SleepPlan(wanted=wanted, changed=changed, over=over)

    def carry_out(self, plan: SleepPlan) -> list[str]:
        """Write what is to be written; what to say of it.

        Raises:
            Misconfigured: a right is missing.
            Refused: the orders can't be written.
            Unavailable: the cluster can't be reached; the next look tries again.
        """
        tools, now = self._tools, self._tools.reader.now()
        said = []
        for (node, card), reason in plan.changed.items():
            keys = plan.wanted[node, card]
            tools.journal.squeeze(now, node, card, keys, reason)
            said.append(f"{len(keys)} containers of low priority sleep on {card}: {reason}")
        for node, card in plan.over:
            tools.journal.release(now, node, card)
            self._trouble_at.pop((node, card), None)
            said.append(f"low priority on {card} may work again")
        nodes = {node for node, _ in (*plan.wanted, *plan.over)}
        by_node = {
            node: frozenset(key for (other, _), keys in plan.wanted.items() if other == node for key in keys)
            for node in nodes
        }
        self._renewed_at = None
        try:
            tools.orders.pause(by_node, self._policy.squeeze_seconds)
        except (Misconfigured, Refused) as exc:
            if plan.changed:
                tools.journal.squeezed(now, sorted(nodes), str(exc))
            # It is tried again with the next renewal.
            self._renewed_at = now
            raise
        self._renewed_at = now
        if plan.changed:
            tools.journal.squeezed(tools.reader.now(), sorted(nodes), "ordered")
        return said

    def _sleepers(
        self, low: Sequence[SliceView], known: frozenset[ContainerKey], now: datetime
    ) -> frozenset[ContainerKey]:
        """Who may be put to sleep: each is held against the API server, and once in a while again."""
        found = set()
        self._awake = {key: at for key, at in self._awake.items() if now - at < _BELIEVED}
        for part in low:
            key = part.key
            if key is None or key in self._awake:
                continue
            if key in known or self._may_sleep(part, key):
                found.add(key)
            else:
                self._awake[key] = now
        return frozenset(found)

    def _may_sleep(self, part: SliceView, key: ContainerKey) -> bool:
        pod = self._tools.reader.get("Pod", part.namespace, part.pod)
        if pod is None or str(pod["metadata"].get("uid", "")) != key.pod_uid:
            return False
        return not has_opted_out(pod, self._tools.reader)
