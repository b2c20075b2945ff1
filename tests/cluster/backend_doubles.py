"""Volcano, KAI and vgpu-manager on the API server's own objects: their rules, read from and written to manifests.

Which of several nodes Volcano takes depends on plugins besides its deviceshare; here the score of that one decides, and
then the name. What a kubelet does for KAI, which gives a reservation pod or a pod with whole cards any free ones, is
played: the lowest numbers. vgpu-manager's device plugin hands out what its scheduler meant.

Sources: volcano-sh/volcano:pkg/scheduler/api/devices/nvidia/vgpu/device_info.go (Allocate);
kai-scheduler/KAI-Scheduler:pkg/binder/binding (binder.go, resourcereservation/resource_reservation.go),
docs/gpu-sharing/nv-fraction;
coldzerofear/vgpu-manager:pkg/client (PatchPodPreAllocatedMetadata), pkg/deviceplugin/vgpu.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.cluster import kai_rules, vgpu_manager_rules, volcano_rules
from tests.cluster.scheduler_double import Binding, Waits

Manifest = dict[str, Any]


class Granted(NamedTuple):
    """What a pod holds of a card: MiB, percent of cores (0 where nothing limits its compute), profile of MIG."""

    mib: int
    cores: int
    profile: str | None = None


Grants = dict[str, Granted]
"""By card."""

CARD_CORES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedCard:
    """A card of a node that is made."""

    card: str
    mib: int
    model: str


class VolcanoRules:
    """Volcano 1.16 with `deviceshare.VGPUEnable`; 1.15 where it does not know cards by name.

    Args:
        knows_cards: whether `volcano.sh/vgpu-use-gpuuuid` is read.
    """

    scheduler = "volcano"
    limits: Mapping[str, str] = {volcano_rules.COUNT: "1"}
    labels: Mapping[str, str] = {}

    def __init__(self, *, knows_cards: bool = True) -> None:
        self._knows_cards = knows_cards

    def node(self, cards: Sequence[PlayedCard]) -> tuple[Manifest, Mapping[str, str]]:
        """Metadata and what is offered, as the device plugin writes it."""
        text = "".join(f"{one.card},10,{one.mib},NVIDIA-{one.model},true,hami-core:" for one in cards)
        return {"annotations": {"volcano.sh/node-vgpu-register": text}}, {
            volcano_rules.COUNT: str(10 * len(cards)),
            volcano_rules.FRAMEBUFFER: str(sum(one.mib for one in cards)),
            volcano_rules.CORES: str(100 * len(cards)),
        }

    def decide(self, pod: Manifest, nodes: Sequence[Manifest], pods: Sequence[Manifest]) -> Binding:
        """See `Rules`."""
        fits: dict[str, tuple[str, float]] = {}
        why = ["no node has cards"]
        for node in nodes:
            name, text = node["metadata"]["name"], node["metadata"].get("annotations", {}).get(_REGISTER, "")
            cards = volcano_rules.read_register(text)
            if not cards:
                continue
            for other in _on(name, pods):
                volcano_rules.book(cards, other["metadata"].get("annotations", {}).get(_IDS, ""))
            try:
                fits[name] = volcano_rules.place(pod, cards, "", knows_cards=self._knows_cards)
            except volcano_rules.Unfit as refusal:
                why.append(str(refusal).replace("NODE", name))
        if not fits:
            raise Waits(why[-1])
        chosen = min(fits, key=lambda name: (-fits[name][1], name))
        now, ids = str(int(time.time())), fits[chosen][0]
        annotations = {
            "volcano.sh/vgpu-node": chosen, "volcano.sh/vgpu-time": now, _IDS: ids,
            "volcano.sh/devices-to-allocate": "", "volcano.sh/bind-phase": "success", "volcano.sh/bind-time": now,
        }  # fmt: skip
        return Binding(node=chosen, annotations=annotations)

    def abandoned(self, pods: Sequence[Manifest]) -> list[Manifest]:
        """None: it has no pods of its own."""
        del pods
        return []

    def grants_of(self, pod: Manifest, pods: Sequence[Manifest]) -> Grants:
        """What a bound pod holds."""
        del pods
        text = pod["metadata"].get("annotations", {}).get(_IDS, "")
        parts = [part.split(",") for part in text.replace(";", ":").split(":") if part]
        return {card: Granted(int(mib), int(cores)) for card, _, mib, cores in parts}


class VgpuManagerRules:
    """vgpu-manager's scheduler and device plugin."""

    scheduler = vgpu_manager_rules.SCHEDULER
    limits: Mapping[str, str] = {vgpu_manager_rules.COUNT: "1"}
    labels: Mapping[str, str] = {}

    def node(self, cards: Sequence[PlayedCard]) -> tuple[Manifest, Mapping[str, str]]:
        """Metadata and what is offered, as the device plugin writes it."""
        entries = ",".join(
            f'{{"id":{number},"type":"{one.model}","uuid":"{one.card}","core":100,"memory":{one.mib},"number":10,'
            '"numa":0,"mig":false,"busId":"","capability":8.6,"healthy":true}'
            for number, one in enumerate(cards)
        )
        config = '{"deviceSplit":10,"coresScaling":1,"memoryFactor":1,"memoryScaling":1}'
        annotations = {vgpu_manager_rules.REGISTER: f"[{entries}]", vgpu_manager_rules.CONFIG: config}
        return {"annotations": annotations}, {vgpu_manager_rules.COUNT: str(10 * len(cards))}

    def decide(self, pod: Manifest, nodes: Sequence[Manifest], pods: Sequence[Manifest]) -> Binding:
        """See `Rules`."""
        admitted = vgpu_manager_rules.admit(pod)
        policy = pod["metadata"].get("annotations", {}).get(vgpu_manager_rules.MEMORY_POLICY, "")
        known = []
        for node in sorted(nodes, key=lambda node: str(node["metadata"]["name"])):
            name, annotations = node["metadata"]["name"], node["metadata"].get("annotations", {})
            offered = int(node["status"].get("allocatable", {}).get(vgpu_manager_rules.COUNT, "0"))
            known.append(vgpu_manager_rules.read_node(name, annotations, offered, policy))
            for other in _on(name, pods):
                vgpu_manager_rules.book(known[-1], other["metadata"].get("annotations", {}))
        try:
            chosen, text, failed = vgpu_manager_rules.place(admitted, known)
        except vgpu_manager_rules.Unfit as wrong:
            raise Waits(str(wrong)) from wrong
        if chosen is None:
            raise Waits(
                "; ".join(sorted({reason for reason in failed.values() if "node" not in reason}) or ["no node"])
            )
        annotations = {
            vgpu_manager_rules.PREDICATE_NODE: chosen, vgpu_manager_rules.PRE_ALLOCATED: text,
            vgpu_manager_rules.REAL_ALLOCATED: text,
        }  # fmt: skip
        return Binding(node=chosen, annotations=annotations, labels={vgpu_manager_rules.PHASE: "succeed"})

    def abandoned(self, pods: Sequence[Manifest]) -> list[Manifest]:
        """None: it has no pods of its own."""
        del pods
        return []

    def grants_of(self, pod: Manifest, pods: Sequence[Manifest]) -> Grants:
        """What a bound pod holds."""
        del pods
        text = pod["metadata"].get("annotations", {}).get(vgpu_manager_rules.REAL_ALLOCATED, "")
        parts = [part for one in text.split(";") for part in one.partition("[")[2].rstrip("]").split(",") if part]
        return {card: Granted(int(mib), int(cores)) for _, card, cores, mib in (part.split("_") for part in parts)}


