"""A fleet's inventory as the cluster of any GPU-sharing backend: every pod in that backend's own words, on its card.

What NVIDIA's device plugin, mig-manager and DRA's driver would do after a stage is played by what they show in the API.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from enforcer.backend import Backend, RenderedStage
from enforcer.backends.device_plugin import (
    CARD_RESOURCE,
    MIG_CONFIGS,
    PLUGIN_CONFIGS,
    SHARED_RESOURCE,
    counted_slice,
)
from enforcer.backends.dra_claims import CARD_CLASS
from enforcer.backends.kai import CAPPED, QUEUE_LABEL, SCHEDULER
from enforcer.backends.mgpu import NODE_LABEL
from enforcer.backends.mig import CONFIG_LABEL as MIG_LABEL
from enforcer.backends.mig import STATE_LABEL, STRATEGY_LABEL, instance_resource
from enforcer.cluster import identity
from enforcer.dialect import SeatSlice
from enforcer.manifest import Manifest, set_field
from enforcer.snapshot import Snapshot, take_snapshot
from fleet.catalogue import find_model
from fleet.decisions import Plan
from fleet.grammars.hami import RegisteredDevice
from fleet.grammars.kai import FRAMEBUFFER_ANNOTATION, READY_CONDITION
from fleet.grammars.mig import is_mig_profile
from fleet.grammars.vgpumanager import REAL_ALLOCATED_ANNOTATION, ContainerVgpus, VgpuGrant
from fleet.inventory import Card, CardId, Grant, Inventory
from fleet.units import MIB
from fleet.usage import History
from tests.enforcer.kin_cluster import KINS, Kin, a_plugin_pod
from tests.enforcer.plugin_cluster import StandingCluster, a_config, a_node
from tests.fleet.written_annotations import render_vgpu_allocation

_KIN_OF = {kin.name: kin for kin in KINS}
_CLAIM = "gpu"


def with_uuids(history: History) -> History:
    """The same fleet with cards that are named as the driver names them."""
    inventory = history.inventory
    names = {card.card: _uuid(card.card) for card in inventory.cards}
    names |= {grant.card: _uuid(grant.card) for grant in inventory.grants}
    return replace(
        history,
        inventory=replace(
            inventory,
            cards=tuple(replace(card, card=names[card.card]) for card in inventory.cards),
            grants=tuple(replace(grant, card=names[grant.card]) for grant in inventory.grants),
        ),
        slices=replace(
            history.slices,
            keys=tuple(replace(key, card=names.get(key.card, key.card)) for key in history.slices.keys),
        ),
    )


def _uuid(text: str) -> CardId:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return CardId(f"GPU-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}")


class BackendCluster:
    """One fleet on one backend's cluster; plans are carried out on it stage by stage.

    Args:
        inventory: nodes, cards and live grants.
        backend: whose words the objects are written in.
    """

    def __init__(self, inventory: Inventory, backend: Backend) -> None:
        self._backend = backend
        self._name = backend.capabilities.backend
        self._kin = _KIN_OF.get(self._name)
        self._objects: dict[tuple[str, str, str], Manifest] = {}
        self._cards_held: dict[str, tuple[CardId, ...]] = {}
        self._cards = {card.card: card for card in inventory.cards}
        self._cards_of: dict[str, list[Card]] = defaultdict(list)
        for card in inventory.cards:
            self._cards_of[card.node].append(card)
        self._labels = {node.node: dict(node.labels) for node in inventory.nodes}
        for node in sorted(self._cards_of):
            self._put(self._node(node))
        grants: dict[str, list[Grant]] = defaultdict(list)
        for grant in inventory.live_grants():
            grants[grant.pod_id].append(grant)
        pods_of: dict[tuple[str, str, str], list[list[Grant]]] = defaultdict(list)
        for held in grants.values():
            pods_of[held[0].workload_kind, held[0].namespace, held[0].workload].append(held)
        for own in pods_of.values():
            self._put(self._owner([pod[0] for pod in own], len(own[0])))
        for held in grants.values():
            first = held[0]
            self._put_pod(first, [self._whole(grant) for grant in held], [grant.card for grant in held])
        self._grant_of = {pod: held[0] for pod, held in grants.items()}
        for config in self._configs():
            self._put(config)

    def snapshot(self) -> Snapshot:
        """What stands."""
        return take_snapshot(StandingCluster(self._objects.values()), self._backend.dialect)

    def manifest(self, kind: str, namespace: str, name: str) -> Manifest:
        """One object."""
        return self._objects[kind, namespace, name]

    def cards_held(self) -> set[CardId]:
        """Cards on which a pod really sits."""
        return {card for cards in self._cards_held.values() for card in cards}

    @property
    def cards_of_pods(self) -> Mapping[str, tuple[CardId, ...]]:
        """The cards that each pod really has."""
        return self._cards_held

    def node_of(self, card: CardId) -> str:
        """The node that a card is in."""
        return self._cards[card].node

    def carry_out(self, plan: Plan, stage: RenderedStage) -> None:
        """Writes a stage's changes, lets nodes do what they are configured to do, and moves the pods."""
        for change in stage.changes:
            set_field(self._objects[change.kind, change.namespace, change.name], change.field, change.new)
        for made in stage.objects:
            self._put({**made, "metadata": {**made["metadata"], "resourceVersion": "1"}})
        for step in stage.node_steps:
            node = self._objects["Node", "", step.node]
            for field, value in ((step.done_field, step.done_value), *step.advertised):
                if field is not None:
                    set_field(node, field, value)
            if step.done_field == f"status.allocatable[{SHARED_RESOURCE}]":
                set_field(node, f"status.allocatable[{CARD_RESOURCE}]", "0")
        cards_of: dict[str, list[CardId]] = defaultdict(list)
        for card in plan.placement:
            for part in card.slices:
                cards_of[part.pod_id].append(card.card)
        for move in stage.moves:
            if not move.new:
                self._objects.pop(("Pod", move.namespace, move.pod))
                self._cards_held.pop(move.pod_id)
                continue
            self._put_pod(self._grant_of[move.pod_id], list(move.new), cards_of[move.pod_id])

    def _put(self, manifest: Manifest) -> None:
        self._objects[identity(manifest)] = manifest

    def _node(self, name: str) -> Manifest:
        cards = self._cards_of[name]
        mib = cards[0].framebuffer_bytes // MIB
        node = a_node(name, len(cards), mib=mib, product=cards[0].card_model.replace(" ", "-"))
        node["metadata"]["labels"].update(self._labels.get(name, {}))
        node["metadata"]["labels"].update({STRATEGY_LABEL: "mixed", NODE_LABEL: "mgpu", MIG_LABEL: "none"})
        node["metadata"]["labels"][STATE_LABEL] = "success"
        if self._name == "kai_nvfractions":
            node["status"]["conditions"] = [{"type": READY_CONDITION, "status": "True"}]
        if self._kin is None:
            return node
        devices = [
            RegisteredDevice(
                card=card.card, slices_max=10, framebuffer_mib=card.framebuffer_bytes // MIB, core_percent=100,
                device_type=f"NVIDIA-{card.card_model}", numa=0, is_healthy=True, index=number,
                mode=None if self._name == "vgpu_manager" else "hami-core",
            )
            for number, card in enumerate(cards)
        ]  # fmt: skip
        node["metadata"]["annotations"] = dict(self._kin.node_annotations(devices))
        allocatable = {
            "vke.volcengine.com/mgpu-core": 100 * len(cards),
            "vke.volcengine.com/mgpu-memory": mib * len(cards),
        }
        node["status"] = {"allocatable": {key: str(value) for key, value in allocatable.items()}}
        return node

    def _configs(self) -> list[Manifest]:
        if self._kin is not None:
            kin: Kin = self._kin
            made = [] if kin.config is None else [a_config(kin.config, {kin.config_field[0]: kin.config_field[1]})]
            for number, node in enumerate(sorted(self._cards_of)):
                pod = a_plugin_pod(kin, number)
                pod["spec"]["nodeName"] = node
                made.append(pod)
            return made
        if self._name.startswith("dra"):
            return [self._published(node) for node in sorted(self._cards_of)]
        return [
            a_config(PLUGIN_CONFIGS[0]),
            a_config(MIG_CONFIGS[0], {"config.yaml": "version: v1\nmig-configs: {}\n"}),
        ]

    def _published(self, node: str) -> Manifest:
        """Devices of a node as its driver lists them; with its gate DynamicMIG also instances that can be cut."""
        devices: list[dict[str, Any]] = []
        for number, card in enumerate(self._cards_of[node]):
            uuid = {"string": card.card}
            devices.append(
                {"name": f"gpu-{number}", "attributes": {"uuid": uuid, "type": {"string": "gpu"}},
                 "capacity": {"memory": {"value": f"{card.framebuffer_bytes // MIB}Mi"}},
                 "allowMultipleAllocations": self._name == "dra_consumable"}
            )  # fmt: skip
            model = find_model(card.card_model)
            if self._name != "dra_mig" or model is None or model.mig is None:
                continue
            for profile in model.mig.profiles:
                devices += [
                    {"name": f"gpu-{number}-{profile.name.replace('.', '-').replace('+', '-')}-{index}",
                     "attributes": {"parentUUID": uuid, "profile": {"string": profile.name}, "type": {"string": "mig"},
                                    "uuid": {"string": f"MIG-{_uuid(f'{card.card}{profile.name}{index}')[4:]}"}},
                     "capacity": {"memory": {"value": "1Gi"}}}
                    for index in range(profile.count_max)
                ]  # fmt: skip
        return {
            "kind": "ResourceSlice",
            "metadata": {"name": f"slice-{node}", "resourceVersion": "1"},
            "spec": {"driver": "gpu.nvidia.com", "nodeName": node, "pool": {"name": node}, "devices": devices},
        }

    def _whole(self, grant: Grant) -> SeatSlice:
        """What a pod is granted before the plan."""
        if self._name == "mgpu":
            cores, resource = 100, "vke.volcengine.com/mgpu-core"
            return replace(counted_slice(grant.container, grant.node, resource), core_percent=cores)
        if self._kin is not None:
            part = self._kin.whole(grant.container, 0)
            framebuffer_mib = grant.framebuffer_granted_bytes // MIB
            return replace(part, card=grant.card, framebuffer_mib=framebuffer_mib)
        resource = CARD_RESOURCE if grant.mig_profile is None else instance_resource(grant.mig_profile)
        return counted_slice(grant.container, grant.node, resource)

    def _limits(self, slices: Sequence[SeatSlice]) -> dict[str, str]:
        if self._name == "mgpu":
            limits = {slices[0].resource or "": str(sum(part.core_percent for part in slices))}
            framebuffer_mib = sum(part.framebuffer_mib for part in slices)
            return limits | ({"vke.volcengine.com/mgpu-memory": str(framebuffer_mib)} if framebuffer_mib else {})
        if self._kin is not None:
            return {next(iter(self._kin.limits)): str(len(slices))}
        if self._name.startswith("dra"):
            return {}
        counts = Counter(part.resource or "" for part in slices)
        return {name: str(count) for name, count in counts.items() if name not in (FRAMEBUFFER_ANNOTATION, CAPPED)}

    def _owner(self, grants: Sequence[Grant], cards: int) -> Manifest:
        first = grants[0]
        container = {
            "name": first.container, "resources": {"limits": self._limits([self._whole(first)] * cards)},
        }  # fmt: skip
        spec: dict[str, Any] = {"containers": [container, {"name": "sidecar"}]}
        if self._name.startswith("dra"):
            spec["resourceClaims"] = [{"name": _CLAIM, "resourceClaimTemplateName": "one-card"}]
            container["resources"] = {"claims": [{"name": _CLAIM}]}
            self._put(_claim_template(first.namespace))
        if self._name.startswith("kai"):
            spec["schedulerName"] = SCHEDULER
        annotations = {key: value for key, value in first.labels if key.startswith("gputide.io/")}
        template = {"metadata": {"labels": {"app": first.workload}, "annotations": annotations}, "spec": spec}
        return {
            "kind": first.workload_kind,
            "metadata": {
                "namespace": first.namespace, "name": first.workload, "resourceVersion": "7",
                "labels": {QUEUE_LABEL: "team"},
            },
            "spec": {
                **({"replicas": len(grants)} if first.workload_kind in ("Deployment", "StatefulSet") else {}),
                "template": template,
            },
        }  # fmt: skip

    def _put_pod(self, grant: Grant, slices: Sequence[SeatSlice], cards: Sequence[CardId]) -> None:
        """A bound pod with its share; `cards` are those that it really gets."""
        self._cards_held[grant.pod_id] = tuple(cards)
        owner = self._objects[grant.workload_kind, grant.namespace, grant.workload]
        annotations = dict(owner["spec"]["template"]["metadata"].get("annotations", {}))
        node = self._cards[cards[0]].node
        container: dict[str, Any] = {"name": grant.container, "resources": {"limits": self._limits(slices)}}
        spec: dict[str, Any] = {"nodeName": node, "containers": [container, {"name": "sidecar"}]}
        status: dict[str, Any] = {"phase": "Running", "containerStatuses": [{"ready": True}]}
        if self._kin is not None and self._name != "mgpu":
            annotations |= self._kin_annotations(grant.container, slices)
        if self._name.startswith("kai"):
            spec["schedulerName"] = SCHEDULER
            shared = [part for part in slices if part.resource == FRAMEBUFFER_ANNOTATION]
            annotations |= {FRAMEBUFFER_ANNOTATION: str(shared[0].framebuffer_mib)} if shared else {}
        if self._name.startswith("dra"):
            entry = owner["spec"]["template"]["spec"]["resourceClaims"][-1]
            spec["resourceClaims"] = [entry]
            container["resources"] = {"claims": [{"name": entry["name"]}]}
            name = self._claim(grant, entry, slices, cards)
            status["resourceClaimStatuses"] = [{"name": entry["name"], "resourceClaimName": name}]
        self._put(
            {
                "kind": "Pod",
                "metadata": {
                    "namespace": grant.namespace, "name": grant.pod, "resourceVersion": "3",
                    "uid": f"uid-{grant.namespace}-{grant.pod}",
                    "labels": {"app": grant.workload}, "annotations": annotations,
                    "ownerReferences": [{"kind": grant.workload_kind, "name": grant.workload, "controller": True}],
                },
                "spec": spec,
                "status": status,
            }
        )  # fmt: skip

    def _kin_annotations(self, container: str, slices: Sequence[SeatSlice]) -> Mapping[str, str]:
        if self._name != "vgpu_manager" or self._kin is None:
            return {} if self._kin is None else self._kin.pod_annotations(slices)
        grants = tuple(
            VgpuGrant(
                index=0, card=part.card or "", core_percent=part.core_percent, framebuffer_mib=part.framebuffer_mib
            )
            for part in slices
        )
        text = render_vgpu_allocation([ContainerVgpus(container=container, grants=grants)])
        return {REAL_ALLOCATED_ANNOTATION: text}

    def _claim(
        self, grant: Grant, entry: Mapping[str, str], slices: Sequence[SeatSlice], cards: Sequence[CardId]
    ) -> str:
        """The allocated claim of a pod: made from its template, or the one that several pods name."""
        shared = entry.get("resourceClaimName")
        name = shared or f"{grant.pod}-claim"
        profiles = [part.resource if is_mig_profile(part.resource or "") else None for part in slices]
        results = [
            {"driver": "gpu.nvidia.com", "pool": self._cards[card].node, "device": self._device(card, profile),
             **({"consumedCapacity": {"memory": f"{part.framebuffer_mib}Mi"}} if part.framebuffer_mib else {})}
            for card, profile, part in zip(cards, profiles, slices, strict=True)
        ]  # fmt: skip
        known = self._objects.get(("ResourceClaim", grant.namespace, name), {})
        users = known.get("status", {}).get("reservedFor", []) if shared else []
        mine = {"resource": "pods", "name": grant.pod, "uid": f"uid-{grant.namespace}-{grant.pod}"}
        self._put(
            {
                "kind": "ResourceClaim",
                "metadata": {"namespace": grant.namespace, "name": name, "resourceVersion": "1"},
                "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": CARD_CLASS}}]}},
                "status": {
                    "allocation": {"devices": {"results": results}},
                    "reservedFor": [*(user for user in users if user["name"] != grant.pod), mine],
                },
            }
        )
        return name

    def _device(self, card: CardId, profile: str | None) -> str:
        number = self._cards_of[self._cards[card].node].index(self._cards[card])
        return f"gpu-{number}" if profile is None else f"gpu-{number}-{profile.replace('.', '-').replace('+', '-')}-0"


def _claim_template(namespace: str) -> Manifest:
    request = {"name": "gpu", "exactly": {"deviceClassName": CARD_CLASS}}
    return {
        "kind": "ResourceClaimTemplate",
        "metadata": {"namespace": namespace, "name": "one-card", "resourceVersion": "1"},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
