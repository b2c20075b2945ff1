"""Node agents of a scenario that has `demand.toml`: they serve what `gputide run agent` would see on each node.

`demand.toml` says how many cards' work each workload is asked for now; `run.sh` writes it where users would bring it
about. Pods of a workload share that work evenly, and a pod does no more than its card can. Views are served by the
agent's own server; which pod has which card is read as the backend's scheduler wrote it.
"""

from __future__ import annotations

import threading
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from enforcer.agent.node_view import CardView, NodeView, SliceView
from enforcer.agent.view_server import ViewServer
from fleet.inventory import Card, Priority
from fleet.units import MIB
from tests.cluster.api import Api
from tests.cluster.played_backends import CONTAINER, PlayedBackend

LOOK_SECONDS = 0.5


@contextmanager
def agents(api: Api, played: PlayedBackend, cards: Sequence[Card], demand: Path) -> Iterator[tuple[str, ...]]:
    """Let an agent answer for each node; the addresses where they do."""
    by_node: dict[str, list[Card]] = defaultdict(list)
    for card in cards:
        by_node[card.node].append(card)
    is_over = threading.Event()
    with ExitStack() as ends:
        servers = {
            node: ViewServer(node, host="127.0.0.1", port=0, full_ratio=0.97, free_ratio_min=0.0) for node in by_node
        }
        for server in servers.values():
            server.start()
            ends.callback(server.stop)

        def look() -> None:
            while not is_over.wait(LOOK_SECONDS):
                slices = _slices(api, played, tomllib.loads(demand.read_text(encoding="utf-8")))
                for node, own in by_node.items():
                    servers[node].show(_view(own, slices))

        looking = threading.Thread(target=look, name="agents", daemon=True)
        looking.start()
        ends.callback(looking.join)
        ends.callback(is_over.set)
        yield tuple(f"http://127.0.0.1:{server.address[1]}" for server in servers.values())


def _slices(api: Api, played: PlayedBackend, demand: Mapping[str, float]) -> list[SliceView]:
    found = []
    for space in (one["metadata"]["name"] for one in api.ask("GET", "/api/v1/namespaces")["items"]):
        parts, holders = played.grants(api, space), played.holders(api, space)
        pods = Counter(workload for workload, _ in holders.values())
        for pod, (workload, cards) in holders.items():
            share = min(1.0, demand.get(workload.rpartition("/")[2], 0.0) / pods[workload])
            found += [
                SliceView(
                    namespace=space, pod=pod, pod_uid=None, container=CONTAINER, card=card, priority=Priority.NORMAL,
                    framebuffer_used_bytes=None, framebuffer_granted_bytes=parts[pod][card][0] * MIB,
                    framebuffer_limit_bytes=None, duty_cycle_ratio=share,
                )
                for card in cards
                if card in parts.get(pod, {})  # bound since
            ]  # fmt: skip
    return found


def _view(cards: Sequence[Card], slices: Sequence[SliceView]) -> NodeView:
    own = {card.card: tuple(part for part in slices if part.card == card.card) for card in cards}
    return NodeView(
        at_seconds=time.time(),
        cards=tuple(
            CardView(
                card=card.card, framebuffer_bytes=card.framebuffer_bytes, framebuffer_free_bytes=None,
                duty_cycle_ratio=min(1.0, sum(part.duty_cycle_ratio or 0.0 for part in own[card.card])),
            )
            for card in cards
        ),
        slices=tuple(part for parts in own.values() for part in parts),
    )  # fmt: skip
