"""NVIDIA's device plugin, feature discovery and mig-manager, and the kubelet, on nodes that kwok plays.

Kubernetes' own scheduler places the pods; it counts what a node offers. Which configuration counts for a node is said
by a label, and a changed one counts from a moment later on. Of whole cards a pod gets the first free one, of replicas
and instances one of the card that is used least; a real node alone knows which, here annotations keep it. mig-manager
does not look whether cards are empty, where the real one fails; several devices a container are left out.

Sources: NVIDIA/k8s-device-plugin:README.md, api/config/v1/sharing.go, cmd/config-manager/main.go,
internal/rm/allocate.go (distributedAlloc), docs/gpu-feature-discovery/README.md;
NVIDIA/mig-parted:api/spec/v1/spec.go, deployments/container/reconfigure-mig.sh.
"""

from __future__ import annotations

import json
import threading
import urllib.error
from collections import Counter
from collections.abc import Mapping, Sequence

import yaml

from tests.cluster.api import Api, Manifest
from tests.cluster.backend_doubles import CARD_CORES, Granted, Grants, PlayedCard

CARD, REPLICA, INSTANCE = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-"
_CONFIG, _MIG_CONFIG, _MIG_STATE = (
    "nvidia.com/device-plugin.config",
    "nvidia.com/mig.config",
    "nvidia.com/mig.config.state",
)
_NAMESPACE, _PLUGIN_CONFIGS, _MIG_CONFIGS = "gpu-operator", "device-plugin-config", "custom-mig-config"
_CARDS, _HELD = "kwok.gputide.io/cards", "kwok.gputide.io/devices"
_UNCUT = "all-disabled"
_MIG_SLICES, _DRIVER_MIB = 7, 256
_LOOK_SECONDS = 0.2

Device = tuple[str, str, int, int, str | None]
"""Resource, card, and what a pod that gets it holds: MiB, percent of cores, profile of MIG."""


def plugin_node(cards: Sequence[PlayedCard], name: str) -> tuple[Manifest, Mapping[str, str]]:
    """Metadata as feature discovery and mig-manager write it, and what is offered."""
    labels = {
        "kubernetes.io/hostname": name, "nvidia.com/gpu.count": str(len(cards)),
        "nvidia.com/gpu.memory": str(cards[0].mib), "nvidia.com/gpu.product": cards[0].model.replace(" ", "-"),
        "nvidia.com/mig.strategy": "mixed", _MIG_CONFIG: _UNCUT, _MIG_STATE: "success",
    }  # fmt: skip
    annotations = {_CARDS: json.dumps([(one.card, one.mib) for one in cards])}
    return {"labels": labels, "annotations": annotations}, {CARD: str(len(cards))}


def is_waiting(pod: Manifest) -> bool:
    """Whether the kubelet of a bound pod has still to give it a device."""
    limits = [one.get("resources", {}).get("limits", {}) for one in pod["spec"]["containers"]]
    asks = any(name.startswith((CARD, INSTANCE)) for one in limits for name in one)
    return asks and _HELD not in pod["metadata"].get("annotations", {})


def grants_of(pod: Manifest) -> Grants:
    """What a bound pod holds; of a replica an equal part, as exporters count it."""
    text = pod["metadata"].get("annotations", {}).get(_HELD)
    if text is None:
        return {}
    _, card, mib, cores, profile = json.loads(text)
    return {card: Granted(mib, cores, profile)}


