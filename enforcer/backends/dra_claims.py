"""Claims of dynamic resource allocation that pick cards and MIG instances by what NVIDIA's driver says of them.

A template asks for one device of its own per pod; a named claim is one card, and all who name it share it. Names say
the content, so a claim that is there is the right one. Pure. Called by `dra`.

Sources: kubernetes/api:resource/v1/types.go (DeviceRequest, CELDeviceSelector),
kubernetes-sigs/dra-driver-nvidia-gpu:cmd/gpu-kubelet-plugin/deviceinfo.go.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from enforcer.manifest import Manifest
from fleet.decisions import CardPlacement, Plan, RecommendationKind
from fleet.errors import Refused
from fleet.grammars.claims import NVIDIA_DRIVER
from fleet.grammars.device_ids import is_card_uuid
from fleet.grammars.mig import is_mig_profile
from fleet.inventory import CardId, WorkloadId
from fleet.linked_cards import linked_workloads

API_VERSION = "resource.k8s.io/v1"
CARD_CLASS = "gpu.nvidia.com"
INSTANCE_CLASS = "mig.nvidia.com"
CLAIM_NAME = "gputide-card"
"""Name of the claim within a pod."""

OWN_PREFIX = "gputide-"
"""Of the names of claims and templates that are made here."""

EXPRESSION_LENGTH_MAX = 10 * 1024
"""Longest expression that the API server takes."""

_CARD = re.compile(r"GPU-[0-9a-f-]{36}")
_ATTRIBUTES = f'device.attributes["{NVIDIA_DRIVER}"]'


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What the pods of one workload claim.

    Attributes:
        is_shared: one named claim that several pods name; else a template, by which every pod has its own.
        expression: CEL, which devices of the class are meant; None for any.
        framebuffer_mib: part of the card's memory that is claimed, MiB; None for all of it.
    """

    name: str
    is_shared: bool
    device_class: str
    expression: str | None
    count: int
    framebuffer_mib: int | None = None

    @property
    def kind(self) -> str:
        """Kind of the object."""
        return "ResourceClaim" if self.is_shared else "ResourceClaimTemplate"


def own_claim(workload: str, cards: Iterable[str], *, profile: str | None, count: int) -> Claim:
    """A device for each pod of a workload: an instance of some cards, or one of those cards whole.

    Args:
        workload: name of the owner, for the name of the template.

    Raises:
        Refused: a name that can't be one stands in the plan, or there are more cards than an expression can name.
    """
    named = _uuids(cards)
    if profile is None:
        return _named(workload, CARD_CLASS, f"{_has('uuid')} && {_ATTRIBUTES}.uuid in {named}", count)
    if not is_mig_profile(profile):
        raise Refused(f"cannot claim instances of {workload}: {profile[:40]!r} is no MIG profile")
    expression = (
        f"{_has('profile')} && {_ATTRIBUTES}.profile == {json.dumps(profile)} && {_has('parentUUID')} && "
        f"{_ATTRIBUTES}.parentUUID in {named}"
    )
    return _named(workload, INSTANCE_CLASS, expression, count)


def claimed_cards(plan: Plan) -> dict[WorkloadId, dict[CardId, CardPlacement]]:
    """The cards that a claim of each placed workload names.

    The scheduler chooses among them, so workloads that get instances beside each other name the same ones: whichever
    their pods take, as much is left for the others as they need.
    """
    named: dict[WorkloadId, dict[CardId, CardPlacement]] = defaultdict(dict)
    for card in plan.placement:
        for part in card.slices:
            named[part.workload][card.card] = card
    cut = {name for item in plan.recommendations if item.kind is RecommendationKind.MIG for name in item.workloads}
    for names in linked_workloads({name: named[name] for name in cut & named.keys()}):
        together = {card: placed for name in names for card, placed in named[name].items()}
        named |= dict.fromkeys(names, together)
    return dict(named)


