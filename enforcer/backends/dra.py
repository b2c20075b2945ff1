"""Dynamic resource allocation in NVIDIA's words: claims that pick the plan's cards by UUID, in place of resources.

Here the API says which card a pod has: its claim names a device, and the driver's ResourceSlice says whose that is. So
seats are cards, the scheduler can be bound to exactly one, and a card is really free when no claim holds it or one of
its instances. Only where a workload's template names several cards is it the scheduler that chooses among them.

MIG: each pod of a workload has an instance by a template of claims; instances are those that the driver publishes, cut
before (or by its gate DynamicMIG). Shared cards: a claim belongs to one namespace and a pod template names one claim,
so the pods of a shared card are of one namespace, and a workload that shares sits on one card; what a plan wants beyond
that is refused.

Sources: kubernetes/api:core/v1/types.go (PodResourceClaim), kubernetes/api:resource/v1/types.go.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from operator import itemgetter
from typing import Any

from enforcer.backend import RenderedStage
from enforcer.backends.card_fit import check_isolation
from enforcer.backends.device_plugin import DevicePluginDialect, check_job, devices_of
from enforcer.backends.dra_claims import (
    CARD_CLASS,
    CLAIM_NAME,
    INSTANCE_CLASS,
    OWN_PREFIX,
    Claim,
    cards_named,
    claim_manifest,
    claimed_cards,
    classes_of,
    own_claim,
    pod_claim,
    shared_claim,
)
from enforcer.backends.stage import StageDraft, Target, check_init_containers, check_kinds, draft_stage, rendered
from enforcer.dialect import FixedDialect, ObjectKey, SeatSlice, StandingCard
from enforcer.manifest import Manifest, field_of, template_of, workload_parts
from enforcer.snapshot import Snapshot
from fleet.capabilities.capability import Capabilities
from fleet.capabilities.dra import DRA_MIG, DRA_SHARED
from fleet.decisions import CardPlacement, PlacedSlice, Plan
from fleet.errors import Corrupt, Refused
from fleet.grammars.claims import (
    NVIDIA_DRIVER,
    ClaimAllocation,
    DeviceTaint,
    PublishedDevice,
    parse_claim,
    parse_published,
    parse_taint_rule,
)
from fleet.inventory import CardId, WorkloadId
from fleet.units import GIB, MIB

_TAINT_RULE = "DeviceTaintRule"
_LISTED = ("ResourceClaim", "ResourceClaimTemplate", "ResourceSlice", _TAINT_RULE)

Device = tuple[str, str]
"""Pool and name of a device of NVIDIA's driver."""


