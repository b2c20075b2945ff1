"""The area cluster: reach and version, rights, nodes and backends, what else changes workloads, and what stops us.

Everything is read by the enforcer's own client; what it may not read is unchecked, and says which right it would take.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from fleet.errors import Misconfigured, Unavailable
from fleet.settings.settings import Settings
from gputide.doctor import cluster_nodes as nodes
from gputide.doctor import cluster_workloads as workloads
from gputide.doctor.catalogue import kind_of
from gputide.doctor.cluster_rights import checked_roles, rights_of
from gputide.doctor.cluster_scene import ClusterScene
from gputide.doctor.finding import Area, Check, Diagnosis, finding, unchecked, well

REACH = "reach"
SKEW_SECONDS_MAX = 5.0
MINOR_MIN = 24
"""Kubernetes 1.24 serves every version of an API that is asked for."""
_DRA = "resource.k8s.io"


def cluster_checks(settings: Settings, *, roles: Sequence[str], account: str | None) -> tuple[Check, ...]:
    """What is looked at of the cluster of `enforcer.kubeconfig`.

    Args:
        settings: all settings.
        roles: roles whose rights are looked at; empty for the account's own.
        account: whose rights; None for whoever asks.

    Raises:
        Misconfigured: there is no such role.
    """
    chosen = checked_roles(tuple(roles), account)
    scene = ClusterScene(settings)
    reach_codes = ("cluster-unreachable", "cluster-credentials", "cluster-old", "cluster-clock-skew", "dra-not-served")
    of_nodes = (
        "backend-elsewhere backend-conflict backend-mixed no-gpu-nodes hami-register-stale node-unready "
        "node-model-unlabelled time-slicing mig-two-managers mig-config-failed"
    )
    return (
        Check(area=Area.CLUSTER, name=REACH, look=partial(_reach, scene), codes=reach_codes),
        *(
            _check(f"rights of {role}", partial(_rights, scene, role, account), "right-missing", seconds=60.0)
            for role in chosen
        ),
        _check("nodes", partial(nodes.nodes, scene), of_nodes),
        _check("backend's parts", partial(nodes.parts, scene), "device-plugin-unready backend-config-missing"),
        _check("webhooks", partial(nodes.webhooks, scene), "hami-webhook-missing admission-missing admission-unready"),
        _check(
            "owners", partial(workloads.owners, scene), "gitops-owned autoscaled metrics-server-missing", seconds=60.0
        ),
        _check("disruption budgets", partial(workloads.budgets, scene), "budget-blocks"),
        _check("stops", partial(workloads.stops, scene), "frozen lease-held namespace-missing orders-missing"),
        _check("audit", _audit, ""),
    )


def _check(name: str, look: Callable[[], Iterable[Diagnosis]], codes: str, seconds: float = 30.0) -> Check:
    return Check(area=Area.CLUSTER, name=name, look=look, codes=tuple(codes.split()), seconds_max=seconds, needs=REACH)


def _reach(scene: ClusterScene) -> Iterator[Diagnosis]:
    kubeconfig = str(scene.settings.enforcer.kubeconfig or "~/.kube/config")
    try:
        before = time.time()
        version = scene.get("/version", "version") or {}
        told = scene.client.now().timestamp()
        after = time.time()
        served = scene.groups
    except Misconfigured as exc:
        yield finding(kind_of("cluster-credentials"), REACH, str(exc))
        return
    except Unavailable as exc:
        yield finding(kind_of("cluster-unreachable"), REACH, str(exc), kubeconfig=kubeconfig)
        return
    found: list[Diagnosis] = []
    minor = str(version.get("minor", "")).rstrip("+")
    if minor.isdigit() and int(minor) < MINOR_MIN:
        found.append(finding(kind_of("cluster-old"), REACH, f"version {version.get('gitVersion')}"))
    # The header is cut to whole seconds, and the answer took its time.
    skew = told - (before + after) / 2
    if abs(skew) - (after - before) / 2 - 1.0 > SKEW_SECONDS_MAX:
        text = f"the API server is {abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}"
        found.append(finding(kind_of("cluster-clock-skew"), REACH, text))
    backend = scene.settings.enforcer.backend
    if backend.startswith("dra_") and _DRA not in served:
        found.append(finding(kind_of("dra-not-served"), REACH, f"enforcer.backend={backend}"))
    has_dra = f"serves {_DRA}" if _DRA in served else f"no {_DRA}"
    yield from found or [well(Area.CLUSTER, REACH, f"{scene.client.server} {version.get('gitVersion')}, {has_dra}")]


def _rights(scene: ClusterScene, role: str, account: str | None) -> Iterator[Diagnosis]:
    enforcer = scene.settings.enforcer
    return rights_of(
        scene.client,
        role,
        account=account,
        namespace=enforcer.namespace,
        backend=enforcer.backend,
        served=scene.groups,
    )


def _audit() -> Iterator[Diagnosis]:
    yield unchecked(
        Area.CLUSTER, "audit", "whether the API server keeps an audit log is not to be seen through its API; every "
        "change by gputide stands in its own ledger and as an Event",
    )  # fmt: skip
