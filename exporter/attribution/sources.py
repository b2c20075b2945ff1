"""What each source says that a container holds, in one shape: annotations, the kubelet, claims, reservation pods.

Pure. Names become cards here, and what leads nowhere becomes a finding; which source counts,
`exporter.attribution.attributor` decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from exporter.allocation.manifest import counts_devices
from exporter.allocation.records import CardShare, PodRecord
from exporter.attribution.cards import KnownCards, KnownInstance, Unit
from exporter.attribution.claim_users import users_in_pod
from exporter.attribution.pods import ContainerInstance, PodFacts
from exporter.attribution.records import Finding, FindingKind, GrantSource, NodeView
from exporter.kubelet.pod_resources import ClaimRow, ContainerRow, DeviceRow, PodRow
from fleet.errors import Corrupt
from fleet.grammars.claims import HAMI_DRIVER, NVIDIA_DRIVER, ClaimedDevice
from fleet.grammars.device_ids import DeviceId, IdTruth, parse_device_id
from fleet.grammars.kai import RESERVATION_NAMESPACES, kai_groups
from fleet.grammars.text import shown

OVERSUBSCRIPTION_MAX = 16
"""Most times its card's framebuffer that one grant may be; a tenant can write any number on its own pod."""

_CARD_DRIVERS = frozenset({NVIDIA_DRIVER, HAMI_DRIVER})


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One thing that one container holds, by one source.

    Attributes:
        framebuffer_bytes: framebuffer granted, bytes; None where nobody says.
        compute_ratio: share of the card's compute granted, 0-1; None where nobody says.
        is_certain: False where it may be another card.
    """

    container: str
    unit: Unit
    source: GrantSource
    framebuffer_bytes: int | None
    compute_ratio: float | None
    is_certain: bool = True


class Sources:
    """One node's sources, with what is needed to read them.

    Attributes:
        findings: what was odd so far.
    """

    def __init__(self, view: NodeView) -> None:
        self.findings: list[Finding] = []
        self._cards = KnownCards(view.cards)
        self._replicas = _replicas(view.allocatable or (), view.rows or ())
        self._published = {(part.driver, part.pool, part.device): part for part in view.published}
        self._claims = {(claim.namespace, claim.claim): claim for claim in view.claims}
        self._groups = self._reserved(view.pods or (), view.rows or ())

    def of_annotations(self, facts: PodFacts) -> list[Held]:
        """What schedulers wrote on the pod."""
        record = facts.record
        if record.distrust is not None:
            self._find(FindingKind.DISTRUSTED, record, detail=record.distrust.value)
        if facts.is_unreadable:
            self._find(FindingKind.UNREADABLE, record, detail="annotation of mGPU or of MIG instances")
        made = list(facts.instances)
        held = [found for share in record.shares if (found := self._of_share(record, share, made)) is not None]
        for part in facts.indexes:
            for index in part.indexes:
                unit = self._cards.of_index(index)
                if unit is None:
                    self._find(FindingKind.CARD_UNKNOWN, record, part.container, card=f"nvidia{index}")
                    continue
                held.append(
                    Held(
                        container=part.container,
                        unit=unit,
                        source=GrantSource.ANNOTATION,
                        framebuffer_bytes=_believable(part.framebuffer_bytes or unit.framebuffer_bytes, unit),
                        compute_ratio=part.compute_ratio,
                    )
                )
        return held

    def of_groups(self, record: PodRecord) -> list[Held]:
        """What the pod shares of the cards that KAI's reservation pods hold, whatever it says itself that it sees."""
        held = []
        for share in record.groups:
            for group in share.groups:
                unit = self._groups.get(group)
                if unit is None:
                    self._find(FindingKind.UNKNOWN_GROUP, record, share.container, detail=shown(group))
                    continue
                granted, whole = share.framebuffer_bytes, unit.framebuffer_bytes
                if granted is None and share.ratio is not None and whole is not None:
                    granted = int(whole * share.ratio)
                held.append(
                    Held(
                        container=share.container,
                        unit=unit,
                        source=GrantSource.RESERVATION_POD,
                        framebuffer_bytes=_believable(granted, unit),
                        # KAI keeps nobody from using more compute than its share.
                        compute_ratio=1.0,
                    )
                )
        return held

    def of_claims(self, record: PodRecord) -> list[Held]:
        """What ResourceClaims gave the pod."""
        held = []
        for claim in dict.fromkeys(claim for _, claim in record.claims):
            allocation = self._claims.get((record.namespace, claim))
            if allocation is None:
                continue
            for user, devices in users_in_pod(record, allocation).items():
                held += self._of_allocation(record, user, devices)
        return held

    def of_kubelet(self, pod: PodRow, row: ContainerRow, *, is_annotated: bool) -> list[Held]:
        """What the kubelet handed one container.

        Args:
            is_annotated: an annotation says what the container holds, so ids that can't be read are not missed.
        """
        held = [
            found
            # A device that is near several NUMA nodes is listed once for each of them.
            for device in dict.fromkeys(row.devices)
            for text in device.ids
            if (found := self._of_id(pod, row.container, device, text, is_quiet=is_annotated)) is not None
        ]
        for claim in row.claims:
            unit = self._of_device(claim.driver, claim.pool, claim.device)
            if unit is not None:
                whole = _whole(row.container, unit)
                # How much of a device that several claims may hold was given, the claim alone says.
                is_share = claim.share_id is not None or claim.driver == HAMI_DRIVER
                held.append(replace(whole, framebuffer_bytes=None, compute_ratio=None) if is_share else whole)
            elif claim.driver in _CARD_DRIVERS:
                self._find(FindingKind.DEVICE_UNKNOWN, pod, row.container, detail=_device_name(claim))
        return held

    def _of_share(self, record: PodRecord, share: CardShare, made: list[ContainerInstance]) -> Held | None:
        name = share.card
        if share.mig_profile is not None:
            # Each instance belongs to one share; of several alike it does not matter which.
            own = next((part for part in made if (part.container, part.card) == (share.container, share.card)), None)
            if own is not None:
                made.remove(own)
                name = own.instance
        unit = self._cards.of_name(name)
        if unit is None and name != share.card:
            self._find(FindingKind.INSTANCE_UNKNOWN, record, share.container, card=share.card, detail=shown(name))
        unit = unit or self._cards.of_name(share.card)
        if unit is None:
            self._find(_unknown(share.card), record, share.container, card=share.card)
            return None
        if share.mig_profile is not None and unit.instance is None:
            # The place is reserved, and the instance not made yet, or cut away: its size is known all the same.
            unit = Unit(card=unit.card, instance=KnownInstance(instance=None, profile=share.mig_profile))
        return Held(
            container=share.container,
            unit=unit,
            source=GrantSource.ANNOTATION,
            framebuffer_bytes=_believable(share.framebuffer_bytes or unit.framebuffer_bytes, unit),
            # No limit on a card's compute is all of it.
            compute_ratio=unit.compute_ratio if share.compute_ratio is None else share.compute_ratio,
        )

    def _of_allocation(self, record: PodRecord, container: str, devices: Iterable[ClaimedDevice]) -> list[Held]:
        held = []
        for device in devices:
            unit = None if device.is_admin else self._of_device(device.driver, device.pool, device.device)
            if unit is None:
                if not device.is_admin and device.driver in _CARD_DRIVERS:
                    self._find(FindingKind.DEVICE_UNKNOWN, record, container, detail=shown(device.device))
                continue
            ratio = None if device.core_percent is None else min(1.0, device.core_percent / 100)
            held.append(
                Held(
                    container=container,
                    unit=unit,
                    source=GrantSource.RESOURCE_CLAIM,
                    framebuffer_bytes=device.framebuffer_bytes or unit.framebuffer_bytes,
                    compute_ratio=unit.compute_ratio if ratio is None else ratio,
                )
            )
        return held

    def _of_id(self, pod: PodRow, container: str, row: DeviceRow, text: str, *, is_quiet: bool) -> Held | None:
        try:
            device = parse_device_id(text)
        except Corrupt:
            unit = self._cards.of_name(text)
            if unit is not None:
                return _whole(container, unit)
            # Network cards and the like stand in the same list.
            if counts_devices(row.resource) and not is_quiet:
                self._find(FindingKind.UNREADABLE, pod, container, detail=f"{row.resource}: {shown(text)}")
            return None
        if device.truth is IdTruth.AMOUNT:
            return None
        unit = self._cards.of_device(device)
        if unit is None:
            kind = FindingKind.INSTANCE_UNKNOWN if device.truth is IdTruth.INSTANCE else FindingKind.CARD_UNKNOWN
            self._find(kind, pod, container, card=device.unit or "")
            return None
        return self._of_device_id(container, device, unit, self._replicas.get(row.resource))

    def _of_device_id(self, container: str, device: DeviceId, unit: Unit, replicas: int | None) -> Held:
        whole = _whole(container, unit)
        if device.truth is IdTruth.MAY_DIFFER:
            return replace(whole, framebuffer_bytes=None, compute_ratio=None, is_certain=False)
        if not device.is_replica:
            return whole
        framebuffer, ratio = whole.framebuffer_bytes, whole.compute_ratio
        return replace(
            whole,
            framebuffer_bytes=framebuffer // replicas if replicas and framebuffer is not None else None,
            compute_ratio=ratio / replicas if replicas and ratio is not None else None,
        )

    def _of_device(self, driver: str, pool: str, device: str) -> Unit | None:
        return self._cards.of_published(driver, device, self._published.get((driver, pool, device)))

    def _reserved(self, pods: Iterable[PodFacts], rows: Iterable[PodRow]) -> Mapping[str, Unit]:
        """Card of each of KAI's groups: what the kubelet handed its reservation pod, else what that pod says."""
        handed = {(row.namespace, row.pod): self._only_unit(row) for row in rows}
        groups: dict[str, Unit] = {}
        for facts in pods:
            record = facts.record
            if record.namespace not in RESERVATION_NAMESPACES or record.is_over:
                continue
            said = {group: self._cards.of_name(card) for group, card in record.reserves}
            unit = handed.get((record.namespace, record.pod))
            try:
                names = {*said, *kai_groups(dict(record.labels))}
            except Corrupt:
                names = set(said)
            for group in names:
                found = unit or said.get(group)
                if unit is not None and said.get(group) not in (None, unit):
                    self._find(FindingKind.CARD_DIFFERS, record, card=str(unit.card.card), detail=shown(group))
                if found is not None:
                    groups.setdefault(group, found)
        return groups

    def _only_unit(self, row: PodRow) -> Unit | None:
        for container in row.containers:
            for device in container.devices:
                for text in device.ids:
                    try:
                        return self._cards.of_device(parse_device_id(text))
                    except Corrupt:
                        continue
        return None

    def _find(
        self, kind: FindingKind, pod: PodRow | PodRecord, container: str = "", *, card: str = "", detail: str = ""
    ) -> None:
        self.findings.append(
            Finding(
                kind=kind, namespace=pod.namespace, pod=pod.pod, container=container, card=card[:128], detail=detail
            )
        )