class NvidiaPlugins:
    """NVIDIA's programs on all nodes, and their kubelets.

    Args:
        api: an administrator's hand.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)

    def __enter__(self) -> NvidiaPlugins:
        """Install them."""
        self._api.create("/api/v1/namespaces", {"metadata": {"name": _NAMESPACE}})
        uncut = {_UNCUT: [{"devices": "all", "mig-enabled": False}]}
        configs = {
            _PLUGIN_CONFIGS: {"default": "version: v1\n"},
            _MIG_CONFIGS: {"config.yaml": yaml.safe_dump({"version": "v1", "mig-configs": uncut})},
        }
        for name, data in configs.items():
            made = {"metadata": {"name": name}, "data": data}
            self._api.create(f"/api/v1/namespaces/{_NAMESPACE}/configmaps", made)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End their work; what nodes offer stays."""
        self._end.set()
        self._thread.join(30)

    def _play(self) -> None:
        while not self._end.wait(_LOOK_SECONDS):
            try:
                self._look()
            except urllib.error.HTTPError as refused:
                # Somebody deleted or changed what it wrote to; the next look sees it.
                if refused.code not in (404, 409):
                    raise

    def _look(self) -> None:
        configs = self._api.ask("GET", f"/api/v1/namespaces/{_NAMESPACE}/configmaps")["items"]
        configured = {one["metadata"]["name"]: one.get("data", {}) for one in configs}
        pods = [pod for pod in self._api.ask("GET", "/api/v1/pods")["items"] if "nodeName" in pod["spec"]]
        for node in self._api.ask("GET", "/api/v1/nodes")["items"]:
            if _CARDS in node["metadata"]["annotations"]:
                try:
                    devices = _devices(node, configured)
                except KeyError:
                    # Its label names no configuration, or none any more: what it had counts on.
                    continue
                self._offer(node, devices)
                self._hand_out(devices, [pod for pod in pods if pod["spec"]["nodeName"] == node["metadata"]["name"]])

    def _offer(self, node: Manifest, devices: Sequence[Device]) -> None:
        shown = node["status"].get("allocatable", {})
        counts = Counter(device[0] for device in devices)
        offered = {name: str(counts[name]) for name in {*shown, *counts} if name.startswith((CARD, INSTANCE))}
        if any(shown.get(name) != count for name, count in offered.items()):
            path = f"/api/v1/nodes/{node['metadata']['name']}/status"
            self._api.patch(path, {"status": {"capacity": offered, "allocatable": offered}})

    def _hand_out(self, devices: Sequence[Device], pods: Sequence[Manifest]) -> None:
        held = Counter(pod["metadata"]["annotations"][_HELD] for pod in pods if grants_of(pod))
        for pod in sorted(pods, key=lambda one: (one["metadata"]["creationTimestamp"], one["metadata"]["name"])):
            asked = {name for one in pod["spec"]["containers"] for name in one.get("resources", {}).get("limits", {})}
            like = Counter(json.dumps(device) for device in devices if device[0] in asked)
            if is_waiting(pod) and like:
                given = min(like, key=lambda text: held[text] / like[text])
                held[given] += 1
                path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
                self._api.patch(path, {"metadata": {"annotations": {_HELD: given}}})


def _devices(node: Manifest, configured: Mapping[str, Mapping[str, str]]) -> list[Device]:
    """All that a node offers, by what its configurations say of each of its cards."""
    labels = node["metadata"]["labels"]
    layouts = yaml.safe_load(configured[_MIG_CONFIGS]["config.yaml"])["mig-configs"][labels[_MIG_CONFIG]]
    cut = {number: entry["mig-devices"] for entry in layouts if entry["mig-enabled"] for number in entry["devices"]}
    text = configured[_PLUGIN_CONFIGS][labels[_CONFIG]] if _CONFIG in labels else "{}"
    sharing = yaml.safe_load(text).get("sharing", {})
    way = sharing.get("timeSlicing") or sharing.get("mps")
    parts = 1
    if way is not None:
        (entry,) = way["resources"]
        assert way["renameByDefault"]
        parts = int(entry["replicas"])
    found: list[Device] = []
    for number, (card, mib) in enumerate(json.loads(node["metadata"]["annotations"][_CARDS])):
        if number in cut:
            found += [_instance(profile, card, mib) for profile, count in cut[number].items() for _ in range(count)]
        else:
            resource = CARD if parts == 1 else REPLICA
            found += [(resource, card, mib // parts, CARD_CORES // parts, None)] * parts
    return found


def _instance(profile: str, card: str, card_mib: int) -> Device:
    """An instance has so many eighths of the card's framebuffer as its profile says, less what the driver keeps."""
    slices, gigabytes = profile.removesuffix("gb").split("g.")
    mib = card_mib // 8 * round(int(gigabytes) * 8 * 1024 / card_mib) - _DRIVER_MIB
    return (f"{INSTANCE}{profile}", card, mib, int(slices) * CARD_CORES // _MIG_SLICES, profile)
