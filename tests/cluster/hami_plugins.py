"""HAMi's device plugin on the nodes of a real control plane: registers the cards as its node configuration says.

A pod of its DaemonSet reads the ConfigMap when it starts, and never again; so a changed entry counts from the next
start on. Sources: Project-HAMi/HAMi:pkg/device/nvidia/device.go (DevicePluginConfigs, NodeDefaultConfig),
pkg/device-plugin/nvidiadevice/nvinternal/plugin/register.go, charts/hami/templates/device-plugin.
"""

from __future__ import annotations

import json
import threading

from tests.cluster.api import Api, Manifest
from tests.cluster.hami_rules import COUNT, REGISTER
from tests.cluster.workloads import is_ready

NAMESPACE, NAME = "kube-system", "hami-device-plugin"
VERSION = "v2.10.0"
EFFECTIVE_GPU = ("egpu-device-plugin", "sf/egpu-device-plugin:1")
"""Name and image; both are the installation's choice, for nothing of it is published."""

_LOOK_SECONDS = 0.2


class HamiPlugins:
    """The plugin's DaemonSet with its configuration, and what its pods do on their nodes.

    Args:
        api: an administrator's hand.
        name: of the ConfigMap and of the DaemonSet.
        image: of its container.
    """

    def __init__(self, api: Api, name: str = NAME, image: str = f"projecthami/hami:{VERSION}") -> None:
        self._api = api
        self._name, self._image = name, image
        self._seen: dict[str, str] = {}
        self._cards: dict[str, list[Manifest]] = {}
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)

    def __enter__(self) -> HamiPlugins:
        """Install it."""
        data = {"config.json": json.dumps({"nodeconfig": []})}
        where = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
        self._api.create(where, {"metadata": {"name": self._name, "namespace": NAMESPACE}, "data": data})
        labels = {"app": self._name}
        pod = {
            "containers": [{"name": "device-plugin", "image": self._image}],
            "tolerations": [{"operator": "Exists"}],
        }
        spec = {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        }
        made = {"metadata": {"name": self._name}, "spec": spec}
        self._api.create(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets", made)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End its pods' work; what it registered stays."""
        self._end.set()
        self._thread.join(30)

    def _play(self) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app%3D{self._name}"
        while not self._end.wait(_LOOK_SECONDS):
            for pod in self._api.ask("GET", path)["items"]:
                node, uid = pod["spec"].get("nodeName"), pod["metadata"]["uid"]
                if node and self._seen.get(node) != uid and is_ready(pod):
                    self._register(node)
                    self._seen[node] = uid

    def _register(self, node: str) -> None:
        config = self._api.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps/{self._name}")["data"]["config.json"]
        entry: Manifest = next((one for one in json.loads(config)["nodeconfig"] if one["name"] == node), {})
        annotations = self._api.ask("GET", f"/api/v1/nodes/{node}")["metadata"]["annotations"]
        cards = self._cards.setdefault(node, json.loads(annotations[REGISTER]))
        shown = [
            {
                **card,
                "count": entry.get("devicesplitcount", card["count"]),
                "devmem": int(card["devmem"] * entry.get("devicememoryscaling", 1)),
                "mode": entry.get("operatingmode", card["mode"]),
            }
            for card in cards
        ]
        text = json.dumps(shown, separators=(",", ":"))
        self._api.patch(f"/api/v1/nodes/{node}", {"metadata": {"annotations": {REGISTER: text}}})
        offered = {COUNT: str(sum(card["count"] for card in shown))}
        status = {"capacity": offered, "allocatable": offered}
        self._api.patch(f"/api/v1/nodes/{node}/status", {"status": status})