def _believable(framebuffer_bytes: int | None, unit: Unit) -> int | None:
    """An amount of framebuffer, bytes; None where nobody says, or where it can't be."""
    if framebuffer_bytes is not None and framebuffer_bytes > OVERSUBSCRIPTION_MAX * unit.card.framebuffer_bytes:
        return None
    return framebuffer_bytes


def _whole(container: str, unit: Unit) -> Held:
    """What the kubelet handed out, where it is all of a card or instance."""
    return Held(
        container=container,
        unit=unit,
        source=GrantSource.POD_RESOURCES,
        framebuffer_bytes=unit.framebuffer_bytes,
        compute_ratio=unit.compute_ratio,
    )


def _replicas(allocatable: Iterable[DeviceRow], rows: Iterable[PodRow]) -> Mapping[str, int]:
    """How many replicas each card or instance of a resource has; a resource that lists none is absent.

    A plugin has one number for all of a resource and counts from 0, so the highest reports it. To count what is listed
    would not do: the kubelet lists what is healthy, and of a card with a fault NVIDIA's plugin calls one replica
    unhealthy (NVIDIA/k8s-device-plugin:internal/rm/device_map.go, health.go).
    """
    replicas: dict[str, int] = {}
    for row in allocatable:
        listed = max(_numbers(row), default=0)
        if listed:
            replicas[row.resource] = max(replicas.get(row.resource, 0), listed)
    for device in (device for pod in rows for container in pod.containers for device in container.devices):
        if device.resource in replicas:
            replicas[device.resource] = max(replicas[device.resource], *_numbers(device), 0)
    return replicas


def _numbers(row: DeviceRow) -> Iterator[int]:
    """Number of each replica, counted from 1."""
    for text in row.ids:
        try:
            device = parse_device_id(text)
        except Corrupt:
            continue
        if device.is_replica and device.number is not None:
            yield device.number + 1


def _unknown(name: str) -> FindingKind:
    return FindingKind.INSTANCE_UNKNOWN if name.startswith("MIG-") else FindingKind.CARD_UNKNOWN


def _device_name(claim: ClaimRow) -> str:
    return shown(f"{claim.driver}/{claim.pool}/{claim.device}")
