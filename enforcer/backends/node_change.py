"""Changing how a node shares its cards: what is written, who must leave it before, and each object once. Pure.

For backends whose node must be empty meanwhile: what still runs there holds its card in a way of which the new one
knows nothing, so the card would be handed out twice, or can't be cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import yaml

from enforcer.backends.stage import StageDraft, field_changes, owner_field_changes
from enforcer.dialect import ObjectKey
from enforcer.manifest import Manifest, field_of
from enforcer.snapshot import Snapshot
from fleet.errors import Corrupt, Refused
from fleet.outcomes import Change
from fleet.yaml_text import load_yaml


def config_of(snapshot: Snapshot, keys: Sequence[ObjectKey], what: str, remedy: str) -> Manifest:
    """The first that there is of the ConfigMaps in which installations keep a configuration.

    Args:
        what: what is to be done, for the message.

    Raises:
        Refused: there is none of them.
    """
    config = next((snapshot.configs[key] for key in keys if key in snapshot.configs), None)
    if config is None:
        names = ", ".join(f"{namespace}/{name}" for _, namespace, name in keys)
        raise Refused(f"cannot {what}: none of the ConfigMaps {names} is there; {remedy}")
    return config


def yaml_map(text: str | None, whose: str) -> dict[object, object]:
    """A configuration that others wrote; empty where there is none.

    Raises:
        Corrupt: it is no YAML map.
    """
    try:
        content = load_yaml(text or "")
    except (yaml.YAMLError, ValueError, RecursionError) as exc:
        raise Corrupt(f"cannot read {whose} configuration: no YAML") from exc
    if content is not None and not isinstance(content, dict):
        raise Corrupt(f"cannot read {whose} configuration: no map")
    return content or {}


def config_changes(
    origin: tuple[str, str], config: Manifest, field: str, text: str, node: Manifest, label: Mapping[str, str]
) -> list[Change]:
    """A configuration with a field of its own for a node, and the node's label by which that field counts for it.

    Args:
        origin: id of the plan, and of its recommendation.
    """
    plan_id, recommendation = origin
    changes = field_changes(config, {field: text}, recommendation)
    fields = {f"metadata.labels[{name}]": value for name, value in label.items()}
    if any(field_of(node, path) != value for path, value in fields.items()):
        changes += owner_field_changes(node, fields, plan_id, recommendation)
    return changes


def leaving_pods(node: str, draft: StageDraft, snapshot: Snapshot, what: str) -> tuple[tuple[str, str], ...]:
    """Pods that hold cards of a node and are moved or named by the stage, so that the node is empty for a while.

    Args:
        what: what becomes of the node, for the message.

    Raises:
        Refused: the stage says nothing of somebody on it.
    """
    moving = {entry.seat.pod_id for targets in draft.targets.values() for entry in targets if entry.new is not None}
    moving |= {pod for entry in draft.recommendations for pod in entry.pods}
    found = []
    for seat in snapshot.seats.values():
        if seat.node != node or not seat.slices:
            continue
        if seat.pod_id not in moving:
            raise Refused(
                f"cannot change node {node}: its cards must be empty to be {what}, and stage {draft.stage} leaves "
                f"{seat.pod_id} there"
            )
        found.append((seat.namespace, seat.pod))
    return tuple(sorted(found))


def by_object(changes: Sequence[Change]) -> list[Change]:
    """Changes grouped by object, each once, in the order in which objects first appear."""
    order = dict.fromkeys((change.kind, change.namespace, change.name) for change in changes)
    found: list[Change] = []
    for key in order:
        own = {change.field: change for change in changes if (change.kind, change.namespace, change.name) == key}
        found += own.values()
    return found