@dataclass(slots=True)
class KaiRules:
    """KAI's scheduler, its binder, and the kubelet's choice of cards; mutable: it remembers cards.

    Attributes:
        caps: its mode is `NvFractions` (0.18), so containers that ask by name are capped by the driver of their node.
        cards: of each node that was made, in the order of their numbers.
    """

    caps: bool = False

    cards: dict[str, tuple[PlayedCard, ...]] = field(default_factory=dict)
    scheduler: str = kai_rules.SCHEDULER
    limits: Mapping[str, str] = field(default_factory=lambda: {kai_rules.WHOLE: "1"})
    labels: Mapping[str, str] = field(default_factory=lambda: {"kai.scheduler/queue": "team"})

    def node(self, cards: Sequence[PlayedCard]) -> tuple[Manifest, Mapping[str, str]]:
        """Metadata and what is offered, as NVIDIA's plugin and its feature discovery write it."""
        labels = {
            "nvidia.com/gpu.count": str(len(cards)), kai_rules.NODE_FRAMEBUFFER: str(cards[0].mib),
            "nvidia.com/gpu.product": cards[0].model.replace(" ", "-"),
        }  # fmt: skip
        return {"labels": labels}, {kai_rules.WHOLE: str(len(cards))}

    def conditions(self) -> list[Manifest]:
        """What the operator of GPU fractioning says of a node whose driver holds limits."""
        return [{"type": kai_rules.READY, "status": "True", "reason": "Ready"}] if self.caps else []

    def decide(self, pod: Manifest, nodes: Sequence[Manifest], pods: Sequence[Manifest]) -> Binding:
        """See `Rules`."""
        known = {}
        ask = self._ask(pod)
        for node in nodes:
            if ask.container and not _is_ready(node):
                continue
            count = int(node["status"].get("allocatable", {}).get(kai_rules.WHOLE, "0"))
            label = node["metadata"].get("labels", {}).get(kai_rules.NODE_FRAMEBUFFER, "")
            name = node["metadata"]["name"]
            known[name] = kai_rules.Node(name=name, cards=count, mib=kai_rules.card_mib(label))
        for other in pods:
            node_name = other["spec"]["nodeName"]
            if node_name in known and other["metadata"]["namespace"] != kai_rules.RESERVATIONS:
                kai_rules.book(known[node_name], self._ask(other), _groups(other))
        for name, others in self._other_modes(pod, pods).items():
            for group in others & set(known[name].groups if name in known else ()):
                known[name].groups[group].held = known[name].mib
        try:
            found = kai_rules.place(ask, list(known.values()), set(known))
        except kai_rules.Unfit as refusal:
            raise Waits(str(refusal)) from refusal
        free = self._free(found.node, pods)
        if ask.whole:
            given = ",".join(free[: ask.whole])
            return Binding(node=found.node, annotations={kai_rules.RECEIVED: "Regular", _GIVEN: given})
        groups = [group or str(uuid.uuid4()) for group in found.groups]
        made = [group for group, old in zip(groups, found.groups, strict=True) if old is None]
        reserved = [self._reservation(found.node, group, card) for group, card in zip(made, free, strict=False)]
        labels = (
            {kai_rules.GROUP: groups[0]}
            if ask.devices == 1
            else {f"{kai_rules.GROUP}/{group}": group for group in groups}
        )
        annotations = {kai_rules.RECEIVED: "Fraction"}
        if ask.container:
            holders = [one for one in (*pods, *reserved) if _is_reservation(one) and {*groups} & {*_groups(one)}]
            seen = sorted(one["metadata"]["annotations"][kai_rules.RESERVED_CARD] for one in holders)
            annotations[kai_rules.devices_key(ask.container)] = ",".join(seen)
        return Binding(node=found.node, annotations=annotations, labels=labels, reserved=tuple(reserved))

    def abandoned(self, pods: Sequence[Manifest]) -> list[Manifest]:
        """Reservation pods of groups that nobody is of (syncForPods)."""
        used = {group for pod in pods if not _is_reservation(pod) for group in _groups(pod)}
        return [pod for pod in pods if _is_reservation(pod) and not used & set(_groups(pod))]

    def grants_of(self, pod: Manifest, pods: Sequence[Manifest]) -> Grants:
        """What a bound pod holds: cards of its own, or shares of those of its groups' reservation pods."""
        mib = {card.card: card.mib for card in self.cards[pod["spec"]["nodeName"]]}
        if given := _given(pod):
            return {card: Granted(mib[card], CARD_CORES) for card in given}
        ask, groups = self._ask(pod), set(_groups(pod))
        holders = [one for one in pods if _is_reservation(one) and groups & set(_groups(one))]
        cards = [one["metadata"]["annotations"][kai_rules.RESERVED_CARD] for one in holders]
        # Nothing limits their compute.
        return {card: Granted(ask.mib or int((ask.portion or 1.0) * mib[card]), 0) for card in cards}

    def _ask(self, pod: Manifest) -> kai_rules.Ask:
        """What a pod asks for, by the words that its mode knows.

        Raises:
            Waits: its admission refuses such a pod.
        """
        asked = kai_rules.asked_by_name(pod["metadata"].get("annotations", {})) if self.caps else {}
        if not asked:
            return ask_of(pod)
        counted = ask_of(pod)
        if len(asked) > 1 or counted.whole or counted.portion or counted.mib:
            raise Waits("a pod has one container with a share of cards, and no whole card beside it")
        ((container, (request, limit)),) = asked.items()
        if limit < request or container not in {one["name"] for one in pod["spec"]["containers"]}:
            raise Waits(f"container {container}: limit {limit} Mi, request {request} Mi")
        return kai_rules.Ask(devices=counted.devices, mib=request, container=container)

    def _other_modes(self, pod: Manifest, pods: Sequence[Manifest]) -> dict[str, set[str]]:
        """Groups of each node whose pods take turns in another way than a pod: they never share a card."""
        found: dict[str, set[str]] = {}
        for other in pods:
            if not _is_reservation(other) and kai_rules.mode(other) != kai_rules.mode(pod):
                found.setdefault(other["spec"]["nodeName"], set()).update(_groups(other))
        return found

    def _free(self, node: str, pods: Sequence[Manifest]) -> tuple[str, ...]:
        taken = {card for pod in pods for card in _given(pod)}
        taken |= {pod["metadata"]["annotations"][kai_rules.RESERVED_CARD] for pod in pods if _is_reservation(pod)}
        return tuple(one.card for one in self.cards[node] if one.card not in taken)

    def _reservation(self, node: str, group: str, card: str) -> Manifest:
        """createGPUReservationPod; the card's UUID is written by the pod itself once it runs."""
        limits = {kai_rules.WHOLE: "1"}
        container = {"name": "resource-reservation", "image": "registry/none:1", "resources": {"limits": limits}}
        return {
            "metadata": {
                "name": f"gpu-reservation-{node}-{group[:5]}", "namespace": kai_rules.RESERVATIONS,
                "labels": {kai_rules.GROUP: group, "app": "kai-resource-reservation"},
                "annotations": {kai_rules.RESERVED_CARD: card},
            },
            "spec": {
                "nodeName": node, "containers": [container], "tolerations": [{"operator": "Exists"}],
                "terminationGracePeriodSeconds": 0,
            },
            "status": {"phase": "Running"},
        }  # fmt: skip


