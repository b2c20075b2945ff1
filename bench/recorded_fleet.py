"""A fleet that `fleet.toml` of a scenario describes: stood up on a real API server, and recorded as it stands there.

`record FOLDER` in a scenario's `run.sh` stands for `gputide scan URL --record FOLDER` on a cluster with a Prometheus.
At first it writes the days up to now, later also the day that comes. Pods have the names, places, grants, priorities
and labels that they have on the cluster at that moment, and nodes its memory, as the exporter reads them there: what
`fleet.toml` alone says of that, nobody sees. Each pod asks for what its service asks for, and pods of a card that ask
for more than it has get less, by plain arithmetic.
"""

from __future__ import annotations

import json
import pickle
import shutil
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from exporter.allocation.manifest import Shared
from exporter.allocation.nodes import node_record
from exporter.allocation.pods import pod_record
from fleet.errors import Misconfigured
from fleet.inventory import CardId, Grant, Inventory, Node, Priority
from fleet.schema import Measure
from fleet.units import MIB
from fleet.usage import Float32, History, SliceKey
from tests.cluster.api import Api
from tests.cluster.placed_fleet import record
from tests.cluster.played_backends import PlayedBackend
from tests.cluster.standing_fleet import stand_up
from tests.recommender.builders import STEP_SECONDS, Service, cluster

LONG_AGO = timedelta(days=30)
"""How long pods stand where they are when the fleet is recorded first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFleet:
    """What there is to record, and what was.

    Attributes:
        description: path of `fleet.toml`.
        kubeconfig: of an administrator.
        played: the backend.
        inventory: cards, nodes and workloads as they were stood up.
        recorded: what was written so far, in order of time.
    """

    description: Path
    kubeconfig: Path
    played: PlayedBackend
    inventory: Inventory
    recorded: tuple[History, ...] = ()


def stand_up_fleet(description: Path, api: Api, kubeconfig: Path, played: PlayedBackend) -> RecordedFleet:
    """Let the services of all pools run, each pool in a namespace and on nodes of its own."""
    found = []
    for space, services, cards in pools_of(description):
        api.create("/api/v1/namespaces", {"metadata": {"name": space}})
        found.append(stand_up(api, space, *services, prefix=space, played=played, **cards).inventory)
    inventory = replace(
        found[0],
        cards=tuple(card for one in found for card in one.cards),
        nodes=tuple(node for one in found for node in one.nodes),
        grants=tuple(grant for one in found for grant in one.grants),
    )
    return RecordedFleet(description=description, kubeconfig=kubeconfig, played=played, inventory=inventory)


def record_on(fleet: RecordedFleet, folder: Path) -> RecordedFleet:
    """Record the fleet, and return what the next call has to know."""
    api = administrator(fleet.kubeconfig)
    now, is_first = datetime.now(UTC), not fleet.recorded
    pools = list(pools_of(fleet.description))
    before = fleet.inventory if is_first else fleet.recorded[-1].inventory
    # The past ends with the step after now, so that it holds all that was done; the coming day begins there.
    next_step = datetime.fromtimestamp((int(now.timestamp()) // STEP_SECONDS + 1) * STEP_SECONDS, UTC)
    told = [cluster(*services, **(cards if is_first else {"days": 1, "seed": 2})) for _, services, cards in pools]
    steps = told[0].slices.steps
    since = next_step - timedelta(seconds=STEP_SECONDS * steps) if is_first else before.as_of
    grants = [
        grant
        for space, _, _ in pools
        for grant in _standing(api, fleet.played, space, before, now - LONG_AGO if is_first else now)
    ]  # fmt: skip
    standing = {_key(grant) for grant in grants}
    gone = [] if is_first else [replace(one, ended_at=now) for one in before.grants if _key(one) not in standing]
    inventory = replace(
        before, nodes=tuple(_nodes(api, before)), as_of=since + timedelta(seconds=STEP_SECONDS * steps),
        grants=tuple(sorted((*gone, *grants), key=_key)),
    )  # fmt: skip
    mean = _seen(told, grants, {card.card: card.framebuffer_bytes for card in before.cards})
    slices = replace(told[0].slices, keys=tuple(map(SliceKey.of, grants)), mean=mean, peak=mean, since=since)
    recorded = (*fleet.recorded, History(inventory=inventory, slices=slices))
    shutil.rmtree(folder, ignore_errors=True)
    record(folder, *recorded)
    return replace(fleet, recorded=recorded)


def administrator(kubeconfig: Path) -> Api:
    """An administrator's hand on the cluster of a kubeconfig."""
    place = json.loads(kubeconfig.read_text(encoding="utf-8"))["clusters"][0]["cluster"]
    return Api(place["server"], Path(place["certificate-authority"]), kubeconfig)