class DraDialect(FixedDialect):
    """Claims and what the driver publishes (the port `ListingDialect`).

    Args:
        card_claims: claims and templates of claims (kind, namespace, name) that ask for cards or instances.
        wide_templates: templates of ours (namespace, name) that name several cards: which of them a pod has is the
            scheduler's choice, and any is right.
        taints_unknown: why nobody may read the rules by which administrators taint devices; None where they are read.
    """

    config_objects: tuple[ObjectKey, ...] = ()
    listed_kinds = _LISTED
    deniable_kinds = (_TAINT_RULE,)

    def __init__(
        self,
        claims: Mapping[tuple[str, str], ClaimAllocation] | None = None,
        devices: Mapping[Device, PublishedDevice] | None = None,
        card_claims: frozenset[ObjectKey] = frozenset(),
        wide_templates: frozenset[tuple[str, str]] = frozenset(),
        taints_unknown: str | None = None,
    ) -> None:
        self._claims = claims or {}
        self._devices = devices or {}
        self.card_claims = card_claims
        self._wide_templates = wide_templates
        self.taints_unknown = taints_unknown
        self._plugin = DevicePluginDialect()

    def with_objects(self, listed: Mapping[str, Sequence[Manifest]], denied: Mapping[str, str]) -> DraDialect:
        """With the claims and devices that there are; see the port. A tenant's claim that can't be read is left out."""
        claims = {}
        for manifest in listed.get("ResourceClaim", ()):
            try:
                claim = parse_claim(manifest)
            except Corrupt:
                continue
            if claim is not None:
                claims[claim.namespace, claim.claim] = claim
        rules = [rule for one in listed.get(_TAINT_RULE, ()) if (rule := parse_taint_rule(one)) is not None]
        devices = {
            (device.pool, device.device): replace(device, taints=device.tainted(rules))
            for manifest in listed.get("ResourceSlice", ())
            if manifest.get("spec", {}).get("driver") == NVIDIA_DRIVER
            for device in parse_published(manifest)
        }
        wanted = frozenset(
            (kind, manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"])
            for kind in ("ResourceClaim", "ResourceClaimTemplate")
            for manifest in listed.get(kind, ())
            if classes_of({**manifest, "kind": kind}) & {CARD_CLASS, INSTANCE_CLASS}
        )
        wide = frozenset(
            (manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"])
            for manifest in listed.get("ResourceClaimTemplate", ())
            if manifest["metadata"]["name"].startswith(OWN_PREFIX) and len(cards_named(manifest)) > 1
        )
        return type(self)(claims, devices, wanted, wide, denied.get(_TAINT_RULE))

    def slices_of_pod(self, pod: Manifest) -> tuple[SeatSlice, ...]:
        """The cards and instances of its claims, and what it asks the device plugin for; see the port.

        A device behind an extended resource (`PodExtendedResourceClaimStatus`) is its claim's and not the plugin's.
        """
        spec, namespace = pod["spec"], pod["metadata"].get("namespace", "")
        extended = pod.get("status", {}).get("extendedResourceClaimStatus") or {}
        mappings = extended.get("requestMappings") or ()
        backed = {(one.get("containerName", ""), one.get("resourceName")) for one in mappings}
        found = [part for part in self._plugin.slices_of_pod(pod) if (part.container, part.resource) not in backed]
        for name in (container["name"] for container in spec["containers"]):
            claim = self._claims.get((namespace, extended.get("resourceClaimName", "")))
            requests = {str(one.get("requestName")) for one in mappings if one.get("containerName") == name}
            if claim is not None and requests and pod["metadata"].get("uid") in claim.reserved_for:
                found += self._slices(name, replace(claim, devices=claim.given(requests)), None)
        named = {entry["name"]: entry.get("resourceClaimName") for entry in spec.get("resourceClaims", ())}
        made = {
            entry["name"]: entry.get("resourceClaimName")
            for entry in pod.get("status", {}).get("resourceClaimStatuses", ())
        }
        made_by = {entry["name"]: entry.get("resourceClaimTemplateName") for entry in spec.get("resourceClaims", ())}
        for container in spec["containers"]:
            for entry in container.get("resources", {}).get("claims", ()):
                template = made_by.get(entry["name"])
                shared = named.get(entry["name"])
                claim = self._claims.get((namespace, shared or made.get(entry["name"]) or ""))
                # A claim that is not reserved for a pod gives it nothing, whatever the pod names.
                if claim is not None and pod["metadata"].get("uid") in claim.reserved_for:
                    is_wide = (namespace, template) in self._wide_templates
                    part = replace(claim, devices=claim.given({entry["request"]} if entry.get("request") else set()))
                    slices = self._slices(container["name"], part, shared)
                    found += [_any_seat(container["name"], template)] * len(slices) if is_wide else slices
        return tuple(found)

    def cards_of_node(self, node: Manifest) -> tuple[StandingCard, ...]:
        """Cards that the driver publishes for the node, cut ones by their instances; see the port."""
        name = node["metadata"]["name"]
        whole: dict[str, int] = {}
        parts: dict[str, int] = {}
        models: dict[str, str] = {}
        closed: dict[str, DeviceTaint] = {}
        for (pool, _), device in sorted(self._devices.items()):
            card = device.parent or device.uuid
            if pool != name or card is None:
                continue
            own = (device.framebuffer_bytes or 0) // MIB
            # A cut card is known by its instances alone; one that may be cut, beside all that may be cut of it.
            into = whole if device.parent is None else parts
            into[card] = into.get(card, 0) + own
            models.setdefault(card, device.product or "")
            taint = next((taint for taint in device.taints if taint.closes), None)
            if device.parent is None and taint is not None:
                closed[card] = taint
        return tuple(
            StandingCard(
                card=card,
                device_type=models[card],
                node=name,
                framebuffer_mib=framebuffer_mib,
                slices_max=DRA_SHARED.slices_per_card_max,
                closed_by=str(closed[card]) if card in closed else None,
            )
            for card, framebuffer_mib in {**parts, **whole}.items()
        )

    def instances_of(self, card: str) -> Counter[str]:
        """How many instances of each profile the driver publishes of a card; tainted ones are given to nobody."""
        return Counter(
            device.profile
            for device in self._devices.values()
            if device.parent == card and device.profile is not None and not any(taint.closes for taint in device.taints)
        )

    def is_cut(self, card: str) -> bool:
        """Whether the driver publishes a card by its instances alone."""
        return not any(device.uuid == card for device in self._devices.values() if device.parent is None)

    def _slices(self, container: str, claim: ClaimAllocation, shared: str | None) -> list[SeatSlice]:
        found = []
        for given in claim.devices:
            device = self._devices.get((given.pool, given.device)) if given.driver == NVIDIA_DRIVER else None
            card = None if device is None else device.parent or device.uuid
            if device is not None and card is not None:
                found.append(_seat(container, card, shared or device.profile))
        return found


class DraBackend:
    """Claims of one of two kinds (the port `Backend`)."""

    capabilities: Capabilities
    dialect = DraDialect()

    def __init__(self, now: datetime) -> None:
        self._now = now

    def render(self, plan: Plan, stage: int, snapshot: Snapshot) -> RenderedStage:
        """Turn one stage into changes; see the port."""
        parts_of: dict[WorkloadId, list[tuple[CardPlacement, PlacedSlice]]] = {}
        for card in plan.placement:
            for part in card.slices:
                parts_of.setdefault(part.workload, []).append((card, part))
        cards_of = claimed_cards(plan)
        claims: dict[WorkloadId, Claim] = {}

        def claim_of(workload: WorkloadId) -> Claim:
            if workload not in claims:
                claims[workload] = _claim(workload, parts_of[workload], cards_of[workload])
            return claims[workload]

        def seater(card: CardPlacement, part: PlacedSlice) -> SeatSlice:
            claim = claim_of(part.workload)
            if len(cards_of[part.workload]) > 1:
                return _any_seat(part.container, claim.name)
            return _seat(part.container, card.card, claim.name if claim.is_shared else part.mig_profile)

        draft = draft_stage(plan, stage, snapshot, seater)
        warnings = [*draft.warnings, *check_kinds(self.capabilities, draft.recommendations)]
        for card in draft.cards:
            self._check(card, snapshot)
        if self.capabilities is DRA_MIG:
            _check_choices(draft, cards_of, snapshot)
        check_rolled(draft, snapshot)

        def template_fields(owner: Manifest, kind: str, staying: Sequence[Target]) -> Mapping[str, str | None]:
            workload = staying[0].seat.workload
            if not any(entry.new for entry in staying) or workload not in parts_of:
                return {}
            containers = {part.container for _, part in parts_of[workload]}
            return claim_fields(owner, kind, claim_of(workload), containers, snapshot)

        stands = rendered(draft, snapshot, template_fields, self._now, warnings=warnings)
        moved = [workload for workload, targets in draft.targets.items() if any(entry.new for entry in targets)]
        objects = {
            (claim_of(workload).kind, workload_parts(workload)[0], claim_of(workload).name): claim_manifest(
                claim_of(workload), workload_parts(workload)[0]
            )
            for workload in moved
        }
        return replace(stands, objects=tuple(manifest for _, manifest in sorted(objects.items(), key=itemgetter(0))))

    def _check(self, card: CardPlacement, snapshot: Snapshot) -> None:
        """Refuse what claims can't hold."""
        instances = [part for part in card.slices if part.mig_profile is not None]
        if instances and self.capabilities is not DRA_MIG:
            raise Refused(
                f"cannot cut instances on card {card.card}: {self.capabilities.backend} claims cards whole; "
                "enforcer.backend=dra_mig claims instances"
            )
        if instances:
            _check_instances(card, snapshot)
            return
        pods = {part.pod_id for part in card.slices}
        if len(pods) == 1:
            return
        if self.capabilities is not DRA_SHARED:
            raise Refused(
                f"cannot put {len(pods)} pods on card {card.card} without instances: {self.capabilities.backend} "
                "claims a device per pod; enforcer.backend=dra_shared shares cards"
            )
        check_isolation(card, snapshot, self.capabilities)
        _check_shared(card, pods)


class DraMigBackend(DraBackend):
    """Claims of MIG instances, one per pod."""

    capabilities = DRA_MIG


class DraSharedBackend(DraBackend):
    """Claims of cards that pods share."""

    capabilities = DRA_SHARED


def _seat(container: str, card: str, resource: str | None) -> SeatSlice:
    """A share of a card: of which profile, or by which shared claim, stands in `resource`."""
    return SeatSlice(container=container, card=card, resource=resource)


def _any_seat(container: str, template: str | None) -> SeatSlice:
    """A device of any of the cards that a template names."""
    return SeatSlice(container=container, card=None, resource=template)


def _claim(
    workload: WorkloadId, parts: Sequence[tuple[CardPlacement, PlacedSlice]], cards: Mapping[CardId, CardPlacement]
) -> Claim:
    """The one claim that a template can name for all its pods.

    Args:
        cards: what the claim names.

    Raises:
        Refused: its pods would have to claim different things.
    """
    _, _, name = workload_parts(workload)
    if len({part.container for _, part in parts}) > 1:
        raise Refused(f"cannot change {workload}: several of its containers have cards, and a claim is one container's")
    counts = set(Counter(part.pod for _, part in parts).values())
    profiles = {part.mig_profile for _, part in parts}
    if len(counts) > 1 or len(profiles) > 1:
        raise Refused(
            f"cannot change {workload}: its pods would claim {sorted(counts)} devices of profiles "
            f"{sorted(str(profile) for profile in profiles)}, and a template names one claim"
        )
    shared = {uuid for uuid, card in cards.items() if _is_shared(card)}
    if shared:
        if len(cards) > 1:
            raise Refused(
                f"cannot let {workload} share: its pods sit on {len(cards)} cards, a claim is of one card, and a pod "
                "template names one claim"
            )
        return shared_claim(next(iter(shared)))
    return own_claim(name, cards, profile=next(iter(profiles)), count=next(iter(counts)))


def _is_shared(card: CardPlacement) -> bool:
    return len({part.pod_id for part in card.slices}) > 1 and all(part.mig_profile is None for part in card.slices)


def check_rolled(draft: StageDraft, snapshot: Snapshot) -> None:
    """Refuse pods that would come to a card that somebody closed to them, or that are made anew there.

    A new template makes the pods anew that stay where they are, too.

    Raises:
        Refused: with the taint, and whose it is; or nobody may read which there are.
    """
    rolled = {workload for workload, targets in draft.targets.items() if any(entry.new for entry in targets)}
    why = snapshot.dialect.taints_unknown if isinstance(snapshot.dialect, DraDialect) else None
    if rolled and why is not None:
        raise Refused(f"cannot send pods to cards of which nobody knows whether an administrator closed them: {why}")
    for card in draft.plan.placement:
        standing = snapshot.cards.get(card.card)
        if (
            standing is not None
            and standing.closed_by is not None
            and any(part.workload in rolled for part in card.slices)
        ):
            raise Refused(
                f"cannot put pods on card {card.card}: it has the taint {standing.closed_by}, and no claim of a plan "
                "tolerates it"
            )


def _check_shared(card: CardPlacement, pods: set[str]) -> None:
    namespaces = sorted({part.namespace for part in card.slices})
    if len(namespaces) > 1:
        raise Refused(
            f"cannot share card {card.card} among {', '.join(namespaces)}: a claim belongs to one namespace, and pods "
            "of others can't name it"
        )
    if len(pods) > DRA_SHARED.slices_per_card_max:
        raise Refused(
            f"cannot let {len(pods)} pods share card {card.card}: a claim is reserved for at most "
            f"{DRA_SHARED.slices_per_card_max}"
        )
    granted = sum(part.framebuffer_bytes for part in card.slices)
    if granted > card.framebuffer_bytes:
        raise Refused(
            f"cannot share card {card.card}: its pods need {granted / GIB:.1f} GiB together, it has "
            f"{card.framebuffer_bytes / GIB:.1f} GiB, and nothing keeps one from taking another's"
        )


def _check_instances(card: CardPlacement, snapshot: Snapshot) -> None:
    """Instances that the plan wants must be published, or nobody will ever be given them."""
    without = next((part.pod_id for part in card.slices if part.mig_profile is None), None)
    if without is not None:
        raise Refused(f"cannot leave {without} on card {card.card}: it is cut, and {without} has no instance")
    dialect = snapshot.dialect
    if not isinstance(dialect, DraDialect):
        raise TypeError(f"a snapshot in another dialect than DRA's: {dialect!r}")
    wanted = Counter(part.mig_profile for part in card.slices)
    there = dialect.instances_of(card.card)
    for profile, count in sorted((str(profile), count) for profile, count in wanted.items()):
        if there[profile] < count:
            raise Refused(
                f"cannot claim {count} x {profile} of card {card.card}: the driver publishes {there[profile]} without "
                "a taint; cut the "
                "card first (enforcer.backend=mig with mig-manager, or the driver's gate DynamicMIG)"
            )


def _check_choices(
    draft: StageDraft, cards_of: Mapping[WorkloadId, Mapping[CardId, CardPlacement]], snapshot: Snapshot
) -> None:
    """Refuse a stage after which a pod may find no instance, for others may lie anywhere on the cards of its claim.

    Raises:
        Refused: the cards, and whose instances differ, or who can't go to the others.
    """
    dialect = snapshot.dialect
    if not isinstance(dialect, DraDialect):
        raise TypeError(f"a snapshot in another dialect than DRA's: {dialect!r}")
    for workload in draft.targets:
        cards = cards_of.get(workload, {})
        parts = [part for card in cards.values() for part in card.slices]
        if all(part.mig_profile is None for part in parts):
            continue
        named = ", ".join(sorted(cards))
        profiles = sorted({str(part.mig_profile) for part in parts})
        if len(cards) > 1 and len(profiles) > 1 and not all(dialect.is_cut(card) for card in cards):
            raise Refused(
                f"cannot cut cards {named} for {workload}: instances of {', '.join(profiles)} are planned there, the "
                "scheduler chooses where each lies, and what it leaves may fit no other"
            )
        staying = sorted({part.workload for part in parts if cards_of[part.workload].keys() != cards.keys()})
        if staying:
            raise Refused(
                f"cannot let pods of {workload} choose among cards {named}: {staying[0]} has an instance there that "
                "this plan does not move, and once its pod starts again it may find none"
            )


def claim_fields(
    owner: Manifest, kind: str, claim: Claim, containers: set[str], snapshot: Snapshot
) -> dict[str, str | None]:
    """Fields of a template by which its pods name a claim, in place of devices or other claims of cards.

    Raises:
        Refused: the template can't be changed.
    """
    dialect = snapshot.dialect
    known = dialect.card_claims if isinstance(dialect, DraDialect) else frozenset()
    namespace, name = owner["metadata"]["namespace"], owner["metadata"]["name"]
    spec = template_of(owner)["spec"]
    own: list[dict[str, Any]] = [dict(entry) for entry in spec.get("resourceClaims") or []]
    stale = {entry["name"] for entry in own if entry["name"] == CLAIM_NAME or _key(entry, namespace) in known}
    fields = {
        "spec.template.spec.resourceClaims": _json(
            [*(entry for entry in own if entry["name"] not in stale), pod_claim(claim)]
        )
    }
    removed: dict[str, str | None] = {}
    for container in spec["containers"]:
        path = f"spec.template.spec.containers[{container['name']}].resources"
        resources = container.get("resources") or {}
        kept = [entry for entry in resources.get("claims") or [] if entry["name"] not in stale]
        if container["name"] in containers:
            fields[f"{path}.claims"] = _json([*kept, {"name": CLAIM_NAME}])
        elif len(kept) != len(resources.get("claims") or []):
            removed[f"{path}.claims"] = _json(kept) if kept else None
        for resource in devices_of(container):
            for part in ("limits", "requests"):
                if resource in resources.get(part, {}):
                    removed[f"{path}.{part}[{resource}]"] = None
    changed = {path: value for path, value in {**removed, **fields}.items() if field_of(owner, path) != value}
    if changed:
        check_init_containers(owner, lambda container: bool(devices_of(container)) or _claims(container, stale))
    check_job(kind, f"{kind} {namespace}/{name}", changed)
    return changed


def _claims(container: Manifest, names: set[str]) -> bool:
    held = (container.get("resources") or {}).get("claims") or []
    return any(entry["name"] in names for entry in held)


def _key(entry: Mapping[str, Any], namespace: str) -> ObjectKey:
    if entry.get("resourceClaimName") is not None:
        return "ResourceClaim", namespace, str(entry["resourceClaimName"])
    return "ResourceClaimTemplate", namespace, str(entry.get("resourceClaimTemplateName"))


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True)