def ask_of(pod: Manifest) -> kai_rules.Ask:
    """pkg/scheduler/api/pod_info (getTaskResourceRequest): a pod with a fraction asks by it, and not for its limits."""
    annotations = pod["metadata"].get("annotations", {})
    devices = int(annotations.get(kai_rules.DEVICES, "1"))
    if kai_rules.PORTION in annotations:
        return kai_rules.Ask(devices=devices, portion=float(annotations[kai_rules.PORTION]))
    if kai_rules.FRAMEBUFFER in annotations:
        return kai_rules.Ask(devices=devices, mib=int(annotations[kai_rules.FRAMEBUFFER]))
    limits = [one.get("resources", {}).get("limits", {}) for one in pod["spec"]["containers"]]
    return kai_rules.Ask(whole=sum(int(one.get(kai_rules.WHOLE, "0")) for one in limits))


_GIVEN = "kwok.gputide.io/cards"
"""Cards that a kubelet gave a pod, which only its node knows."""

_REGISTER, _IDS = "volcano.sh/node-vgpu-register", "volcano.sh/vgpu-ids-new"


def _is_ready(node: Manifest) -> bool:
    conditions = node["status"].get("conditions", ())
    return any(one["type"] == kai_rules.READY and one["status"] == "True" for one in conditions)


def _on(node: str, pods: Sequence[Manifest]) -> list[Manifest]:
    return [pod for pod in pods if pod["spec"]["nodeName"] == node]


def _groups(pod: Manifest) -> list[str]:
    labels = pod["metadata"].get("labels", {})
    return [value for key, value in labels.items() if key == kai_rules.GROUP or key.startswith(f"{kai_rules.GROUP}/")]


def _is_reservation(pod: Manifest) -> bool:
    return bool(pod["metadata"]["namespace"] == kai_rules.RESERVATIONS)


def _given(pod: Manifest) -> list[str]:
    return [card for card in pod["metadata"].get("annotations", {}).get(_GIVEN, "").split(",") if card]
