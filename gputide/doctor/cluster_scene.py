"""A cluster as several checks read it: asked once, by the enforcer's own client. Called by the checks of the area.

Which GPU-sharing backends the nodes of a cluster run, against the one that is chosen: a part of `gputide doctor`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from enforcer.backends.detect import ON_NVIDIAS_PLUGIN, DetectedBackend, detect_backends
from enforcer.kubernetes.cluster import KUBECONFIG_SETTING, RULES_FILE
from enforcer.kubernetes.reader import KubernetesReader
from enforcer.manifest import Manifest
from enforcer.ownership import MAKERS, parents_of, workload_of_pod
from fleet.sentences import Sentence, listed, sentence
from fleet.settings.settings import Settings
from wire.kubernetes.access import find_access
from wire.kubernetes.read import KubernetesApi
from wire.kubernetes.refusals import Deed
from wire.kubernetes.request_rate import RequestRate

_REQUESTS_PER_SECOND, _REQUESTS_BURST, _PARALLEL = 50.0, 200, 4
_CARD_WORDS = ("gpu", "vgpu", "/mig-")


class ClusterScene:
    """One cluster, and what several checks read of it, once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @cached_property
    def client(self) -> KubernetesApi:
        """Asks the API server.

        Raises:
            Misconfigured: there is no way in.
        """
        enforcer = self.settings.enforcer
        access = find_access(enforcer.kubeconfig, enforcer.kubeconfig_context, setting=KUBECONFIG_SETTING)
        rate = RequestRate(per_second=_REQUESTS_PER_SECOND, burst=_REQUESTS_BURST)
        return KubernetesApi(access, "gputide-doctor", rules_file=RULES_FILE, rate=rate, parallel_max=_PARALLEL)

    @cached_property
    def reader(self) -> KubernetesReader:
        """Reads objects of known kinds."""
        return KubernetesReader(self.client)

    @cached_property
    def groups(self) -> frozenset[str]:
        """API groups that are served."""
        told = self.get("/apis", "apigroups")
        return frozenset(str(group.get("name", "")) for group in (told or {}).get("groups", []))

    @cached_property
    def nodes(self) -> Sequence[Manifest]:
        """All nodes."""
        return self.reader.list_objects("Node")

    @cached_property
    def pods(self) -> Sequence[Manifest]:
        """All pods."""
        return self.reader.list_objects("Pod")

    @cached_property
    def card_pods(self) -> tuple[Manifest, ...]:
        """Pods that ask for cards and have not ended."""
        return tuple(
            pod
            for pod in self.pods
            if pod.get("status", {}).get("phase") not in ("Succeeded", "Failed") and asks_for_cards(pod)
        )

    @cached_property
    def workloads(self) -> Mapping[str, tuple[Manifest, ...]]:
        """Pods with cards by the workload that they belong to."""
        makers = [one for kind in MAKERS[:4] for one in self.reader.list_objects(kind)]
        parents = parents_of(makers)
        found: dict[str, tuple[Manifest, ...]] = {}
        for pod in self.card_pods:
            workload = str(workload_of_pod(pod, parents))
            found[workload] = (*found.get(workload, ()), pod)
        return found

    @cached_property
    def backends(self) -> tuple[DetectedBackend, ...]:
        """Which backend shares the cards of each node."""
        return detect_backends(self.nodes, self.pods, self.reader.list_objects("ResourceSlice"))

    def get(self, path: str, resource: str, *, verb: str = "get") -> dict[str, Any] | None:
        """What stands at a path; None where nothing does.

        Args:
            resource: what it is, in the words of roles.

        Raises:
            Misconfigured: a right is missing.
            Unavailable: the cluster can't be reached.
        """
        return self.client.get(Deed(verb=verb, resource=resource), path)


def asks_for_cards(pod: Manifest) -> bool:
    """Whether a pod asks for cards or slices of some, by a resource or a claim."""
    spec = pod.get("spec", {})
    if spec.get("resourceClaims"):
        return True
    return any(
        any(word in str(name) for word in _CARD_WORDS)
        for container in spec.get("containers", [])
        for name in (container.get("resources", {}).get("limits") or {})
    )


def namespaced(place: str) -> tuple[str, str]:
    """Namespace and name of a setting such as `kube-system/hami-device-plugin`."""
    namespace, _, name = place.partition("/")
    return namespace, name


def nodes_run(seen: Sequence[DetectedBackend]) -> Sentence | str:
    """Which backends nodes run, and how many each."""
    counted = sorted(Counter(entry.backend for entry in seen).items())
    told = [sentence("doctor.found.on_nodes", backend=name, nodes=count) for name, count in counted]
    return listed(told, len(told)) if told else sentence("doctor.found.no_node")


def runs_elsewhere(seen: Sequence[DetectedBackend], chosen: str) -> bool:
    """Whether nodes run backends, and none of them the chosen one.

    EffectiveGPU has HAMi's signs, and all kinds of claims have the same slices: none can be distinguished from the
    outside.
    """
    sign = {"effectivegpu": "hami", "dra_mig": "dra_shared", "dra_consumable": "dra_shared"}.get(chosen, chosen)
    # Cards that nobody shares yet are where time-slicing, MPS, MIG and KAI begin.
    starts = {sign, "whole_cards"} if chosen in _ON_WHOLE_CARDS else {sign}
    return bool(seen) and not starts & {entry.backend for entry in seen}


_ON_WHOLE_CARDS = ON_NVIDIAS_PLUGIN | {"nvidia_time_slicing", "nvidia_mps", "mig", "whole_cards"}
