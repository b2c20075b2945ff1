"""The nodes of the simulated cluster as manifests: what their plugin registers, and what users wrote on them.

Labels, annotations and the cordon of a node are kept as an object of their own; what the plugin registers is made from
the books each time, so that nobody can write it. Called by `cluster`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from enforcer.backends.hami_dialect import cordoned_cards
from enforcer.cluster import FieldChange, identity
from enforcer.manifest import Manifest, set_field
from enforcer.simulated.books import CardBook
from enforcer.simulated.store import SimulatedStore
from enforcer.simulated.system import NodeWords, SharingSystem
from fleet.errors import Refused

_WRITABLE = ("metadata.annotations[", "metadata.labels[", "spec.unschedulable")


def node_manifests(
    store: SimulatedStore, system: SharingSystem, names: Collection[str] | None = None
) -> tuple[Manifest, ...]:
    """Nodes, by name: those of some names, or all."""
    books = store.books()
    by_node: dict[str, list[CardBook]] = {name: [] for name in books.nodes if names is None or name in names}
    for card in books.cards.values():
        if card.node in by_node:
            by_node[card.node].append(card)
    generation = store.number("generation")
    written = {str(body["metadata"]["name"]): (version, body) for version, body in store.objects_of("Node")}
    words = {name: system.node(cards) for name, cards in by_node.items()}
    return tuple(_manifest(name, words[name], generation, written.get(name)) for name in sorted(by_node))


def share_nodes(store: SimulatedStore, system: SharingSystem) -> None:
    """Let plugins take up what is configured of their nodes.

    Raises:
        Refused: a plugin would not start with that.
    """
    found = {identity(config): store.object_body(*identity(config)) for config in system.configs}
    configs = {key: entry[1] for key, entry in found.items() if entry is not None}
    written = {str(body["metadata"]["name"]): body for _, body in store.objects_of("Node")}
    rows = []
    for (name,) in store.rows("SELECT name FROM nodes"):
        sharing = system.sharing(configs, written.get(name, {"metadata": {"name": name}}))
        rows.append((sharing.scaling, sharing.slices_max, name))
    store.write("UPDATE nodes SET scaling=?, slices_max=? WHERE name=?", rows)
    store.refresh()


def patch_node(
    store: SimulatedStore, system: SharingSystem, name: str, fields: Sequence[FieldChange], resource_version: str
) -> str:
    """Write what users may write on a node, on the condition that it still has the version that was read.

    Returns:
        The new version.

    Raises:
        Refused: somebody changed it since, it is gone, or the field is the plugin's.
    """
    found = next(iter(node_manifests(store, system, {name})), None)
    if found is None:
        raise Refused(f"cannot change Node {name}: it is gone")
    if found["metadata"]["resourceVersion"] != resource_version:
        raise Refused(
            f"cannot change Node {name}: it was changed since it was read: read resourceVersion={resource_version}, "
            f"now {found['metadata']['resourceVersion']}"
        )
    kept = store.object_body("Node", "", name)
    words = system.node([card for card in store.books().cards.values() if card.node == name])
    owned = {*words.annotations, *words.labels}
    body = {"kind": "Node", "metadata": {"name": name}} if kept is None else kept[1]
    for change in fields:
        if not change.field.startswith(_WRITABLE) or any(f"[{key}]" in change.field for key in owned):
            raise Refused(f"cannot change Node {name}: {change.field} is not for users to write")
        set_field(body, change.field, change.value)
    return _version(store.number("generation"), store.put_object(body))


def closed_places(store: SimulatedStore) -> tuple[frozenset[str], dict[str, Manifest]]:
    """Cards on which nothing new is granted, and what users wrote on nodes, by name."""
    written = {str(body["metadata"]["name"]): body for _, body in store.objects_of("Node")}
    return frozenset(card for body in written.values() for card in cordoned_cards(body)), written


def _manifest(name: str, words: NodeWords, generation: int, kept: tuple[int, Manifest] | None) -> Manifest:
    absent: Manifest = {"metadata": {"name": name}}
    version, written = (0, absent) if kept is None else kept
    metadata = written["metadata"]
    marks = {
        "annotations": {**metadata.get("annotations", {}), **words.annotations},
        "labels": {**metadata.get("labels", {}), **words.labels},
    }
    manifest: Manifest = {
        "apiVersion": "v1",
        "kind": "Node",
        # The API server keeps no empty maps.
        "metadata": {
            "name": name,
            "resourceVersion": _version(generation, version),
            **{part: own for part, own in marks.items() if own},
        },
        "status": {"allocatable": dict(words.allocatable)},
    }
    if written.get("spec"):
        manifest["spec"] = written["spec"]
    return manifest


def _version(generation: int, written: int) -> str:
    """Nodes change with their cards and with what is written on them; versions are nobody's to read anything from."""
    return f"{generation}.{written}" if written else str(generation)
