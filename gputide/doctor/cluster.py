"""The area cluster: reach and version, rights, nodes and backends, what else changes workloads, and what stops us.

Everything is read by the enforcer's own client; what it may not read is unchecked, and says which right it would take.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from enforcer.disruption import selects
from enforcer.kubernetes.approval_policy import UNSERVED, guarded_since
from enforcer.kubernetes.custom_resources import API_VERSION
from enforcer.kubernetes.lease import LEASE_NAME
from enforcer.manifest import Manifest
from enforcer.safety.gitops import gitops_manager
from enforcer.safety.guard import FREEZE_NAME, FREEZE_NAMESPACE
from enforcer.wishes import policies_in
from fleet.errors import Misconfigured, Unavailable
from fleet.gpu_policy import POLICIES_MAX, GpuPolicy
from fleet.sentences import listed, sentence
from fleet.settings.settings import ClusterChoice, Settings
from fleet.units import parse_time
from gputide.doctor import cluster_nodes as nodes
from gputide.doctor.cluster_rights import checked_roles, rights_of
from gputide.doctor.cluster_scene import ClusterScene
from gputide.doctor.finding import NAMES_MAX, Area, Check, Diagnosis, Look, a_check, finding, otherwise, some, unchecked

REACH = "reach"
SKEW_SECONDS_MAX = 5.0
MINOR_MIN = 24
"""Kubernetes 1.24 serves every version of an API that is asked for."""
_DRA = "resource.k8s.io"


def cluster_checks(settings: Settings, *, roles: Sequence[str], account: str | None) -> tuple[Check, ...]:
    """What is looked at of the cluster of `enforcer.kubeconfig`.

    Args:
        roles: roles whose rights are looked at; empty for the account's own.
        account: whose rights; None for the caller.

    Raises:
        Misconfigured: there is no such role.
    """
    chosen = checked_roles(tuple(roles), account)
    scene = ClusterScene(settings)
    of_reach = "cluster-unreachable cluster-credentials cluster-old cluster-clock-skew dra-not-served"
    of_nodes = (
        "backend-elsewhere backend-conflict backend-mixed no-gpu-nodes hami-register-stale node-unready "
        "node-model-unlabelled time-slicing mig-two-managers mig-config-failed"
    )
    return (
        a_check(Area.CLUSTER, REACH, partial(_reach, scene), of_reach),
        *(
            _check(f"rights of {role}", partial(_rights, scene, role, account), "right-missing", seconds=60.0)
            for role in chosen
        ),
        _check("nodes", partial(nodes.nodes, scene), of_nodes),
        _check("backend's parts", partial(nodes.parts, scene), "device-plugin-unready backend-config-missing"),
        _check(
            "backend's version",
            partial(nodes.backend_version, scene),
            "backend-version-old backend-version-new backend-version-unseen",
        ),
        _check("webhooks", partial(nodes.webhooks, scene), "hami-webhook-missing admission-missing admission-unready"),
        _check("plans", partial(plans_kept, scene), "kinds-missing approval-policy-missing"),
        _check("owners", partial(owners, scene), "gitops-owned autoscaled metrics-server-missing", seconds=60.0),
        _check("disruption budgets", partial(budgets, scene), "budget-blocks"),
        _check("policies", lambda: policies(policies_in(scene.reader.list_objects)), "policies-too-many"),
        _check("stops", partial(stops, scene), "frozen lease-held namespace-missing orders-missing"),
        _check("audit", _audit, ""),
    )


def _check(name: str, look: Look, codes: str, seconds: float = 30.0) -> Check:
    return a_check(Area.CLUSTER, name, look, codes, seconds_max=seconds, needs=REACH)


def _reach(scene: ClusterScene) -> Iterator[Diagnosis]:
    kubeconfig = str(scene.settings.enforcer.kubeconfig or "~/.kube/config")
    try:
        before = time.time()
        version = scene.get("/version", "version") or {}
        told = scene.client.now().timestamp()
        after = time.time()
        served = scene.groups
    except Misconfigured as exc:
        yield finding("cluster-credentials", exc.said)
        return
    except Unavailable as exc:
        yield finding("cluster-unreachable", exc.said, kubeconfig=kubeconfig)
        return
    minor = str(version.get("minor", "")).rstrip("+")
    if minor.isdigit() and int(minor) < MINOR_MIN:
        yield finding("cluster-old", sentence("doctor.found.version", version=str(version.get("gitVersion"))))
    # The header is cut to whole seconds, and the answer took its time.
    skew = told - (before + after) / 2
    if abs(skew) - (after - before) / 2 - 1.0 > SKEW_SECONDS_MAX:
        said = "doctor.found.server_ahead" if skew > 0 else "doctor.found.server_behind"
        yield finding("cluster-clock-skew", sentence(said, seconds=f"{abs(skew):.0f}"))
    backend = scene.settings.enforcer.backend
    if backend.startswith("dra_") and _DRA not in served:
        yield finding("dra-not-served", f"enforcer.backend={backend}")
    said = "doctor.found.serves" if _DRA in served else "doctor.found.serves_no"
    yield otherwise(sentence(said, server=scene.client.server, version=str(version.get("gitVersion")), api=_DRA))


def _rights(scene: ClusterScene, role: str, account: str | None) -> Iterator[Diagnosis]:
    enforcer = scene.settings.enforcer
    return rights_of(
        scene.client, role, account=account, namespace=enforcer.namespace, backend=enforcer.backend, served=scene.groups
    )


def _audit() -> Iterator[Diagnosis]:
    yield unchecked(sentence("doctor.found.audit_log"))


_KINDS = ("gpuplans", "gpuplanparts", "gpuapprovals", "gpuchanges")


def plans_kept(scene: ClusterScene) -> Iterator[Diagnosis]:
    """Whether the cluster can keep plans and approvals, and holds approvals to who makes them."""
    if scene.settings.enforcer.cluster is not ClusterChoice.KUBERNETES:
        yield unchecked(sentence("doctor.found.simulated"))
        return
    told = scene.get(f"/apis/{API_VERSION}", "apiresources") or {}
    served = {str(one.get("name")) for one in told.get("resources", [])}
    missing = [kind for kind in _KINDS if kind not in served]
    if missing:
        yield finding("kinds-missing", sentence("doctor.found.not_served", missing=", ".join(missing)))
        return
    if guarded_since(scene.client.get) in (None, UNSERVED):
        yield finding("approval-policy-missing", sentence("doctor.found.no_policy"))
    yield otherwise(sentence("doctor.found.kinds_served", kinds=", ".join(_KINDS)))


_METRICS_GROUP = "metrics.k8s.io"


def owners(scene: ClusterScene) -> Iterator[Diagnosis]:
    """Workloads with cards that a repository or an autoscaler keeps as they are."""
    workloads = set(scene.workloads)
    marked = {}
    for kind in ("Deployment", "StatefulSet", "DaemonSet"):
        for manifest in scene.reader.list_objects(kind):
            name = _name(manifest)
            manager = gitops_manager(manifest) if name in workloads else None
            if manager is not None:
                marked[name] = manager
    if marked:
        managed = [sentence("doctor.found.by", what=name, by=by) for name, by in sorted(marked.items())]
        names = listed(managed, NAMES_MAX)
        text = sentence("doctor.found.of_workloads", found=len(marked), all=len(workloads), names=names)
        yield finding("gitops-owned", text, subject=some(marked))
    scalers = [*scene.reader.list_objects("HorizontalPodAutoscaler"), *scene.reader.list_objects("ScaledObject")]
    scaled = {target: scaler for scaler in scalers if (target := _target(scaler)) in workloads}
    if scaled:
        text = sentence("doctor.found.of_workloads", found=len(scaled), all=len(workloads), names=some(scaled))
        yield finding("autoscaled", text, subject=some(scaled))
    by_resource = [
        _name(scaler) for scaler in scalers
        if any(metric.get("type") == "Resource" for metric in scaler.get("spec", {}).get("metrics") or [])
    ]  # fmt: skip
    if by_resource and _METRICS_GROUP not in scene.groups:
        text = sentence("doctor.found.autoscalers", autoscalers=len(by_resource), names=some(by_resource))
        yield finding("metrics-server-missing", text)
    yield otherwise(sentence("doctor.found.nobody_elses", workloads=len(workloads)))


def budgets(scene: ClusterScene) -> Iterator[Diagnosis]:
    """Disruption budgets that never let a pod with cards go."""
    listed = scene.reader.list_objects("PodDisruptionBudget")
    for budget in listed:
        status = budget.get("status", {})
        is_closed = status.get("disruptionsAllowed", 0) == 0 and status.get("expectedPods", 0) > 0
        is_healthy = status.get("currentHealthy", 0) >= status.get("expectedPods", 0)
        namespace, name = str(budget["metadata"]["namespace"]), str(budget["metadata"]["name"])
        if is_closed and is_healthy and any(selects(budget, pod) for pod in scene.card_pods):
            spec = budget.get("spec", {})
            bound = {key: spec[key] for key in ("minAvailable", "maxUnavailable") if key in spec}
            text = sentence("doctor.found.of_pods", bound=str(bound), expected=str(status.get("expectedPods")))
            yield finding("budget-blocks", text, subject=f"{namespace}/{name}", namespace=namespace, name=name)
    yield otherwise(sentence("doctor.found.budgets", budgets=len(listed)))


def policies(found: Iterable[GpuPolicy]) -> Iterator[Diagnosis]:
    """Namespaces that are left alone because they have more policies than are read."""
    counts = Counter(one.namespace for one in found if one.namespace)
    crowded = {namespace: count for namespace, count in sorted(counts.items()) if count > POLICIES_MAX}
    for namespace, count in crowded.items():
        text = sentence("doctor.found.policies", policies=count, most=POLICIES_MAX)
        yield finding("policies-too-many", text, subject=namespace, namespace=namespace)
    yield otherwise(sentence("doctor.found.policies_fine", policies=counts.total(), most=POLICIES_MAX))


def stops(scene: ClusterScene) -> Iterator[Diagnosis]:
    """What stops every change now: a freeze, another holder of the lease, a namespace that is missing."""
    enforcer = scene.settings.enforcer
    namespace = enforcer.namespace
    if scene.reader.get("Namespace", "", namespace) is None:
        yield finding("namespace-missing", f"enforcer.namespace={namespace}", namespace=namespace)
        return
    if scene.reader.get("ConfigMap", FREEZE_NAMESPACE, FREEZE_NAME) is not None:
        place = f"ConfigMap {FREEZE_NAMESPACE}/{FREEZE_NAME}"
        yield finding("frozen", place, namespace=FREEZE_NAMESPACE, name=FREEZE_NAME)
    orders = scene.settings.agent.orders_config_map
    has_agents = bool(scene.get(f"/apis/apps/v1/namespaces/{namespace}/daemonsets/gputide-agent", "daemonsets.apps"))
    if has_agents and scene.reader.get("ConfigMap", namespace, orders) is None:
        text = sentence("doctor.found.orders", namespace=namespace, name=orders)
        yield finding("orders-missing", text, namespace=namespace, name=orders)
    lease = scene.reader.get("Lease", namespace, LEASE_NAME)
    holder = _holder(scene, lease)
    if holder:
        yield finding("lease-held", holder, subject=f"{namespace}/{LEASE_NAME}", namespace=namespace)
    yield otherwise(sentence("doctor.found.lease_free", namespace=namespace))


def _holder(scene: ClusterScene, lease: Manifest | None) -> str:
    """Who holds the lease now; empty where nobody does."""
    spec: Mapping[str, Any] = {} if lease is None else lease.get("spec") or {}
    holder, renewed = str(spec.get("holderIdentity") or ""), spec.get("renewTime")
    if not holder or not renewed:
        return ""
    try:
        until = parse_time(str(renewed)) + timedelta(seconds=float(spec.get("leaseDurationSeconds") or 0))
    except (Misconfigured, ValueError):
        return holder
    return holder if until > scene.client.now() else ""


def _name(manifest: Manifest) -> str:
    metadata = manifest["metadata"]
    return f"{metadata.get('namespace', '')}/{manifest['kind']}/{metadata['name']}"


def _target(scaler: Manifest) -> str:
    reference = scaler.get("spec", {}).get("scaleTargetRef") or {}
    kind = reference.get("kind") or "Deployment"  # KEDA's default
    return f"{scaler['metadata'].get('namespace', '')}/{kind}/{reference.get('name', '')}"