def pools_of(description: Path) -> Iterator[tuple[str, list[Service], dict[str, Any]]]:
    """Namespace, services and cards of every pool."""
    told = tomllib.loads(description.read_text(encoding="utf-8"))
    for pool in told["pools"]:
        space, services = pool.pop("namespace"), pool.pop("services")
        found = []
        for one in services:
            one["hours"] = tuple(one.get("hours", (0, 24)))
            names = [f"{one['name']}-{number}" for number in range(one["count"])] if "count" in one else [one["name"]]
            priority = Priority(one.get("priority", "high"))
            own = {name: value for name, value in one.items() if name not in ("name", "count", "priority")}
            found += [Service(namespace=space, name=name, priority=priority, **own) for name in names]
        yield space, found, {"days": told["days"], **pool}


def _standing(api: Api, played: PlayedBackend, space: str, before: Inventory, began: datetime) -> Iterator[Grant]:
    """What pods of a namespace hold now: as before, or made anew since."""
    known = {_key(one): one.started_at for one in before.grants}
    node_of = {card.card: card.node for card in before.cards}
    parts, reading = played.grants(api, space), Shared()
    stand = {
        pod["metadata"]["name"]: pod_record(pod, reading)
        for pod in api.ask("GET", f"/api/v1/namespaces/{space}/pods")["items"]
    }
    for pod, (workload, cards) in sorted(played.holders(api, space).items()):
        own = next(one for one in before.grants if one.workload_id == workload)
        record = stand[pod]
        if record is None:
            raise Misconfigured(f"cannot record pod {pod}: the exporter sees no card that it asks for")
        (needs,) = (one for one in record.containers if not one.is_init)
        own = replace(
            own, priority=needs.priority, labels=record.labels, server=needs.server, cpu_request_cores=needs.cpu_cores,
            memory_request_bytes=needs.memory_bytes,
        )  # fmt: skip
        for card in map(CardId, cards):
            mib, cores, profile = parts[pod][card]
            here = replace(
                own, pod=pod, card=card, node=node_of[card], framebuffer_granted_bytes=mib * MIB,
                compute_granted_ratio=(cores or 100) / 100, mig_profile=profile, ended_at=None,
            )  # fmt: skip
            yield replace(here, started_at=known.get(_key(here), began))


def _nodes(api: Api, before: Inventory) -> Iterator[Node]:
    for node in before.nodes:
        found = node_record(api.ask("GET", f"/api/v1/nodes/{node.node}"), Shared())
        yield replace(node, cpu_cores=found.cpu_cores, memory_bytes=found.memory_bytes)


def _seen(told: Sequence[History], grants: Sequence[Grant], capacity: Mapping[CardId, int]) -> dict[Measure, Float32]:
    """What is measured of pods that ask for what their services ask for; every table of shape (grants, steps).

    Args:
        capacity: bytes of framebuffer of each card.
    """
    left = defaultdict(list)
    for history in told:
        # Rows are in the order of keys, grants in that of names.
        named = {_key(grant): grant.workload_id for grant in history.inventory.grants}
        for row, key in enumerate(history.slices.keys):
            left[named[_key(key)]].append({of: table[row] for of, table in history.slices.mean.items()})
    rows = [left[grant.workload_id].pop() for grant in grants]
    used = np.array([row[Measure.FRAMEBUFFER_USED] for row in rows])
    # A process that is denied framebuffer ends; it works no more.
    works = used <= np.array([[grant.framebuffer_granted_bytes] for grant in grants])
    limits = np.array([[grant.compute_granted_ratio] for grant in grants])
    limited = np.minimum(np.array([row[Measure.SM_ACTIVE] for row in rows]) * works, limits)
    beside = np.array([[one.card == other.card for other in grants] for one in grants])
    # The backend lets low priority work only while nobody else of its card does.
    is_low = np.array([[grant.priority is Priority.LOW] for grant in grants])
    limited *= ~(is_low & (beside @ (limited * ~is_low) > 0))
    # Pods share a full card in proportion to what they ask for.
    served = (limited / np.maximum(beside @ limited, 1.0)).astype(np.float32)
    # Where pods hold more framebuffer than their card has, that of pods that rest lies in the host's memory.
    is_lent = beside @ (used * works) > np.array([[capacity[grant.card]] for grant in grants])
    held = used * works * ~(is_lent & (limited == 0))
    return {Measure.SM_ACTIVE: served, Measure.DUTY_CYCLE: served, Measure.FRAMEBUFFER_USED: held}


def _key(one: Grant | SliceKey) -> tuple[str, str]:
    return one.pod_id, one.card


if __name__ == "__main__":
    kept = Path(sys.argv[1])
    fleet = pickle.loads(kept.read_bytes())  # noqa: S301 - we wrote it
    kept.write_bytes(pickle.dumps(record_on(fleet, Path(sys.argv[2]))))
