"""Serves `usage.gputide.io` to the Kubernetes API server, which asks in the name of whom it let in (API aggregation).

The API server authenticates people and asks RBAC before it passes a request on, and shows the certificate of its front
proxy. So who comes without that certificate gets no answer, and what somebody may see follows from the path that RBAC
let them ask for: one namespace, or all. Reads only. `kubectl get gpupods` works by it, without a token of ours.

Source: kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextvars import ContextVar
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, unquote

from dashboards.access.people import Person, Right, Role
from dashboards.access.scoped import scoped_views
from dashboards.queries import NotMadeYet, PlanEntry, Views
from dashboards.usage_api.names import ADVICE_NAME, API_VERSION, GROUP, VERSION, Object
from dashboards.usage_api.objects import (
    CARDS,
    COSTS,
    PODS,
    RESOURCES,
    Included,
    Resource,
    advice_object,
    card_objects,
    cost_objects,
    listed,
    pod_objects,
    table,
)
from dashboards.view_models.made_once import MADE
from fleet.errors import GputideError, NotEnoughData, Refused
from fleet.logs import logger
from wire.http_connection import RETRY_AFTER_SECONDS, ServerLimits
from wire.http_head import Refusal
from wire.http_server import Exchange, HttpServer, TlsContexts, listen

SETTING = "usage_api.listen"
_LIMITS = ServerLimits(connections_max=64, idle_seconds=90.0, request_seconds=10.0, answer_seconds=60.0)
_STOP_SECONDS = 1.0
_USER = "x-remote-user"
_ROOT = f"/apis/{GROUP}/{VERSION}"
_PATH = re.compile(r"(?:/namespaces/([^/]{1,253}))?/([a-z]{1,63})(?:/([^/]{1,253})(?:/([a-z]{1,63}))?)?")
_TABLE = "as=table"
_IGNORED = frozenset({"limit", "pretty", "timeout", "timeoutseconds", "resourceversion", "resourceversionmatch"})
"""Parameters that change nothing of an answer that is whole and of now."""
_FIELDS_MAX = 32
_NOBODY = Person(name="", rights=())
_JSON = "application/json"
_log = logger("dashboards.usage_api")


class _Absent(Exception):
    """There is nothing at a path. That too little is known yet is another thing: kinds are served nevertheless."""


class UsageApi:
    """Answers the API server's requests.

    Args:
        cluster: name of the cluster whose API server asks.
        front_proxy_names: names of certificates that are believed.
    """

    def __init__(self, views: Views, *, cluster: Callable[[], str], front_proxy_names: Collection[str]) -> None:
        self._who: ContextVar[Person] = ContextVar("who", default=_NOBODY)
        self._plans = views.plans
        self._views = scoped_views(views, self._who.get)
        self._cluster = cluster
        self._names = frozenset(front_proxy_names)

    def answer(self, exchange: Exchange) -> None:
        """Answer one request."""
        head = exchange.head
        self._check_front_proxy(exchange)
        exchange.check_method("GET")
        path = head.path.rstrip("/")
        described = _DISCOVERY.get(path)
        if described is not None:
            self._send(exchange, HTTPStatus.OK, described)
            return
        try:
            found = self._found(path, head.query, head.fields)
        except Refused as exc:
            self._send(exchange, HTTPStatus.BAD_REQUEST, _status(HTTPStatus.BAD_REQUEST, "BadRequest", str(exc)))
        except _Absent as exc:
            self._send(exchange, HTTPStatus.NOT_FOUND, _status(HTTPStatus.NOT_FOUND, "NotFound", str(exc)))
        except GputideError as exc:
            said = str(exc)
            if not isinstance(exc, NotMadeYet | NotEnoughData):
                # It may name files, and other clusters.
                _log.warning("the API server could not be answered", reason=said)
                said = "cannot answer now: the log of `gputide serve` says why"
            unavailable = HTTPStatus.SERVICE_UNAVAILABLE
            later = (("Retry-After", str(RETRY_AFTER_SECONDS)),)
            self._send(exchange, unavailable, _status(unavailable, "ServiceUnavailable", said), later)
        else:
            self._send(exchange, HTTPStatus.OK, found)

    def _check_front_proxy(self, exchange: Exchange) -> None:
        name = _common_name(exchange.certificate)
        if name is None or name not in self._names:
            raise Refusal(403, f"cannot answer {name or 'nobody'}: only the API server's front proxy may ask here")
        if not exchange.head.fields.get(_USER):
            raise Refusal(401, f"cannot answer: the API server names nobody in {_USER}")

    def _found(self, path: str, query: str, fields: Mapping[str, str]) -> Object:
        matched = _PATH.fullmatch(path.removeprefix(_ROOT)) if path.startswith(f"{_ROOT}/") else None
        namespace, plural, name, below = (
            (None,) * 4 if matched is None else (part and unquote(part) for part in matched.groups())
        )
        resource = next((one for one in RESOURCES if one.name == plural), None)
        if resource is None or (namespace is not None and not resource.is_namespaced):
            raise _Absent(f"there is nothing at {path[:200]}")
        if below is not None and (below != ADVICE_NAME or resource is not PODS):
            raise _Absent(f"{resource.name} have no {below}")
        if name is not None and resource.is_namespaced and namespace is None:
            raise _Absent(f"{resource.name} are of a namespace")
        included = _included(query)
        self._who.set(
            Person(
                name=fields[_USER],
                rights=(Right(role=Role.VIEWER, namespaces=None if namespace is None else frozenset({namespace})),),
            )
        )
        wants_table = _TABLE in fields.get("accept", "").lower()
        cluster = self._cluster()
        items = self._items(resource, cluster, namespace)
        if name is None:
            return table(resource, items, included) if wants_table else listed(resource, items)
        item = next((one for one in items if one["metadata"]["name"] == name), None)
        if item is None:
            raise _Absent(f'{resource.name}.{GROUP} "{name}" not found')
        if below == ADVICE_NAME:
            return advice_object(item, self._views.fleet.profiles(cluster), self._newest_plan(cluster))
        return table(resource, [item], included) if wants_table else item

    def _items(self, resource: Resource, cluster: str, namespace: str | None) -> Sequence[Object]:
        views = self._views
        if resource is COSTS:
            week = views.money.week(cluster)
            return [] if week is None else cost_objects(week)
        profiles = views.fleet.profiles(cluster)
        prices = views.money.prices(cluster)
        if resource is CARDS:
            return MADE.of((profiles, prices), "usage cards", lambda: card_objects(profiles, prices))
        slices = views.slices.slices(cluster)
        return MADE.of((profiles, prices), ("usage pods", namespace), lambda: pod_objects(slices, profiles, prices))

    def _newest_plan(self, cluster: str) -> PlanEntry | None:
        """As the person may see it; no other is cut for that."""
        entries = self._plans.plans(cluster)
        newest = next((entry.plan.plan_id for entry in entries if not entry.plan.is_of_node), None)
        return None if newest is None else self._views.plans.plan(newest)

    @staticmethod
    def _send(
        exchange: Exchange, status: HTTPStatus, content: Mapping[str, Any], fields: tuple[tuple[str, str], ...] = ()
    ) -> None:
        body = json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
        exchange.connection.answer(int(status), body, kind=_JSON, fields=fields)


class UsageServer:
    """A port on which the API server asks.

    Args:
        tls: gives the context for a new connection; it must ask for the certificate of the front proxy.

    Raises:
        Unavailable: another process listens there.
        Misconfigured: this machine has no such address.
    """

    def __init__(self, api: UsageApi, *, host: str, port: int, tls: TlsContexts) -> None:
        self._server = HttpServer(listen(host, port, setting=SETTING), api.answer, limits=_LIMITS, tls=tls)
        self._thread = threading.Thread(target=self._server.serve, name="usage API", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        return self._server.address

    def __enter__(self) -> UsageServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(grace_seconds=_STOP_SECONDS)
        self._thread.join()


def _included(query: str) -> Included:
    """What rows of a table have of their objects; parameters that would need another answer are refused.

    Raises:
        Refused: a selector, a watch, or no such part of an object.
    """
    included = Included.METADATA
    fields = parse_qsl(query) if query.count("&") < _FIELDS_MAX else [("more than", f"{_FIELDS_MAX} parameters")]
    for name, value in fields:
        if name == "includeObject" and value in tuple(Included):
            included = Included(value)
        elif name.lower() not in _IGNORED and value not in ("", "false", "0"):
            raise Refused(f"cannot answer {name[:40]}={value[:100]!r}: {GROUP} lists whole namespaces, or all")
    return included


def _common_name(certificate: Mapping[str, object] | None) -> str | None:
    """Common name of a certificate as `ssl` gives it; None without one."""
    subject: Any = () if certificate is None else certificate.get("subject", ())
    return next((str(value) for part in subject for key, value in part if key == "commonName"), None)


def _status(code: HTTPStatus, reason: str, message: str) -> Object:
    return {
        "apiVersion": "v1", "kind": "Status", "metadata": {}, "status": "Failure", "reason": reason, "code": int(code),
        "message": message,
    }  # fmt: skip


_GROUP_DOCUMENT = {
    "name": GROUP,
    "versions": [{"groupVersion": API_VERSION, "version": VERSION}],
    "preferredVersion": {"groupVersion": API_VERSION, "version": VERSION},
}
_DISCOVERY: Mapping[str, Object] = {
    "/apis": {"apiVersion": "v1", "kind": "APIGroupList", "groups": [_GROUP_DOCUMENT]},
    f"/apis/{GROUP}": {"apiVersion": "v1", "kind": "APIGroup", **_GROUP_DOCUMENT},
    _ROOT: {
        "apiVersion": "v1",
        "kind": "APIResourceList",
        "groupVersion": API_VERSION,
        "resources": [
            *(
                {
                    "name": one.name,
                    "singularName": one.kind.lower(),
                    "namespaced": one.is_namespaced,
                    "kind": one.kind,
                    "verbs": ["get", "list"],
                }
                for one in RESOURCES
            ),
            {
                "name": f"{PODS.name}/{ADVICE_NAME}",
                "singularName": "",
                "namespaced": True,
                "kind": "GpuPodAdvice",
                "verbs": ["get"],
            },
        ],
    },
}
