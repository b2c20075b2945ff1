"""What a plan was made for, in hashes: cards, and of each workload its replicas, template and seats.

Taken when a plan is stored, compared by the guard before it is applied, so that a plan is never laid over a cluster it
does not know. Fields that the enforcer wrote count in the template's hash with the values that they had before; seats
stand apart.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from enforcer.admission import GRANT_RESOURCES, PLAN_ANNOTATION, PREVIOUS_ANNOTATION
from enforcer.cluster import STOPPED_ANNOTATION
from enforcer.dialect import WHOLE_CORE_PERCENT
from enforcer.kinds.register import is_template_field, pod_templates, workload_kind
from enforcer.manifest import Manifest, field_of, set_field, without_empty
from enforcer.snapshot import Snapshot
from fleet.errors import Corrupt
from fleet.grammars.hami import CORE_POLICY_ENV, USE_MODEL_ANNOTATION
from fleet.inventory import WorkloadId
from fleet.json_text import json_value

_OURS = (USE_MODEL_ANNOTATION, STOPPED_ANNOTATION)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadPrint:
    """One workload, as a plan knew it.

    Attributes:
        scale: replicas, suspension and stop mark, as text.
        template: hash of the pod template without the enforcer's own fields.
        grants: hash of its pods' names and seats, and of the grant in the template.
    """

    scale: str
    template: str
    grants: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """The cluster, as a plan knew it."""

    cards: str
    workloads: Mapping[WorkloadId, WorkloadPrint]


def fingerprint_of(snapshot: Snapshot, workloads: Iterable[WorkloadId] | None = None) -> Fingerprint:
    """Take the fingerprint of a cluster, or of some of its workloads."""
    chosen = snapshot.owners.keys() if workloads is None else {name for name in workloads if name in snapshot.owners}
    return Fingerprint(
        cards=_sha256([(card.card, card.device_type, card.node) for card in snapshot.cards.values()]),
        workloads={name: _workload_print(name, snapshot) for name in sorted(chosen)},
    )


def is_of_plan(owner: Manifest, plan_id: str) -> bool:
    """Whether a workload carries this plan's mark already, so that its scale and seats are the plan's own."""
    return field_of(owner, f"metadata.annotations[{PLAN_ANNOTATION}]") == plan_id


def fingerprint_to_json(fingerprint: Fingerprint) -> bytes:
    """A fingerprint as JSON."""
    content = {
        "cards": fingerprint.cards,
        "workloads": {
            name: [found.scale, found.template, found.grants] for name, found in fingerprint.workloads.items()
        },
    }
    return (json.dumps(content, indent=1) + "\n").encode()


def fingerprint_from_json(content: bytes, *, name: str) -> Fingerprint:
    """Read a fingerprint.

    Raises:
        Corrupt: not what `fingerprint_to_json` writes.
    """
    try:
        raw = json_value(content)
        return Fingerprint(
            cards=str(raw["cards"]),
            workloads={
                WorkloadId(workload): WorkloadPrint(scale=str(a), template=str(b), grants=str(c))
                for workload, (a, b, c) in raw["workloads"].items()
            },
        )
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise Corrupt(f"cannot read {name}: no fingerprint of a plan's inputs") from exc


def _workload_print(workload: WorkloadId, snapshot: Snapshot) -> WorkloadPrint:
    owner = snapshot.owners[workload]
    scale = " ".join(str(field_of(owner, path)) for path in _scale_paths(owner))
    seats = [
        (seat.pod, part.container, part.card, _mib(part.core_percent, part.framebuffer_mib), part.core_percent)
        for seat in snapshot.pods.get(workload, ())
        for part in seat.slices
    ]
    limits = [
        (container.get("name"), sorted(_grants(container).items()))
        for template in pod_templates(owner)
        for container in template.body.get("spec", {}).get("containers", ())
    ]
    foreign = [without_empty(_foreign(template.body)) for template in pod_templates(_before_us(owner))]
    hashed = _sha256(foreign[0] if len(foreign) == 1 else foreign)
    return WorkloadPrint(scale=scale, template=hashed, grants=_sha256([seats, limits]))


def _scale_paths(owner: Manifest) -> tuple[str, ...]:
    """Fields that say how many pods there are, and whether the owner is stopped."""
    kind = workload_kind(str(owner["kind"]))
    sizes = [size.path for size in kind.sizes(owner)]
    usual = ("spec.replicas", "spec.suspend", f"metadata.annotations[{STOPPED_ANNOTATION}]")
    return tuple(dict.fromkeys([*usual, *sizes, *([] if kind.stop_field is None else [kind.stop_field])]))


def _before_us(owner: Manifest) -> Manifest:
    """The owner with the values in its template that an applied plan found there, whatever backend it was for."""
    text = field_of(owner, f"metadata.annotations[{PREVIOUS_ANNOTATION}]")
    try:
        previous = dict(json.loads(text or "{}"))
    except (ValueError, RecursionError, TypeError):
        # Somebody else's text: nothing of the template is taken to be ours then.
        return owner
    restored = copy.deepcopy(owner)
    for path, value in previous.items():
        if is_template_field(str(owner["kind"]), path) and (value is None or isinstance(value, str)):
            # A container that is gone since is a change that the hash will show.
            with contextlib.suppress(Corrupt, ValueError):
                set_field(restored, path, value)
    return restored


def _mib(core_percent: int, framebuffer_mib: int) -> int:
    """A whole card's MiB depend on what its node registers, not on what was granted."""
    return 0 if core_percent == WHOLE_CORE_PERCENT else framebuffer_mib


def _grants(container: Mapping[str, Any]) -> dict[str, str]:
    limits = container.get("resources", {}).get("limits", {})
    return {name: str(value) for name, value in limits.items() if name in GRANT_RESOURCES}


def _foreign(template: Mapping[str, Any]) -> Any:
    """The template without what the enforcer writes."""
    metadata = template.get("metadata", {})
    annotations = {
        key: value
        for key, value in metadata.get("annotations", {}).items()
        if not key.startswith("gputide.io/") and key not in _OURS
    }
    containers = []
    for container in template.get("spec", {}).get("containers", ()):
        resources = container.get("resources", {})
        limits = {key: value for key, value in resources.get("limits", {}).items() if key not in GRANT_RESOURCES}
        env = [entry for entry in container.get("env", ()) if entry.get("name") != CORE_POLICY_ENV]
        containers.append({**container, "resources": {**resources, "limits": limits}, "env": env})
    return {
        "metadata": {**metadata, "annotations": annotations},
        "spec": {**template.get("spec", {}), "containers": containers},
    }


def _sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]
