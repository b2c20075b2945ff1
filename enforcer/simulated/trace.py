"""What the users of a simulated cluster do by themselves, as a trace has it: cards appear, workloads come and go.

One piece of the simulated cluster, called by its `sync` once per replayed step. What the enforcer changed stays: a pod
that a plan moved lives on where it is until its user ends it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from enforcer.cluster import identity
from enforcer.manifest import Manifest
from enforcer.simulated.controllers import Controllers
from enforcer.simulated.kind_specs import annotations_of_kind, api_version, resize, spec_of_kind
from enforcer.simulated.nodes import share_nodes
from enforcer.simulated.store import SimulatedStore
from enforcer.simulated.system import SharingSystem, by_container
from fleet.inventory import Card, Grant, Inventory, Node


class TraceFollower:
    """Keeps the simulated users in step with an inventory."""

    def __init__(self, store: SimulatedStore, controllers: Controllers, system: SharingSystem) -> None:
        self._store = store
        self._system = system
        self._controllers = controllers
        self._generation = -1
        self._known: dict[tuple[str, str], tuple[str, ...]] = {}
        self._seen: tuple[tuple[Card, ...], tuple[Node, ...]] = ((), ())
        self._models: tuple[str, ...] = ()

    def follow(self, inventory: Inventory, now_ms: int) -> bool:
        """Do what users did up to now; True where anything changed."""
        live: dict[tuple[str, str], list[Grant]] = {}
        for grant in inventory.grants:
            if grant.lives_at(inventory.as_of):
                live.setdefault((grant.namespace, grant.pod), []).append(grant)
        homes = {key: _homes(grants) for key, grants in live.items()}
        if self._generation != self._store.number("generation"):
            found = self._store.rows("SELECT namespace, pod, homes FROM roster")
            self._known = {(row[0], row[1]): tuple(json.loads(row[2])) for row in found}
        hardware = (inventory.cards, inventory.nodes)
        is_same = self._known == homes and self._seen == hardware
        if is_same:
            self._generation = self._store.number("generation")
            return False
        with self._store.transaction():
            self._store.set_number("clock_ms", max(now_ms, self._store.number("clock_ms")))
            self._hardware(inventory)
            self._end([key for key in self._known if key not in live])
            self._move({key: homes[key] for key in sorted(live) if self._known.get(key, homes[key]) != homes[key]})
            self._begin([live[key] for key in sorted(live) if key not in self._known])
        self._known = homes
        self._seen = hardware
        self._generation = self._store.number("generation")
        return True

    def _hardware(self, inventory: Inventory) -> None:
        store = self._store
        self._models = tuple(sorted({card.card_model for card in inventory.cards}))
        nodes = {node.node: (node.cpu_cores, node.memory_bytes) for node in inventory.nodes}
        for card in inventory.cards:
            nodes.setdefault(card.node, (None, None))
        known_nodes = {row[0] for row in store.rows("SELECT name FROM nodes")}
        known_cards = {row[0] for row in store.rows("SELECT card FROM cards")}
        new_nodes = [(name, *nodes[name], 1.0, 1) for name in sorted(nodes) if name not in known_nodes]
        new_cards = [
            (card.card, card.card_model, card.framebuffer_bytes, card.node)
            for card in inventory.cards
            if card.card not in known_cards
        ]
        gone = known_cards - {card.card for card in inventory.cards}
        if new_nodes or new_cards or gone:
            store.write("INSERT INTO nodes VALUES (?, ?, ?, ?, ?)", new_nodes)
            store.write("INSERT INTO cards VALUES (?, ?, ?, ?)", new_cards)
            store.write("DELETE FROM cards WHERE card=?", [(card,) for card in gone])
        for config in self._system.configs:
            if store.object_body(*identity(config)) is None:
                store.put_object(config)
        if new_nodes or new_cards or gone:
            share_nodes(store, self._system)

    def _end(self, keys: Sequence[tuple[str, str]]) -> None:
        store = self._store
        owners = set()
        for namespace, name in sorted(keys):
            found = store.rows("SELECT owner_kind, owner_name FROM roster WHERE namespace=? AND pod=?", namespace, name)
            owners.add((found[0][0], namespace, found[0][1]))
            store.write("DELETE FROM roster WHERE namespace=? AND pod=?", [(namespace, name)])
            played = store.pods("namespace=? AND plays=?", namespace, name)
            for pod in played:
                store.drop_pod(pod)
            if played:
                self._scale(found[0][0], namespace, found[0][1], -1)
        for kind, namespace, name in owners:
            if not store.roster(kind, namespace, name):
                store.drop_object(kind, namespace, name)
                store.drop_revisions(kind, namespace, name)
        if keys:
            self._controllers.retry_pending()

    def _move(self, homes: Mapping[tuple[str, str], tuple[str, ...]]) -> None:
        """Follow pods whose card was exchanged; those that a plan moved stay where it put them."""
        store = self._store
        left = []
        for (namespace, name), cards in homes.items():
            found = store.rows(
                "SELECT homes, owner_kind, owner_name FROM roster WHERE namespace=? AND pod=?", namespace, name
            )
            store.write("UPDATE roster SET homes=? WHERE namespace=? AND pod=?", [(json.dumps(cards), namespace, name)])
            played = [pod.name for pod in store.pods("namespace=? AND plays=?", namespace, name)]
            sits_on = sorted({part.card for pod in played for part in store.allocations(namespace, pod)})
            owner = store.object_body(found[0][1], namespace, found[0][2])
            if sits_on == json.loads(found[0][0]) and owner is not None:
                left.append((namespace, name, owner[1]))
        for namespace, name, _ in left:
            for pod in store.pods("namespace=? AND plays=?", namespace, name):
                store.drop_pod(pod)
        for namespace, name, body in left:
            self._controllers.begin_pod(body, name, homes[(namespace, name)])
        if left:
            self._controllers.retry_pending()

    def _begin(self, pods: Sequence[Sequence[Grant]]) -> None:
        store = self._store
        store.write(
            "INSERT INTO roster VALUES (?, ?, ?, ?, ?, 0)",
            [(g[0].namespace, g[0].pod, g[0].workload_kind, g[0].workload, json.dumps(_homes(g))) for g in pods],
        )
        for grants in pods:
            first = grants[0]
            kind, namespace, name = first.workload_kind, first.namespace, first.workload
            if store.object_body(kind, namespace, name) is None:
                store.put_object(_owner(grants, self._models, self._system))
            else:
                self._scale(kind, namespace, name, 1)
            found = store.object_body(kind, namespace, name)
            if found is None:
                raise KeyError(f"{namespace}/{kind}/{name}")
            self._controllers.begin_pod(found[1], first.pod, _homes(grants))

    def _scale(self, kind: str, namespace: str, name: str, by: int) -> None:
        found = self._store.object_body(kind, namespace, name)
        if found is None:
            return
        resize(found[1], by)
        self._store.put_object(found[1])


def _homes(grants: Sequence[Grant]) -> tuple[str, ...]:
    """The cards that the trace has a pod on, sorted."""
    return tuple(sorted({grant.card for grant in grants}))


def _owner(grants: Sequence[Grant], models: Sequence[str], system: SharingSystem) -> Manifest:
    """The object that would have made a pod with these grants."""
    first = grants[0]
    words = system.tenant(grants, models)
    containers = []
    for name, own in by_container(grants).items():
        container = dict(words.containers[name])
        requests = {}
        if own[0].cpu_request_cores is not None:
            requests["cpu"] = f"{round(own[0].cpu_request_cores * 1000)}m"
        if own[0].memory_request_bytes is not None:
            requests["memory"] = str(own[0].memory_request_bytes)
        if requests:
            container["resources"] = {**container["resources"], "requests": requests}
        containers.append({"name": name, **container})
    own_keys = {key: value for key, value in first.labels if key.startswith("gputide.io/")}
    labels = {**words.labels, **{key: value for key, value in first.labels if not key.startswith("gputide.io/")}}
    marks_of_pods = {**words.annotations, **own_keys}
    template = {
        "metadata": {
            # The API server keeps no empty maps.
            **({"annotations": marks_of_pods} if marks_of_pods else {}),
            "labels": {"app": first.workload, **labels},
        },
        "spec": {**words.spec, "containers": containers},
    }
    return {
        "apiVersion": api_version(first.workload_kind),
        "kind": first.workload_kind,
        "metadata": {
            "namespace": first.namespace,
            "name": first.workload,
            **({"annotations": marks} if (marks := {**annotations_of_kind(first.workload_kind), **own_keys}) else {}),
            **({"labels": labels} if labels else {}),
            "generation": 1,
        },
        "spec": spec_of_kind(first.workload_kind, template),
    }
