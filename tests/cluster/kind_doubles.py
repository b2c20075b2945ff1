"""Custom kinds of workloads on a real API server: their definitions, small, and controllers that do what the real do.

What stands in an object is checked by the server against the types of the fields that matter; what becomes of it is
done by a thread that looks at the objects again and again, and by Kubernetes' own controllers where the real kind uses
them: an InferenceService is a Deployment, a LeaderWorkerSet and a Notebook are StatefulSets, a Rollout has ReplicaSets.

Sources of what each does: argoproj/argo-rollouts:rollout/canary.go, kserve/kserve:pkg/controller/v1beta1,
kubernetes-sigs/lws:pkg/controllers, ray-project/kuberay:ray-operator/controllers/ray,
kubeflow/trainer:pkg/controller.v1 (release 1.9), kubeflow/kubeflow:components/notebook-controller,
volcano-sh/volcano:staging/src/volcano.sh/apis/pkg/apis/scheduling/v1beta1/types.go.
"""

from __future__ import annotations

import hashlib
import json
import threading
import urllib.error
from collections.abc import Callable, Mapping
from typing import Any

from enforcer.kinds.kserve import MODEL_CONTAINER
from enforcer.kubernetes.kinds import API_KINDS
from tests.cluster.api import Api, Manifest
from tests.cluster.workloads import is_ready

