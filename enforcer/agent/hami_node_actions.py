"""What the agent does through the API server on a node of HAMi: evictions, closed cards, and books that are kept right.

**Closed cards** stand in HAMi's own note on the node (`hami.io/device-cordon`); which of them are ours, and until when,
stands beside it, so that cards that somebody else closed stay closed, and an agent that was killed opens ours again.
HAMi's scheduler reads a node anew only when its handshake does not say "Requesting", so the handshake is set to
"Reported" with it (measured on HAMi 2.10: it acts within 15 s).

**Books.** HAMi's scheduler counts what a pod's annotation says it was given. A limit that changed while the pod runs is
written there too; a scheduler that reads the pod anew then counts it (HAMi itself offers no resize:
Project-HAMi/HAMi#1674). Called by `node_agent`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypeVar

from enforcer.agent.live_limits import WantedLimit
from enforcer.agent.node_view import SliceView
from enforcer.agent.watermark import Shortage
from enforcer.backends.hami_dialect import containers_of_grants, cordoned_cards
from enforcer.cluster import ClusterReader, ClusterWriter, FieldChange
from enforcer.manifest import Manifest
from fleet.errors import Corrupt, Misconfigured, Refused, Unavailable
from fleet.grammars.hami import (
    DEVICE_CORDON_ANNOTATION,
    DEVICES_ALLOCATED_ANNOTATION,
    NODE_HANDSHAKE_ANNOTATION,
    NODE_REGISTER_ANNOTATION,
    parse_devices_allocated,
    render_devices_allocated,
)
from fleet.grammars.vgpumanager import REGISTER_ANNOTATION as VGPU_MANAGER_REGISTER
from fleet.units import MIB, format_time, parse_time

CLOSED_CARDS_ANNOTATION = "gputide.io/closed-cards"
"""Cards that this agent closed: JSON, UUID to the time until which."""

_EVENTS = {
    Shortage.FRAMEBUFFER: ("GputideFramebuffer", "has to go so that high priority keeps framebuffer"),
    Shortage.HOST_MEMORY: ("GputideHostMemory", "has to go before host memory, where its framebuffer lies, runs out"),
}
"""Reason and message of the event on a pod that is evicted."""
_RETRY_SECONDS = 30.0

_Done = TypeVar("_Done")


class HamiNodeActions:
    """Acts on one node and its pods (the port `NodeActions`).

    Args:
        writer: the cluster, with the rights of a node's agent.
    """

    def __init__(self, reader: ClusterReader, writer: ClusterWriter, node: str) -> None:
        self._reader, self._writer, self._node = reader, writer, node
        self._next_look = -math.inf

    def evict(self, namespace: str, pod: str, short_of: Shortage) -> None:
        """Evict a pod of this node; see the port."""
        manifest = self._reader.get("Pod", namespace, pod)
        if manifest is None:
            return
        if manifest["spec"].get("nodeName") != self._node:
            raise Refused(f"cannot evict {namespace}/{pod}: it is not on {self._node}")
        self._writer.record_event("Pod", namespace, pod, *_EVENTS[short_of])
        if not self._writer.evict(namespace, pod):
            raise Unavailable(f"cannot evict {namespace}/{pod}: a disruption budget does not allow it now")

    def close_card(self, card: str, until_seconds: float) -> None:
        """Keep newcomers off a card; see the port."""

        def close(node: Manifest) -> None:
            annotations = node["metadata"].get("annotations", {})
            if VGPU_MANAGER_REGISTER in annotations and NODE_REGISTER_ANNOTATION not in annotations:
                raise Refused(f"cannot close {card}: the scheduler of vgpu-manager reads no note of closed cards")
            closed = self._closed_by_us(node)
            # Somebody else's: noted as ours it would be opened.
            if card in closed or card not in cordoned_cards(node):
                self._write(node, {**closed, card: until_seconds}, add={card}, remove=frozenset())

        self._on_node(close)

    def open_cards(self, now_seconds: float) -> tuple[str, ...]:
        """Let newcomers onto cards whose time is over; see the port."""
        if now_seconds < self._next_look:
            return ()
        # A server that refuses is not asked at every look.
        self._next_look = now_seconds + _RETRY_SECONDS

        def open_those_over(node: Manifest) -> tuple[str, ...]:
            closed = self._closed_by_us(node)
            over = frozenset(card for card, until in closed.items() if until <= now_seconds)
            left = {card: until for card, until in closed.items() if card not in over}
            if over:
                self._write(node, left, add=set(), remove=over)
            self._next_look = min(left.values(), default=math.inf)
            return tuple(sorted(over))

        return self._on_node(open_those_over)

    def open_card(self, card: str) -> None:
        """Let newcomers onto one card before its time is over; one that somebody else closed stays closed."""

        def reopen(node: Manifest) -> None:
            closed = self._closed_by_us(node)
            if card in closed:
                left = {name: until for name, until in closed.items() if name != card}
                self._write(node, left, add=set(), remove=frozenset({card}))

        self._on_node(reopen)

    def account(self, seat: SliceView, limit: WantedLimit) -> None:
        """Write a limit into the pod's own record of what it was given; see the port."""
        pod = self._reader.get("Pod", seat.namespace, seat.pod)
        if pod is None or pod["metadata"].get("uid") != limit.container.pod_uid:
            raise Refused(f"cannot change the allocation of {seat.pod_id}: it is gone")
        text = pod["metadata"].get("annotations", {}).get(DEVICES_ALLOCATED_ANNOTATION, "")
        try:
            grants = [list(container) for container in parse_devices_allocated(text)]
            names = [container["name"] for container in containers_of_grants(pod, grants)]
        except Corrupt as exc:
            raise Refused(f"cannot change the allocation of {seat.pod_id}: {exc}") from exc
        if limit.container.container not in names:
            raise Refused(
                f"cannot change the allocation of {seat.pod_id}: none of {limit.container.container} is in it"
            )
        place = names.index(limit.container.container)
        found = [number for number, grant in enumerate(grants[place]) if grant.card == limit.card]
        if not found:
            raise Refused(f"cannot change the allocation of {seat.pod_id}: {limit.card} is not in it")
        old = grants[place][found[0]]
        grants[place][found[0]] = replace(old, framebuffer_mib=limit.framebuffer_bytes // MIB)
        new = render_devices_allocated(grants)
        if new != text:
            field = FieldChange(field=f"metadata.annotations[{DEVICES_ALLOCATED_ANNOTATION}]", value=new)
            self._writer.patch("Pod", seat.namespace, seat.pod, [field], pod["metadata"]["resourceVersion"])

    def _on_node(self, act: Callable[[Manifest], _Done]) -> _Done:
        """Act on the node as it is; once more where the kubelet or HAMi's plugin wrote it meanwhile."""
        for is_last in (False, False, True):
            node = self._reader.get("Node", "", self._node)
            if node is None:
                break
            try:
                return act(node)
            except Refused:
                if is_last:
                    raise
        raise Refused(f"cannot close or open cards: the cluster has no node {self._node}")

    def _closed_by_us(self, node: Manifest) -> dict[str, float]:
        text = node["metadata"].get("annotations", {}).get(CLOSED_CARDS_ANNOTATION, "{}")
        try:
            found = json.loads(text)
            return {str(card): parse_time(str(until)).timestamp() for card, until in found.items()}
        except (ValueError, AttributeError, RecursionError, Misconfigured):
            # Not ours any more: what somebody wrote over it stays closed until he opens it.
            return {}

    def _write(self, node: Manifest, closed: Mapping[str, float], add: set[str], remove: frozenset[str]) -> None:
        annotations = node["metadata"].get("annotations", {})
        cards = [card for card in dict.fromkeys([*cordoned_cards(node), *sorted(add)]) if card not in remove]
        times = {card: format_time(datetime.fromtimestamp(until, UTC)) for card, until in sorted(closed.items())}
        fields = {
            DEVICE_CORDON_ANNOTATION: ",".join(cards) or None,
            CLOSED_CARDS_ANNOTATION: json.dumps(times, separators=(",", ":")) if times else None,
        }
        if NODE_HANDSHAKE_ANNOTATION in annotations:
            fields[NODE_HANDSHAKE_ANNOTATION] = f"Reported_{self._reader.now():%Y-%m-%d %H:%M:%S}"
        changes = [FieldChange(field=f"metadata.annotations[{name}]", value=value) for name, value in fields.items()]
        self._writer.patch("Node", "", self._node, changes, node["metadata"]["resourceVersion"])
        self._next_look = min(closed.values(), default=math.inf)
