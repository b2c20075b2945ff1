"""What `kubectl gputide` reads of a cluster, one request for each question."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from dashboards.usage_api.names import ADVICE_NAME, API_VERSION, CARDS_NAME, COSTS_NAME, GROUP, PODS_NAME, Object
from enforcer.kubernetes.custom_resources import API_VERSION as PLANS_VERSION
from enforcer.kubernetes.custom_resources import VERSION as PLAN_VERSION
from enforcer.kubernetes.custom_resources import kind_of
from fleet.errors import Misconfigured, NotEnoughData, Unavailable
from wire.http_client import Request
from wire.kubernetes.access import find_access
from wire.kubernetes.read import PAGE_BYTES_MAX, EventKind, KubernetesApi, decoded
from wire.kubernetes.refusals import Deed, Forbidden

GUIDE = "docs/kubectl.md"
_PLANS = kind_of("GpuPlan")
_PAGE_PLANS = 500
_ANSWER_SECONDS = 60.0
_LOOK_SECONDS, _WATCH_SECONDS = 1.0, 30


class ClusterObjects:
    """Reads objects in the name of a kubeconfig's user.

    Its calls raise:
        Misconfigured: a right is missing.
        Unavailable: the cluster can't be reached, or serves no such kind.

    Args:
        kubeconfig: path; None for `$KUBECONFIG` or `~/.kube/config`.
        context: name of a context of it; None for the current one.
    """

    def __init__(self, kubeconfig: Path | None, context: str | None) -> None:
        access = find_access(kubeconfig, context, setting="enforcer.kubeconfig")
        self._api = KubernetesApi(access, "kubectl-gputide", rules_file=GUIDE)
        self.close = self._api.close

    @property
    def requests(self) -> int:
        """Requests made so far."""
        return self._api.asked

    def pods(self, namespace: str | None) -> list[Object]:
        """`GpuPod` objects of a namespace, of all where None."""
        return self._usage(PODS_NAME, namespace)

    def cards(self) -> list[Object]:
        """`GpuCard` objects."""
        return self._usage(CARDS_NAME, None)

    def costs(self, namespace: str | None) -> list[Object]:
        """`GpuCost` objects of a namespace, of all where None."""
        return self._usage(COSTS_NAME, namespace)

    def advice(self, namespace: str, pod: str) -> Object:
        """What is known and advised of a pod.

        Raises:
            NotEnoughData: there is no such pod on a card.
        """
        within = f"/apis/{API_VERSION}/namespaces/{quote(namespace, safe='')}"
        path = f"{within}/{PODS_NAME}/{quote(pod, safe='')}/{ADVICE_NAME}"
        deed = Deed(verb="get", resource=f"{PODS_NAME}/{ADVICE_NAME}.{GROUP}", namespace=namespace, name=pod)
        found = self._api.get(deed, path)
        if found is None:
            raise NotEnoughData(
                f"cannot say why: pod {namespace}/{pod} is on no card that gputide knows of, or the cluster does not "
                f"serve {GROUP}; `kubectl gputide top` lists pods, {GUIDE} says how to serve it"
            )
        return found

    def plans(self) -> list[Object]:
        """`GpuPlan` objects, newest first."""
        found: list[Object] = []
        token: str | None = None
        while True:
            page = self._api.page(_PLANS, PLAN_VERSION, limit=_PAGE_PLANS, token=token)
            if page is None:
                raise Unavailable(f"cannot list plans: the cluster does not serve {PLANS_VERSION}; see {GUIDE}")
            found += map(dict, page.manifests)
            token = page.next_token
            if token is None:
                break
        return sorted(found, key=lambda one: str(one["metadata"]["creationTimestamp"]), reverse=True)

    def plan(self, name: str | None) -> Object:
        """The plan of an id or its start; the newest where None.

        Raises:
            NotEnoughData: there is none.
            Misconfigured: none, or several, begin so.
        """
        plans = self.plans()
        if not plans:
            raise NotEnoughData("there is no plan in this cluster yet; `gputide plan make` makes one")
        if name is None:
            return plans[0]
        found = [one for one in plans if str(one["spec"]["plan"]).startswith(name)]
        if len(found) == 1:
            return found[0]
        known = ", ".join(str(one["spec"]["plan"])[:12] for one in (found or plans)[:5])
        what = f"{len(found)} plans begin so" if found else "no plan begins so"
        raise Misconfigured(f"cannot use plan {name[:64]!r}: {what}; there are {known}")

    def following(self, name: str) -> Iterator[Object]:
        """A plan as it is, each time that it changes, and again at least twice a minute.

        The API server reports the changes; who may not watch plans looks each second.

        Raises:
            NotEnoughData: it is gone.
        """
        deed = Deed(verb="get", resource=_PLANS.resource, name=name)
        only = {"fieldSelector": f"metadata.name={name}"}
        while True:
            found = self._api.get(deed, _PLANS.path(PLAN_VERSION, None, name))
            if found is None:
                raise NotEnoughData(f"plan {name} is gone")
            yield found
            version = str(found["metadata"]["resourceVersion"])
            try:
                for event in self._api.watch(_PLANS, PLAN_VERSION, since=version, query=only, seconds=_WATCH_SECONDS):
                    if event.kind is EventKind.DELETED:
                        raise NotEnoughData(f"plan {name} is gone")
                    if event.kind is not EventKind.BOOKMARK:
                        yield dict(event.manifest)
            except (Forbidden, Unavailable):
                time.sleep(_LOOK_SECONDS)  # a watch that is too old is unavailable, too; the next look says the rest

    def _usage(self, plural: str, namespace: str | None) -> list[Object]:
        within = "" if namespace is None else f"/namespaces/{quote(namespace, safe='')}"
        deed = Deed(verb="list", resource=f"{plural}.{GROUP}", namespace=namespace or "")
        asked = Request(path=f"/apis/{API_VERSION}{within}/{plural}", seconds_max=_ANSWER_SECONDS)
        body = self._api.exchange(deed, asked, PAGE_BYTES_MAX)
        if body is None:
            raise Unavailable(f"cannot {deed}: the cluster does not serve {GROUP}; {GUIDE} says how it comes to")
        items: Any = decoded(body, deed).get("items")
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise Misconfigured(f"cannot {deed}: what the cluster serves as {GROUP} is no list of gputide's")
        return items
