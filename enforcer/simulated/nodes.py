"""The nodes of the simulated cluster as manifests: what their plugin registers, and what users wrote on them.

Labels, annotations and the cordon of a node are kept as an object of their own; what the plugin registers is made from
the books each time, so that nobody can write it. Called by `cluster`.
"""

from __future__ import annotations

from collections.abc import Sequence

from enforcer.cluster import FieldChange
from enforcer.dialect import WHOLE_CORE_PERCENT
from enforcer.manifest import Manifest, field_of, set_field
from enforcer.resource_names import listed_words
from enforcer.simulated.store import SimulatedStore
from fleet.errors import Refused
from fleet.grammars.hami import (
    COUNT_RESOURCE,
    DEVICE_CORDON_ANNOTATION,
    NODE_REGISTER_ANNOTATION,
    RegisteredDevice,
    render_node_register,
)

_WRITABLE = ("metadata.annotations[", "metadata.labels[", "spec.unschedulable")


def node_manifests(store: SimulatedStore) -> tuple[Manifest, ...]:
    """All nodes, by name."""
    books = store.books()
    by_node: dict[str, list[RegisteredDevice]] = {name: [] for name in books.nodes}
    for card in books.cards.values():
        devices = by_node[card.node]
        devices.append(
            RegisteredDevice(
                card=card.card,
                slices_max=card.slices_max,
                framebuffer_mib=card.framebuffer_mib,
                core_percent=WHOLE_CORE_PERCENT,
                device_type=card.device_type,
                numa=0,
                is_healthy=True,
                index=len(devices),
                mode="hami-core",
            )
        )
    generation = store.number("generation")
    written = {str(body["metadata"]["name"]): (version, body) for version, body in store.objects_of("Node")}
    return tuple(_manifest(name, by_node[name], generation, written.get(name)) for name in sorted(by_node))


def patch_node(
    store: SimulatedStore, name: str, fields: Sequence[FieldChange], resource_version: str
) -> str:  # fmt: skip
    """Write what users may write on a node, on the condition that it still has the version that was read.

    Returns:
        The new version.

    Raises:
        Refused: somebody changed it since, it is gone, or the field is the plugin's.
    """
    found = next((node for node in node_manifests(store) if node["metadata"]["name"] == name), None)
    if found is None:
        raise Refused(f"cannot change Node {name}: it is gone")
    if found["metadata"]["resourceVersion"] != resource_version:
        raise Refused(
            f"cannot change Node {name}: it was changed since it was read: read resourceVersion={resource_version}, "
            f"now {found['metadata']['resourceVersion']}"
        )
    kept = store.object_body("Node", "", name)
    body = {"kind": "Node", "metadata": {"name": name}} if kept is None else kept[1]
    for change in fields:
        if not change.field.startswith(_WRITABLE) or NODE_REGISTER_ANNOTATION in change.field:
            raise Refused(f"cannot change Node {name}: {change.field} is not for users to write")
        set_field(body, change.field, change.value)
    return _version(store.number("generation"), store.put_object(body))


def cordoned_cards(store: SimulatedStore) -> frozenset[str]:
    """Cards on which nothing new is granted."""
    return frozenset(
        card
        for _, body in store.objects_of("Node")
        for card in listed_words(field_of(body, f"metadata.annotations[{DEVICE_CORDON_ANNOTATION}]"))
    )


def _manifest(
    name: str, devices: Sequence[RegisteredDevice], generation: int, kept: tuple[int, Manifest] | None
) -> Manifest:
    written = {} if kept is None else kept[1]
    metadata = written.get("metadata", {})
    manifest: Manifest = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "resourceVersion": _version(generation, 0 if kept is None else kept[0]),
            "annotations": {**metadata.get("annotations", {}), NODE_REGISTER_ANNOTATION: render_node_register(devices)},
        },
        "status": {"allocatable": {COUNT_RESOURCE: str(sum(device.slices_max for device in devices))}},
    }
    if "labels" in metadata:
        manifest["metadata"]["labels"] = metadata["labels"]
    if "spec" in written:
        manifest["spec"] = written["spec"]
    return manifest


def _version(generation: int, written: int) -> str:
    """Nodes change with their cards and with what is written on them; versions are nobody's to read anything from."""
    return f"{generation}.{written}" if written else str(generation)