def shared_claim(card: str) -> Claim:
    """One whole card, for all who name the claim.

    Raises:
        Refused: the plan's card is no UUID.
    """
    expression = f"{_has('uuid')} && {_ATTRIBUTES}.uuid in {_uuids([card])}"
    return Claim(
        name=f"{OWN_PREFIX}{card.lower()}", is_shared=True, device_class=CARD_CLASS, expression=expression, count=1
    )


def counted_claim(workload: str, *, framebuffer_mib: int | None, count: int) -> Claim:
    """Parts of any cards of the node for each pod of a workload, or whole cards.

    Args:
        workload: name of the owner, for the name of the template.
        framebuffer_mib: memory of each card, MiB; None for all of it.
    """
    return _named(workload, CARD_CLASS, None, count, framebuffer_mib)


def claim_manifest(claim: Claim, namespace: str) -> Manifest:
    """The object of a claim."""
    exactly: dict[str, Any] = {
        "deviceClassName": claim.device_class,
        "allocationMode": "ExactCount",
        "count": claim.count,
    }
    if claim.expression is not None:
        exactly["selectors"] = [{"cel": {"expression": claim.expression}}]
    if claim.framebuffer_mib is not None:
        exactly["capacity"] = {"requests": {"memory": f"{claim.framebuffer_mib}Mi"}}
    spec: dict[str, Any] = {"devices": {"requests": [{"name": "card", "exactly": exactly}]}}
    return {
        "apiVersion": API_VERSION,
        "kind": claim.kind,
        "metadata": {"namespace": namespace, "name": claim.name, "labels": {"app.kubernetes.io/managed-by": "gputide"}},
        "spec": spec if claim.is_shared else {"spec": spec},
    }


def pod_claim(claim: Claim) -> dict[str, str]:
    """How a pod names a claim."""
    key = "resourceClaimName" if claim.is_shared else "resourceClaimTemplateName"
    return {"name": CLAIM_NAME, key: claim.name}


def classes_of(manifest: Mapping[str, Any]) -> set[str]:
    """Device classes that a claim or a template of claims asks for; what can't be read asks for none."""
    spec = manifest.get("spec") or {}
    if manifest.get("kind") == "ResourceClaimTemplate":
        spec = spec.get("spec") or {}
    requests = (spec.get("devices") or {}).get("requests") or []
    return {
        str(name)
        for request in requests
        for one in [request.get("exactly") or {}, *(request.get("firstAvailable") or [])]
        if (name := one.get("deviceClassName")) is not None
    }


def cards_named(manifest: Mapping[str, Any]) -> set[str]:
    """UUIDs of cards that stand in the expressions of a claim or a template."""
    return set(_CARD.findall(json.dumps(manifest.get("spec"))))


def _named(
    workload: str, device_class: str, expression: str | None, count: int, framebuffer_mib: int | None = None
) -> Claim:
    if expression is not None and len(expression) > EXPRESSION_LENGTH_MAX:
        raise Refused(
            f"cannot claim cards for {workload}: their names make an expression of {len(expression)} characters, and "
            f"the API server takes {EXPRESSION_LENGTH_MAX}"
        )
    said = f"{device_class}\n{count}\n{expression or ''}" + (f"\n{framebuffer_mib}" if framebuffer_mib else "")
    digest = hashlib.sha256(said.encode()).hexdigest()[:10]
    # Pods' names and the claims' own are made from it, so it stays well below what a name may have.
    return Claim(
        name=f"{OWN_PREFIX}{workload[:40].rstrip('-.')}-{digest}", is_shared=False, device_class=device_class,
        expression=expression, count=count, framebuffer_mib=framebuffer_mib,
    )  # fmt: skip


def _has(attribute: str) -> str:
    """An attribute that a device lacks is an error in CEL, and an error stops the whole claim."""
    return f'"{attribute}" in {_ATTRIBUTES}'


def _uuids(cards: Iterable[str]) -> str:
    named: Sequence[str] = sorted(set(cards))
    for card in named:
        if not is_card_uuid(card):
            raise Refused(f"cannot claim card {card[:64]!r}: it is no UUID of a card")
    return json.dumps(named)
