"""Whether a release of the chart works, looked at from within the cluster: for `helm test`.

Pods of the release are ready, the exporters among them show figures, and the API server serves `usage.gputide.io`. It
asks with the rights of the reader (`docs/rbac-reader.yaml`), which may list pods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fleet.errors import GputideError, Unavailable
from wire.http_answer import read_body
from wire.http_client import Endpoint, HttpClient, Request
from wire.kubernetes.read import KubernetesApi
from wire.kubernetes.refusals import Deed
from wire.kubernetes.resource import ApiResource

_PODS = ApiResource(group="", versions=("v1",), plural="pods", kind="Pod")
_USAGE = "/apis/usage.gputide.io/v1alpha1"
_METRICS_PORT = "metrics"
"""Name of an exporter's port in the chart."""
_METRICS_BYTES_MAX = 64 * 2**20
_SECONDS_MAX = 10.0
_PODS_MAX = 5000
_SCRAPED_MAX = 3
"""Pods of one part whose figures are looked at: a fleet has as many exporters as nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One thing that was looked at.

    Attributes:
        trouble: what is wrong with it; empty where nothing is.
    """

    part: str
    what: str
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What is looked for.

    Attributes:
        name: of the release.
        namespaces: those that its pods are in.
        shows_metrics: exporters answer anybody in the clear; otherwise their readiness has to do.
        serves_usage: the cluster is to serve `usage.gputide.io`.
    """

    name: str
    namespaces: tuple[str, ...]
    shows_metrics: bool
    serves_usage: bool


def looks(api: KubernetesApi, release: Release) -> tuple[Look, ...]:
    """Everything that is looked at, in the order of parts.

    Raises:
        Misconfigured: the account may not list pods.
        Unavailable: the API server can't be reached.
    """
    pods = sorted((pod for one in release.namespaces for pod in _pods(api, release.name, one)), key=_part_of)
    found = [_ready(pod) for pod in pods] or [Look(part="release", what=release.name, trouble="it has no running pod")]
    if release.shows_metrics:
        found += _exporters(pods)
    if release.serves_usage:
        found.append(Look(part="usage API", what=_USAGE, trouble=_trouble(lambda: _check_usage(api))))
    return tuple(found)


def _pods(api: KubernetesApi, release: str, namespace: str) -> Iterator[Mapping[str, Any]]:
    """Pods that are meant to run on; those of jobs, and of this test, end."""
    query = {"labelSelector": f"app.kubernetes.io/instance={release},app.kubernetes.io/part-of=gputide"}
    page = api.page(_PODS, "v1", limit=_PODS_MAX, token=None, namespace=namespace, query=query)
    if page is None:
        return
    for manifest in page.manifests:
        pod: Mapping[str, Any] = manifest
        is_leaving = pod["metadata"].get("deletionTimestamp") is not None
        if pod.get("spec", {}).get("restartPolicy", "Always") == "Always" and not is_leaving:
            yield pod


def _part_of(pod: Mapping[str, Any]) -> str:
    return str(pod["metadata"].get("labels", {}).get("app.kubernetes.io/name", ""))


def _ready(pod: Mapping[str, Any]) -> Look:
    status = pod.get("status", {})
    ready: Mapping[str, Any] = next((one for one in status.get("conditions") or () if one.get("type") == "Ready"), {})
    trouble = "" if ready.get("status") == "True" else f"not ready: {ready.get('message') or status.get('phase')}"
    return Look(part=_part_of(pod), what=f"pod {pod['metadata']['name']}", trouble=trouble)


def _exporters(pods: Iterable[Mapping[str, Any]]) -> Iterator[Look]:
    """The figures of pods with a port for them, of some of each part."""
    asked: dict[str, int] = {}
    for pod in pods:
        part, address = _part_of(pod), str(pod.get("status", {}).get("podIP", ""))
        ports = [port for one in pod["spec"]["containers"] for port in one.get("ports") or ()]
        port = next((int(one["containerPort"]) for one in ports if one.get("name") == _METRICS_PORT), None)
        if port is None or not address or asked.get(part, 0) >= _SCRAPED_MAX:
            continue
        asked[part] = asked.get(part, 0) + 1
        endpoint = Endpoint(host=address, port=port)
        yield Look(part=part, what=f"{endpoint.server}/metrics", trouble=_trouble(partial(_check_figures, endpoint)))


def _check_figures(endpoint: Endpoint) -> None:
    client = HttpClient(endpoint, "gputide-test", is_kept=False)
    with client.ask(Request(path="/metrics", seconds_max=_SECONDS_MAX, accept="text/plain")) as answer:
        text = bytes(read_body(answer, _METRICS_BYTES_MAX, is_cut=True))
    if answer.status != 200 or b"\ngputide_" not in b"\n" + text:
        raise Unavailable(f"it answers {answer.status} without figures of gputide")


def _check_usage(api: KubernetesApi) -> None:
    found = api.get(Deed(verb="get", resource=_USAGE), _USAGE)
    if not found or not found.get("resources"):
        raise Unavailable("the API server does not serve it; `kubectl get apiservice v1alpha1.usage.gputide.io`")


def _trouble(check: Callable[[], None]) -> str:
    try:
        check()
    except GputideError as exc:
        return str(exc)
    return ""
