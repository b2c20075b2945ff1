"""Sharing backends as fleets need them: how a node with cards, a service and its pods' cards look in each one's words.

The doubles decide where pods go; for DRA, the control plane's own scheduler does. Nothing of gputide is asked where a
pod really is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.cluster.api import Api, Manifest
from tests.cluster.backend_doubles import Granted, Grants, KaiRules, PlayedCard, VgpuManagerRules, VolcanoRules
from tests.cluster.hami_double import NAMESPACE_LABEL, HamiDouble, hami_node
from tests.cluster.hami_rules import ALLOCATED, COUNT, PRIORITY, grants_of
from tests.cluster.kai_rules import RESERVATIONS
from tests.cluster.mgpu_rules import MgpuRules
from tests.cluster.nvidia_plugins import CARD, NvidiaPlugins, is_waiting, plugin_node
from tests.cluster.nvidia_plugins import grants_of as plugin_grants
from tests.cluster.scheduler_double import SchedulerDouble
from tests.cluster.workloads import deployment, until
from tests.control_plane import KWOK_ANNOTATION, ControlPlane, KubernetesPrograms

CONTAINER, FLEET = "main", "fleet"
_BATCH = {"gputide.io/tier": "batch"}
_MACHINE = {"cpu": "64", "memory": "512Gi", "pods": "110"}
_RESOURCES = "/apis/resource.k8s.io/v1"


class PlayedBackend(Protocol):
    """One backend."""

    @property
    def name(self) -> str:
        """As in the setting `enforcer.backend`."""
        ...

    def running(
        self, plane: ControlPlane, programs: KubernetesPrograms, api: Api, folder: Path
    ) -> AbstractContextManager[object]:
        """Its scheduler, for as long as it is needed."""
        ...

    def make_node(self, api: Api, name: str, cards: Sequence[PlayedCard]) -> None:
        """Make a node that kwok plays and whose cards are shown as its device plugin shows them."""
        ...

    def deploy(
        self, api: Api, namespace: str, name: str, replicas: int, kind: str = "Deployment", *, is_low: bool = False
    ) -> None:
        """Make a workload whose pods ask for a whole card each, on nodes with the label `fleet` of its namespace.

        Args:
            is_low: its owner says that it may wait for others, in the backend's words where it has some for a pod of
                a whole card, else by its tier.
        """
        ...

    def holders(self, api: Api, namespace: str) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Workload (`namespace/kind/name`) and cards, sorted, of every bound pod of a namespace that holds some."""
        ...

    def grants(self, api: Api, namespace: str) -> dict[str, Grants]:
        """What every bound pod of a namespace holds, by pod."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesPlayed:
    """A backend whose scheduler is played by rules on manifests.

    Attributes:
        name: the backend.
        rules: what it decides.
    """

    name: str
    rules: VolcanoRules | VgpuManagerRules | KaiRules | MgpuRules

    @contextmanager
    def running(
        self, plane: ControlPlane, programs: KubernetesPrograms, api: Api, folder: Path
    ) -> Iterator[SchedulerDouble]:
        """See `PlayedBackend`."""
        del plane, programs, folder
        if isinstance(self.rules, KaiRules):
            api.create("/api/v1/namespaces", {"metadata": {"name": RESERVATIONS}})
        double = SchedulerDouble(api, self.rules)
        double.start()
        try:
            yield double
        finally:
            double.stop()

    def make_node(self, api: Api, name: str, cards: Sequence[PlayedCard]) -> None:
        """See `PlayedBackend`."""
        metadata, offered = self.rules.node(cards)
        if isinstance(self.rules, KaiRules | MgpuRules):
            self.rules.cards[name] = tuple(cards)
        _make_node(api, name, metadata, offered)
        if isinstance(self.rules, KaiRules) and self.rules.conditions():
            path = f"/api/v1/nodes/{name}/status"
            own = api.ask("GET", f"/api/v1/nodes/{name}")["status"].get("conditions", [])
            api.patch(path, {"status": {"conditions": [*own, *self.rules.conditions()]}})

    def deploy(
        self, api: Api, namespace: str, name: str, replicas: int, kind: str = "Deployment", *, is_low: bool = False
    ) -> None:
        """See `PlayedBackend`."""
        made = deployment(
            api, namespace, name, replicas=replicas, container=CONTAINER, kind=kind, limits=dict(self.rules.limits),
            pod_spec={"schedulerName": self.rules.scheduler, "nodeSelector": {FLEET: namespace}},
            pod_labels=_BATCH if is_low else {},
        )  # fmt: skip
        if self.rules.labels:
            labels = {"metadata": {"labels": dict(self.rules.labels)}}
            path = f"/apis/apps/v1/namespaces/{namespace}/{kind.lower()}s/{made['metadata']['name']}"
            api.patch(path, {**labels, "spec": {"template": labels}})

    def holders(self, api: Api, namespace: str) -> dict[str, tuple[str, tuple[str, ...]]]:
        """See `PlayedBackend`."""
        return _held_by(_pods(api, namespace), self.grants(api, namespace))

    def grants(self, api: Api, namespace: str) -> dict[str, Grants]:
        """See `PlayedBackend`."""
        pods = [pod for pod in api.ask("GET", "/api/v1/pods")["items"] if "nodeName" in pod["spec"]]
        own = [pod for pod in pods if pod["metadata"]["namespace"] == namespace]
        return {_name(pod): self.rules.grants_of(pod, pods) for pod in own}


@dataclass(frozen=True, slots=True, kw_only=True)
class HamiPlayed:
    """HAMi, by its own double, on namespaces that it admits pods of; EffectiveGPU is HAMi under another name."""

    name: str = "hami"

    @contextmanager
    def running(
        self, plane: ControlPlane, programs: KubernetesPrograms, api: Api, folder: Path
    ) -> Iterator[HamiDouble]:
        """See `PlayedBackend`."""
        double = HamiDouble(plane, programs, api, folder, looks_at_all_nodes=True)
        double.start()
        try:
            yield double
        finally:
            double.stop()

    def make_node(self, api: Api, name: str, cards: Sequence[PlayedCard]) -> None:
        """See `PlayedBackend`."""
        hami_node(api, name, [_HamiCard(shown=one, index=number) for number, one in enumerate(cards)])

    def deploy(
        self, api: Api, namespace: str, name: str, replicas: int, kind: str = "Deployment", *, is_low: bool = False
    ) -> None:
        """See `PlayedBackend`."""
        api.patch(f"/api/v1/namespaces/{namespace}", {"metadata": {"labels": {NAMESPACE_LABEL: "on"}}})
        limits = {COUNT: "1", **({PRIORITY: "1"} if is_low else {})}
        deployment(
            api, namespace, name, replicas=replicas, container=CONTAINER, kind=kind, limits=limits,
            pod_spec={"nodeSelector": {FLEET: namespace}},
        )  # fmt: skip

    def holders(self, api: Api, namespace: str) -> dict[str, tuple[str, tuple[str, ...]]]:
        """See `PlayedBackend`."""
        return _held_by(_pods(api, namespace), self.grants(api, namespace))

    def grants(self, api: Api, namespace: str) -> dict[str, Grants]:
        """See `PlayedBackend`."""
        return {_name(pod): _hami_grants(pod) for pod in _pods(api, namespace)}


@dataclass(frozen=True, slots=True)
class PluginPlayed:
    """NVIDIA's device plugin and mig-manager under the control plane's own scheduler."""

    name: str

    @contextmanager
    def running(self, plane: ControlPlane, programs: KubernetesPrograms, api: Api, folder: Path) -> Iterator[None]:
        """See `PlayedBackend`."""
        del plane, programs, folder
        with NvidiaPlugins(api):
            yield

    def make_node(self, api: Api, name: str, cards: Sequence[PlayedCard]) -> None:
        """See `PlayedBackend`."""
        _make_node(api, name, *plugin_node(cards, name))

    def deploy(
        self, api: Api, namespace: str, name: str, replicas: int, kind: str = "Deployment", *, is_low: bool = False
    ) -> None:
        """See `PlayedBackend`."""
        del is_low
        deployment(
            api, namespace, name, replicas=replicas, container=CONTAINER, kind=kind, limits={CARD: "1"},
            pod_spec={"nodeSelector": {FLEET: namespace}},
        )  # fmt: skip

    def holders(self, api: Api, namespace: str) -> dict[str, tuple[str, tuple[str, ...]]]:
        """See `PlayedBackend`."""
        return _held_by(_pods(api, namespace), self.grants(api, namespace))

    def grants(self, api: Api, namespace: str) -> dict[str, Grants]:
        """See `PlayedBackend`."""
        until(lambda: not any(map(is_waiting, _pods(api, namespace))), "kubelets give every pod its device")
        return {_name(pod): plugin_grants(pod) for pod in _pods(api, namespace)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimsPlayed:
    """NVIDIA's DRA driver, by what it publishes; the control plane's own scheduler allocates claims.

    Attributes:
        is_counted: its gate ConsumableShares is on, with the policy `memory`.
        is_cut: its gate DynamicMIG is on, and every card is an A100 of 80 GB whose instances it publishes beside it.
    """

    name: str = "dra_shared"
    is_counted: bool = False
    is_cut: bool = False

    @contextmanager
    def running(self, plane: ControlPlane, programs: KubernetesPrograms, api: Api, folder: Path) -> Iterator[None]:
        """See `PlayedBackend`."""
        del plane, programs, folder
        types = ("gpu", "mig") if self.is_cut else ("gpu",)
        for one in types:
            kinds = f'device.driver == "gpu.nvidia.com" && {_ATTRIBUTE.format("type")} == "{one}"'
            spec = {"selectors": [{"cel": {"expression": kinds}}]}
            api.create(f"{_RESOURCES}/deviceclasses", {"metadata": {"name": f"{one}.nvidia.com"}, "spec": spec})
        try:
            yield
        finally:
            for one in types:
                api.delete(f"{_RESOURCES}/deviceclasses/{one}.nvidia.com")  # others write one of the same name

    def make_node(self, api: Api, name: str, cards: Sequence[PlayedCard]) -> None:
        """See `PlayedBackend`."""
        _make_node(api, name, {}, {})
        devices = [
            {
                "name": f"gpu-{number}", "allowMultipleAllocations": self.is_counted,
                "capacity": {"memory": {"value": f"{one.mib}Mi", **(_counted(one) if self.is_counted else {})}},
                "attributes": {
                    "type": {"string": "gpu"}, "uuid": {"string": one.card}, "productName": {"string": one.model},
                },
            }
            for number, one in enumerate(cards)
        ]  # fmt: skip
        slices: list[Manifest] = [{"devices": devices}]
        if self.is_cut:
            slices = [
                {"sharedCounters": [{"name": f"{one['name']}-counter-set", "counters": _A100} for one in devices]}
            ]
            slices += [{"devices": _instances(one)} for one in devices]
        pool = {"name": name, "generation": 1, "resourceSliceCount": len(slices)}
        for number, content in enumerate(slices):
            spec = {"driver": "gpu.nvidia.com", "nodeName": name, "pool": pool, **content}
            api.create(f"{_RESOURCES}/resourceslices", {"metadata": {"name": f"{name}-{number}"}, "spec": spec})

    def deploy(
        self, api: Api, namespace: str, name: str, replicas: int, kind: str = "Deployment", *, is_low: bool = False
    ) -> None:
        """See `PlayedBackend`."""
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}
        spec = {"spec": {"devices": {"requests": [request]}}}
        templates = f"{_RESOURCES}/namespaces/{namespace}/resourceclaimtemplates"
        api.create(templates, {"metadata": {"name": "one-card"}, "spec": spec})
        container = {"name": CONTAINER, "image": "registry/none:1", "resources": {"claims": [{"name": "gpu"}]}}
        claims = [{"name": "gpu", "resourceClaimTemplateName": "one-card"}]
        pod_spec = {"resourceClaims": claims, "containers": [container], "nodeSelector": {FLEET: namespace}}
        labels = _BATCH if is_low else {}
        deployment(api, namespace, name, replicas=replicas, kind=kind, pod_spec=pod_spec, pod_labels=labels)

    def holders(self, api: Api, namespace: str) -> dict[str, tuple[str, tuple[str, ...]]]:
        """See `PlayedBackend`."""
        return _held_by(_pods(api, namespace), self.grants(api, namespace))

    def grants(self, api: Api, namespace: str) -> dict[str, Grants]:
        """See `PlayedBackend`; pods of one claim hold all of its card."""
        published = {
            (one["spec"]["pool"]["name"], device["name"]): device
            for one in api.ask("GET", f"{_RESOURCES}/resourceslices")["items"]
            for device in one["spec"].get("devices", ())
        }
        found: dict[str, Grants] = {}
        for claim in api.ask("GET", f"{_RESOURCES}/namespaces/{namespace}/resourceclaims")["items"]:
            status, held = claim.get("status", {}), {}
            for result in status.get("allocation", {}).get("devices", {}).get("results", ()):
                device = published[result["pool"], result["device"]]
                memory = result.get("consumedCapacity", {}).get("memory", device["capacity"]["memory"]["value"])
                said = {key: value.get("string") for key, value in device["attributes"].items()}
                held[said.get("parentUUID") or said["uuid"]] = Granted(_mib(memory), 0, said.get("profile"))
            found |= {one["name"]: held for one in status.get("reservedFor", ())}
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _HamiCard:
    shown: PlayedCard
    index: int
    slices_max: int = 10
    core_percent: int = 100
    numa: int = 0
    is_healthy: bool = True
    mode: str | None = "hami-core"

    @property
    def card(self) -> str:
        return self.shown.card

    @property
    def framebuffer_mib(self) -> int:
        return self.shown.mib

    @property
    def device_type(self) -> str:
        return f"NVIDIA-{self.shown.model}"


HAMI_PLAYED = HamiPlayed()
CUT_PLAYED = ClaimsPlayed(name="dra_mig", is_cut=True)


def played_backends() -> tuple[PlayedBackend, ...]:
    """Those that share a card of any model, each with a memory of its own."""
    return (
        HAMI_PLAYED,
        RulesPlayed(name="volcano", rules=VolcanoRules()),
        RulesPlayed(name="kai", rules=KaiRules()),
        RulesPlayed(name="kai_nvfractions", rules=KaiRules(caps=True)),
        RulesPlayed(name="vgpu_manager", rules=VgpuManagerRules()),
        ClaimsPlayed(),
    )


_PROFILES = (
    ("1g.10gb", 14, 9_728, 1, range(7)), ("1g.20gb", 14, 19_968, 2, range(0, 8, 2)),
    ("2g.20gb", 28, 19_968, 2, range(0, 6, 2)), ("3g.40gb", 42, 40_192, 4, (0, 4)), ("4g.40gb", 56, 40_192, 4, (0,)),
    ("7g.80gb", 98, 80_896, 8, (0,)),
)  # fmt: skip
"""Of an A100 of 80 GB: name, SMs, MiB, slices of memory and where they may begin (NVIDIA's MIG guide)."""


def _counters(sms: int, mib: int, slices: Iterable[int]) -> Manifest:
    found = {"multiprocessors": {"value": str(sms)}, "memory": {"value": f"{mib}Mi"}}
    return {**found, **{f"memory-slice-{number}": {"value": "1"} for number in slices}}


_A100 = _counters(98, 81_920, range(8))


def _instances(card: Manifest) -> list[Manifest]:
    """A card and all its possible instances, which consume what they would take of it.

    Source: kubernetes-sigs/dra-driver-nvidia-gpu:cmd/gpu-kubelet-plugin/partitions.go, mig.go.
    """
    counted, uuid = f"{card['name']}-counter-set", card["attributes"]["uuid"]
    found = [{**card, "consumesCounters": [{"counterSet": counted, "counters": _A100}]}]
    for profile, sms, mib, size, starts in _PROFILES:
        attributes = {
            "type": {"string": "mig"}, "parentUUID": uuid, "profile": {"string": profile},
            "productName": card["attributes"]["productName"],
        }  # fmt: skip
        for start in starts:
            uses = [{"counterSet": counted, "counters": _counters(sms, mib, range(start, start + size))}]
            named = f"{card['name']}-mig-{profile.replace('.', '')}-{start}"
            capacity = {"memory": {"value": f"{mib}Mi"}, "multiprocessors": {"value": str(sms)}}
            made = {"name": named, "attributes": attributes, "capacity": capacity, "consumesCounters": uses}
            found.append(made)
    return found


_ATTRIBUTE = 'device.attributes["gpu.nvidia.com"].{}'


def _make_node(api: Api, name: str, metadata: Manifest, offered: Mapping[str, str]) -> None:
    annotations = {KWOK_ANNOTATION: "fake", **metadata.get("annotations", {})}
    made = {**metadata, "name": name, "annotations": annotations}
    api.create("/api/v1/nodes", {"metadata": made})
    resources = {**_MACHINE, **offered}
    api.patch(f"/api/v1/nodes/{name}/status", {"status": {"capacity": resources, "allocatable": resources}})


def _pods(api: Api, namespace: str) -> list[Manifest]:
    return [pod for pod in api.ask("GET", f"/api/v1/namespaces/{namespace}/pods")["items"] if "nodeName" in pod["spec"]]


def _hami_grants(pod: Manifest) -> Grants:
    text = pod["metadata"].get("annotations", {}).get(ALLOCATED, "")
    return {card: Granted(mib, cores) for card, (mib, cores, _) in grants_of(text).items()}


def _held_by(pods: Sequence[Manifest], grants: Mapping[str, Grants]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Of pods that nobody has asked to go: a pod carries the name of its workload as label `app`."""
    return {
        _name(pod): (
            f"{pod['metadata']['namespace']}/{_kind(pod)}/{pod['metadata']['labels']['app']}",
            tuple(sorted(grants[_name(pod)])),
        )
        for pod in pods
        if grants.get(_name(pod)) and "deletionTimestamp" not in pod["metadata"]
    }


def _counted(card: PlayedCard) -> Manifest:
    """How the driver lets claims divide a card: in steps of 1 MiB, and all of it where a claim says nothing."""
    return {"requestPolicy": {"default": f"{card.mib}Mi", "validRange": {"min": "1Mi", "step": "1Mi"}}}


def _mib(quantity: str) -> int:
    unit = {"Mi": 1, "Gi": 1024}.get(quantity[-2:])
    return int(quantity) >> 20 if unit is None else int(quantity[:-2]) * unit


def _kind(pod: Manifest) -> str:
    owner = str(pod["metadata"]["ownerReferences"][0]["kind"])
    return "Deployment" if owner == "ReplicaSet" else owner


def _name(pod: Manifest) -> str:
    return str(pod["metadata"]["name"])