INTEGER, BOOLEAN = {"type": "integer"}, {"type": "boolean"}
NUMBER_OR_PERCENT = {"x-kubernetes-int-or-string": True}
ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def typed(**fields: Any) -> Manifest:
    """A schema of an object with these fields and others beside them."""
    return {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": fields}


def listed(key: str, **fields: Any) -> Manifest:
    """A schema of a list of objects, known by a key."""
    items = typed(**{key: {"type": "string"}}, **fields) | {"required": [key]}
    return {"type": "array", "items": items, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


WORD, AMOUNTS = {"type": "string"}, {"type": "object", "additionalProperties": NUMBER_OR_PERCENT}
GRANTS = typed(limits=AMOUNTS)
TEMPLATE = typed(
    metadata=typed(annotations={"type": "object", "additionalProperties": {"type": "string"}}),
    spec=typed(containers=listed("name", resources=GRANTS)),
)
BOUNDS = {"maxSurge": NUMBER_OR_PERCENT, "maxUnavailable": NUMBER_OR_PERCENT}
RAY = typed(
    headGroupSpec=typed(template=TEMPLATE),
    suspend=BOOLEAN,
    workerGroupSpecs=listed(
        "groupName", replicas=INTEGER, minReplicas=INTEGER, maxReplicas=INTEGER, template=TEMPLATE,
        scaleStrategy=typed(workersToDelete={"type": "array", "items": {"type": "string"}}),
    ),
)  # fmt: skip
TRAINING = {
    "PyTorchJob": "pytorchReplicaSpecs",
    "TFJob": "tfReplicaSpecs",
    "MPIJob": "mpiReplicaSpecs",
    "XGBoostJob": "xgbReplicaSpecs",
}
SPECS: Mapping[str, Manifest] = {
    "Rollout": typed(
        replicas=INTEGER, minReadySeconds=INTEGER, progressDeadlineSeconds=INTEGER, paused=BOOLEAN, template=TEMPLATE,
        strategy=typed(canary=typed(**BOUNDS)),
    ),
    "InferenceService": typed(
        predictor=typed(
            minReplicas=INTEGER, maxReplicas=INTEGER, model=typed(resources=GRANTS),
            annotations={"type": "object", "additionalProperties": {"type": "string"}},
            deploymentStrategy=typed(rollingUpdate=typed(**BOUNDS)),
        )
    ),
    "LeaderWorkerSet": typed(
        replicas=INTEGER, leaderWorkerTemplate=typed(size=INTEGER, workerTemplate=TEMPLATE),
        rolloutStrategy=typed(rollingUpdateConfiguration=typed(partition=INTEGER, **BOUNDS)),
    ),
    "RayCluster": RAY,
    "RayService": typed(rayClusterConfig=RAY),
    "Notebook": typed(template=TEMPLATE),
    "PodGroup": typed(minMember=INTEGER, queue=WORD, minResources=AMOUNTS),
    "Queue": typed(weight=INTEGER, capability=AMOUNTS, deserved=AMOUNTS, parent=WORD),
    **{
        kind: typed(
            runPolicy=typed(suspend=BOOLEAN),
            **{field: {"type": "object", "additionalProperties": typed(replicas=INTEGER, template=TEMPLATE)}},
        )
        for kind, field in TRAINING.items()
    },
}  # fmt: skip
_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def define(api: Api, kind: str) -> None:
    """Let the server serve a kind."""
    served = API_KINDS[kind]
    names = {"kind": kind, "plural": served.plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    schema = {"type": "object", "properties": {"spec": SPECS[kind], "status": ANY}}
    version = {
        "name": served.versions[0], "served": True, "storage": True, "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }  # fmt: skip
    spec = {
        "group": served.group,
        "scope": "Namespaced" if served.is_namespaced else "Cluster",
        "names": names,
        "versions": [version],
    }
    api.create(
        _DEFINITIONS,
        {
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{served.plural}.{served.group}"}, "spec": spec,
        },
    )  # fmt: skip


def path_of(kind: str, namespace: str, name: str = "") -> str:
    """Path of a kind's objects in a namespace, or of one."""
    served = API_KINDS[kind]
    return served.path(served.versions[0], namespace) + (f"/{name}" if name else "")


class KindController:
    """Does what the controllers of the kinds do, in one namespace, until it is stopped.

    Args:
        api: an administrator's hand.
        namespace: where.
        kinds: kinds that it looks after; defined already.
    """

    def __init__(self, api: Api, namespace: str, kinds: tuple[str, ...]) -> None:
        self._api = api
        self._namespace = namespace
        self._kinds = kinds
        self._made = 0
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._play, daemon=True)
        self.faults: list[str] = []

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End."""
        self._end.set()
        self._thread.join(30)

    def _play(self) -> None:
        hands: dict[str, Callable[[Manifest], Manifest]] = {
            "Rollout": self._rollout,
            "InferenceService": self._inference_service,
            "LeaderWorkerSet": self._groups,
            "RayCluster": self._ray_cluster,
            "RayService": self._ray_service,
            "Notebook": self._notebook,
            **dict.fromkeys(TRAINING, self._training_job),
        }
        while not self._end.wait(0.15):
            for kind in hands.keys() & self._kinds:
                for owner in self._list(path_of(kind, self._namespace)):
                    owner |= {"kind": kind, "apiVersion": _api_version(kind)}
                    try:
                        self._tell(owner, hands[kind](owner))
                    except urllib.error.HTTPError as refused:
                        # Somebody else was faster: looked at again in a moment.
                        if refused.code not in (404, 409):
                            self.faults.append(f"{kind}: {refused.code} {refused.read()[:300]!r}")

    def _tell(self, owner: Manifest, status: Manifest) -> None:
        if owner.get("status") != status:
            path = path_of(owner["kind"], self._namespace, owner["metadata"]["name"])
            self._api.patch(f"{path}/status", {"status": status})

    # --- kinds ---

    def _rollout(self, owner: Manifest) -> Manifest:
        spec, label = owner["spec"], "rollouts-pod-template-hash"
        wanted, hashed = spec.get("replicas", 1), _hash(spec["template"])
        canary = spec["strategy"].get("canary", {})
        surge, down = (_share(canary.get(key, "25%"), wanted) for key in ("maxSurge", "maxUnavailable"))
        if not surge and not down:
            down = 1
        sets = self._owned("/apis/apps/v1", "replicasets", owner)
        new = next((one for one in sets if one["metadata"]["labels"][label] == hashed), None)
        old = [one for one in sets if one is not new and one["spec"]["replicas"]]
        if new is None:
            labels = {**spec["template"]["metadata"].get("labels", {}), label: hashed}
            template = {**spec["template"], "metadata": {**spec["template"]["metadata"], "labels": labels}}
            made = {"selector": {"matchLabels": labels}, "template": template, "replicas": 0}
            made["minReadySeconds"] = spec.get("minReadySeconds", 0)
            new = self._make(owner, "apps/v1", "ReplicaSet", f"{owner['metadata']['name']}-{hashed}", made, labels)
        if new["spec"].get("minReadySeconds", 0) != spec.get("minReadySeconds", 0):
            self._set(new, {"minReadySeconds": spec.get("minReadySeconds", 0)})
        counts = [one["spec"]["replicas"] for one in (new, *old)]
        if (more := min(wanted - counts[0], wanted + surge - sum(counts))) > 0:
            self._set(new, {"replicas": counts[0] + more})
        elif old:
            available = sum(one.get("status", {}).get("availableReplicas", 0) for one in (new, *old))
            spare = min(available - (wanted - down), old[0]["spec"]["replicas"])
            if spare > 0:
                self._set(old[0], {"replicas": old[0]["spec"]["replicas"] - spare})
        elif counts[0] > wanted:
            self._set(new, {"replicas": wanted})
        there = [one.get("status", {}).get("replicas", 0) for one in (new, *old)]
        is_over = there[0] == sum(there) == wanted
        return {
            "observedGeneration": str(owner["metadata"]["generation"]), "replicas": sum(there),
            "updatedReplicas": there[0], "phase": "Healthy" if is_over else "Progressing",
        }  # fmt: skip

    def _inference_service(self, owner: Manifest) -> Manifest:
        predictor, name = owner["spec"]["predictor"], f"{owner['metadata']['name']}-predictor"
        labels = {"app": f"isvc.{name}", "component": "predictor"}
        annotations = predictor.get("annotations") or {}
        container = {**predictor["model"], "name": MODEL_CONTAINER, "image": "registry/none:1"}
        pod = {
            key: predictor[key]
            for key in ("tolerations", "terminationGracePeriodSeconds", "affinity", "nodeSelector")
            if key in predictor
        }
        pod["containers"] = [{key: value for key, value in container.items() if key != "modelFormat"}]
        spec = {
            "replicas": predictor.get("minReplicas", 1),
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": {**labels, **predictor.get("labels", {})}, "annotations": annotations},
                "spec": pod,
            },
            "strategy": predictor.get("deploymentStrategy")
            or {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
        }
        found = self._put(owner, "apps/v1", "Deployment", name, spec, labels)
        status = found.get("status", {})
        is_over = (
            status.get("observedGeneration", 0) >= found["metadata"]["generation"]
            and status.get("updatedReplicas") == status.get("replicas") == spec["replicas"]
        )
        ready = {"type": "PredictorReady", "status": "True" if is_over else "False"}
        return {"observedGeneration": owner["metadata"]["generation"], "conditions": [ready]}

    def _groups(self, owner: Manifest) -> Manifest:
        spec, name = owner["spec"], owner["metadata"]["name"]
        labels = {"leaderworkerset.sigs.k8s.io/name": name, "leaderworkerset.sigs.k8s.io/worker-index": "0"}
        rolling = spec.get("rolloutStrategy", {}).get("rollingUpdateConfiguration", {})
        made = _stateful(spec["leaderWorkerTemplate"]["workerTemplate"], labels, spec.get("replicas", 1))
        made["podManagementPolicy"] = "Parallel"
        made["updateStrategy"] = {"type": "RollingUpdate", "rollingUpdate": {"partition": rolling.get("partition", 0)}}
        found = self._put(owner, "apps/v1", "StatefulSet", name, made, labels)
        status = found.get("status", {})
        if status.get("observedGeneration", 0) < found["metadata"]["generation"]:
            told: Manifest = owner.get("status", {})
            return told
        return {
            "observedGeneration": owner["metadata"]["generation"], "replicas": status.get("replicas", 0),
            "updatedReplicas": status.get("updatedReplicas", 0), "readyReplicas": status.get("readyReplicas", 0),
        }  # fmt: skip

    def _notebook(self, owner: Manifest) -> Manifest:
        name = owner["metadata"]["name"]
        is_stopped = "kubeflow-resource-stopped" in owner["metadata"].get("annotations", {})
        made = _stateful(owner["spec"]["template"], {"notebook-name": name}, 0 if is_stopped else 1)
        self._put(owner, "apps/v1", "StatefulSet", name, made, {"notebook-name": name})
        return {}

    def _ray_cluster(self, owner: Manifest) -> Manifest:
        for group in owner["spec"]["workerGroupSpecs"]:
            there = self._pods_of(owner, "ray.io/group", group["groupName"])
            for _ in range(group["replicas"] - len(there)):
                self._made += 1
                name = f"{owner['metadata']['name']}-{group['groupName']}-{self._made:05d}"
                self._pod(owner, name, group["template"], {"ray.io/group": group["groupName"]})
        return {"observedGeneration": owner["metadata"]["generation"], "state": "ready"}

    def _ray_service(self, owner: Manifest) -> Manifest:
        held = owner["spec"]["rayClusterConfig"]
        name = f"{owner['metadata']['name']}-{_hash(held)[:5]}"
        clusters = self._owned("/apis/ray.io/v1", "rayclusters", owner)
        if all(one["metadata"]["name"] != name for one in clusters):
            labels = {
                "ray.io/originated-from-crd": "RayService",
                "ray.io/originated-from-cr-name": owner["metadata"]["name"],
            }
            self._make(owner, "ray.io/v1", "RayCluster", name, held, labels)
        wanted = sum(group["replicas"] for group in held["workerGroupSpecs"])
        ready = [
            pod
            for pod in self._list(f"/api/v1/namespaces/{self._namespace}/pods")
            if _owner(pod) == name and is_ready(pod)
        ]
        is_over = len(ready) >= wanted
        for one in clusters if is_over else ():
            if one["metadata"]["name"] != name:
                self._api.delete(path_of("RayCluster", self._namespace, one["metadata"]["name"]))
        others = [one for one in clusters if one["metadata"]["name"] != name]
        going = {"type": "UpgradeInProgress", "status": "True" if others or not is_over else "False"}
        return {"observedGeneration": owner["metadata"]["generation"], "conditions": [going]}

    def _training_job(self, owner: Manifest) -> Manifest:
        if owner["spec"].get("runPolicy", {}).get("suspend"):
            return {}
        for role, held in owner["spec"][TRAINING[owner["kind"]]].items():
            label = "training.kubeflow.org/replica-type"
            there = {pod["metadata"]["name"] for pod in self._pods_of(owner, label, role.lower(), with_leaving=True)}
            for number in range(held["replicas"]):
                name = f"{owner['metadata']['name']}-{role.lower()}-{number}"
                if name not in there:
                    self._pod(owner, name, held["template"], {label: role.lower()})
        return {"conditions": [{"type": "Running", "status": "True"}]}

    # --- objects ---

    def _list(self, path: str) -> list[Manifest]:
        found: list[Manifest] = self._api.ask("GET", path)["items"]
        return found

    def _owned(self, prefix: str, plural: str, owner: Manifest) -> list[Manifest]:
        found = self._list(f"{prefix}/namespaces/{self._namespace}/{plural}")
        return [one for one in found if _owner(one) == owner["metadata"]["name"]]

    def _pods_of(self, owner: Manifest, label: str, value: str, *, with_leaving: bool = False) -> list[Manifest]:
        return [
            pod
            for pod in self._owned("/api/v1", "pods", owner)
            if pod["metadata"]["labels"].get(label) == value
            and (with_leaving or "deletionTimestamp" not in pod["metadata"])
        ]

    def _pod(self, owner: Manifest, name: str, template: Manifest, labels: Mapping[str, str]) -> None:
        metadata = template.get("metadata", {})
        labels = {**metadata.get("labels", {}), **owner["metadata"].get("labels", {}), **labels}
        self._api.create(
            f"/api/v1/namespaces/{self._namespace}/pods",
            {
                "metadata": {
                    "name": name, "labels": labels,
                    "annotations": metadata.get("annotations", {}), "ownerReferences": [_reference(owner)],
                },
                "spec": template["spec"],
            },
        )  # fmt: skip

    def _make(
        self, owner: Manifest, version: str, kind: str, name: str, spec: Manifest, labels: Mapping[str, str]
    ) -> Manifest:
        metadata = {"name": name, "labels": dict(labels), "ownerReferences": [_reference(owner)]}
        path = f"/apis/{version}/namespaces/{self._namespace}/{kind.lower()}s"
        return self._api.create(path, {"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec})

    def _put(
        self, owner: Manifest, version: str, kind: str, name: str, spec: Manifest, labels: Mapping[str, str]
    ) -> Manifest:
        """Make an object, or write its specification anew where ours has changed."""
        mark = {"double/spec": _hash(spec)}
        path = f"/apis/{version}/namespaces/{self._namespace}/{kind.lower()}s/{name}"
        if not self._api.has(path):
            self._make(owner, version, kind, name, spec, labels)
        found = self._api.ask("GET", path)
        if found["metadata"].get("annotations", {}).get("double/spec") != mark["double/spec"]:
            kept = {key: value for key, value in found["spec"].items() if key not in spec}
            metadata = {**found["metadata"], "annotations": {**found["metadata"].get("annotations", {}), **mark}}
            found = self._api.ask("PUT", path, {**found, "metadata": metadata, "spec": {**kept, **spec}})
        return found

    def _set(self, replica_set: Manifest, spec: Manifest) -> None:
        path = f"/apis/apps/v1/namespaces/{self._namespace}/replicasets/{replica_set['metadata']['name']}"
        self._api.patch(path, {"spec": spec})


def _api_version(kind: str) -> str:
    return f"{API_KINDS[kind].group}/{API_KINDS[kind].versions[0]}"


def _stateful(template: Manifest, labels: Mapping[str, str], replicas: int) -> Manifest:
    metadata = template.get("metadata", {})
    labelled = {**metadata, "labels": {**metadata.get("labels", {}), **labels}}
    return {
        "replicas": replicas, "serviceName": "none", "selector": {"matchLabels": dict(labels)},
        "template": {**template, "metadata": labelled},
    }  # fmt: skip


def _reference(owner: Manifest) -> Manifest:
    metadata = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": metadata["name"], "uid": metadata["uid"],
        "controller": True, "blockOwnerDeletion": False,
    }  # fmt: skip


def _owner(manifest: Manifest) -> str | None:
    return next((str(one["name"]) for one in manifest["metadata"].get("ownerReferences", ())), None)


def _hash(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:10]


def _share(bound: int | str, wanted: int) -> int:
    return wanted * int(bound.removesuffix("%")) // 100 if isinstance(bound, str) else bound
