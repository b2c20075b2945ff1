"""The web app: pages over four ports, and who may see and do what there.

`create_app` builds it, `open_server` listens. Nothing is loaded from elsewhere, and the content security policy says
so to the browser. Before a request is answered its `Host` must be one of ours (a foreign name that resolves to this
machine is turned away: DNS rebinding), people must be known (`access/sign_in`), a request that writes must come
from our own page (`Origin`, `Sec-Fetch-Site`, JSON body), and a button that changes the cluster carries the token of
the person's page. `/healthz` alone answers anybody who asks, by whatever name, since a kubelet has none: it says
nothing. Pages and routes stand on ports that are cut to what that person may see (`access/scoped`).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from types import ModuleType
from typing import Any, Protocol
from urllib.parse import urlsplit

from dash import Dash, Input, Output, State, ctx, dcc, html, no_update
from dash.exceptions import DependencyException
from flask import Response, request

from dashboards.access.people import NotAllowed
from dashboards.access.scoped import scoped_views
from dashboards.access.sign_in import (
    HEALTH_PATH,
    OPEN_PREFIXES,
    SIGN_IN_PATH,
    SIGN_OUT_PATH,
    Access,
    Ways,
    plain_answer,
)
from dashboards.address import Address, read_address
from dashboards.api import routes as api
from dashboards.assistant import route as assistant_route
from dashboards.assistant.answers import Assistant
from dashboards.pages import card_history as page_card
from dashboards.pages import clusters as page_clusters
from dashboards.pages import cost as page_cost
from dashboards.pages import fleet as page_fleet
from dashboards.pages import health as page_health
from dashboards.pages import node as page_node
from dashboards.pages import plan as page_plan
from dashboards.pages import savings as page_savings
from dashboards.pages import tenants as page_tenants
from dashboards.pages import workloads as page_workloads
from dashboards.pages.frame import Reader, failure, missing, not_allowed, not_made_yet, top_bar
from dashboards.queries import Freshness, NotMadeYet, Views
from dashboards.request_hooks import compress, measure, speak
from dashboards.tokens import css_variables
from dashboards.view_models.rows import search as search_fleet
from dashboards.words.reading import READING, say, say_code
from fleet.errors import GputideError, NotEnoughData
from fleet.profiles import Profiles
from wire.http_connection import ServerLimits
from wire.http_server import HttpServer, TlsContexts, listen
from wire.wsgi import wsgi

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
"""Names under which the app answers unless others are set."""

_PAGES: dict[str, ModuleType] = {
    "/": page_fleet,
    "/workloads": page_workloads,
    "/plan": page_plan,
    "/savings": page_savings,
    "/cost": page_cost,
    "/tenants": page_tenants,
    "/health": page_health,
    "/card": page_card,
    "/clusters": page_clusters,
    "/node": page_node,
}
_WRITING_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
CONNECTIONS_MAX = 500
"""Requests under way; beyond them one that waits for its client gives way."""
PARKED_MAX = 4096
"""Connections on which no whole request has come; beyond them the one that waits for longest is closed."""
REQUEST_SECONDS_MAX = 10.0
"""How long a request may take to arrive."""
BODY_BYTES_MAX = 2**20
"""Largest body of a request; the largest that a page sends is a table of 60 rows, about 60 KB."""
PENDING_BYTES_MAX = 32 * BODY_BYTES_MAX
"""Bytes of bodies that all requests may hold together, signed in or not; beyond them the answer is 429."""
_IDLE_SECONDS_MAX = 60.0
_ANSWER_SECONDS_MAX = 120.0
_SLOW_SECONDS = 0.1
"""A request of a page comes in one piece: what keeps its place waiting amid one gives way to newcomers soon."""
_STOP_SECONDS = 1.0
_THREADS = 8
_AGAIN_MS = 3_000
"""Pause between two requests for a page that could not be made yet."""
_AGAIN_TIMES = 20
"""How many of them may get no answer."""
_KNOWN = "gputide.is_known"
"""Where Flask keeps what says whether somebody is signed in."""


class Server(Protocol):
    """A listening app."""

    @property
    def address(self) -> str:
        """`http://host:port/`, or `https://…`, with the port that the system chose where 0 was asked for."""
        ...

    def run(self) -> None:
        """Answers requests until `close` is called from another thread, or the process is interrupted."""
        ...

    def close(self) -> None:
        """Stops listening."""
        ...


def create_app(
    views: Views,
    *,
    ways: Ways,
    hosts: Sequence[str] = LOOPBACK_NAMES,
    public_url: str | None = None,
    assistant: assistant_route.Offer | None = None,
) -> Dash:
    """The app over its ports.

    Args:
        hosts: names, without port, under which it may be asked for.
        public_url: address by which browsers come, where something in front of the app changes `Host`.
        assistant: what answers assistants; None where their SDK is not installed.
    """
    # Dash asks every value of a page whether it is one of pandas' if that is loaded, and fails while it is half loaded.
    import_module("pandas")
    access = Access(ways, frozenset(_PAGES))
    views = scoped_views(views, access.who)
    app = _Pages(
        __name__,
        title="gputide",
        update_title="",
        serve_locally=True,
        suppress_callback_exceptions=True,
        eager_loading=False,
        assets_folder="assets",
        include_pages_meta=False,
        meta_tags=[{"name": "viewport", "content": "width=device-width, initial-scale=1"}],
    )
    app.index_string = _INDEX.replace("{%tokens%}", css_variables())

    def _layout() -> Any:
        """Made for every reader: the token is theirs."""
        return html.Div(
            [
                dcc.Location(id="address", refresh="callback-nav"),
                dcc.Store(id="token", data=access.page_token()),
                dcc.Store(id="page-key"),
                dcc.Interval(id="again", interval=_AGAIN_MS, max_intervals=0),
                html.Header(id="top", className="top"),
                html.Main(html.Div(say("frame.reading_fleet"), className="loading"), id="page", tabIndex="-1"),
            ]
        )

    measure(app.server)
    _guard(app, frozenset(hosts), public_url=public_url, is_secure=ways.is_secure)
    speak(app.server, is_secure=ways.is_secure)
    access.guard(app.server)
    app.server.extensions[_KNOWN] = access.is_known
    compress(app.server)
    api.register(app.server, views, access)
    further = () if assistant is None else assistant.tools
    assistant_route.register(app.server, Assistant(views, access.who, further), assistant)
    app.layout = _layout
    _register_pages(app, views, access)
    _register_search(app, views)
    page_fleet.register(app, views)
    page_cost.register(app)
    page_workloads.register(app, views)
    page_node.register(app, views, access, page_plan.register(app, views, access))
    return app


def open_server(app: Dash, *, host: str, port: int, tls: TlsContexts | None = None) -> Server:
    """Listens; nothing is answered before `run`.

    Args:
        port: port; 0 lets the system choose.
        tls: gives the context for a new connection; None for plain HTTP.

    Raises:
        Unavailable: another process listens there.
        Misconfigured: this machine has no such address.
    """
    listener = listen(host, port, setting="dashboard.port (0: any free one)")
    scheme = "http" if tls is None else "https"
    limits = ServerLimits(
        connections_max=CONNECTIONS_MAX,
        parked_max=PARKED_MAX,
        body_bytes_max=BODY_BYTES_MAX,
        pending_bytes_max=PENDING_BYTES_MAX,
        idle_seconds=_IDLE_SECONDS_MAX,
        request_seconds=REQUEST_SECONDS_MAX,
        answer_seconds=_ANSWER_SECONDS_MAX,
        slow_seconds=_SLOW_SECONDS,
    )
    bound = (host, int(listener.getsockname()[1]))
    is_known = getattr(app.server, "extensions", {}).get(_KNOWN)
    answer = wsgi(
        app.server, address=bound, scheme=scheme, threads=_THREADS, is_known=is_known, health_path=HEALTH_PATH
    )
    return _Listening(HttpServer(listener, answer, limits=limits, tls=tls, is_first=is_known), scheme, bound)


class _Pages(Dash):
    """An app whose document says which language it is in."""

    def interpolate_index(self, *parts: str, **named: str) -> str:
        made: str = super().interpolate_index(*parts, **named)  # type: ignore[no-untyped-call]
        return made.replace('<html lang="en">', f'<html lang="{READING.get()}">', 1)


class _Listening:
    def __init__(self, server: HttpServer, scheme: str, bound: tuple[str, int]) -> None:
        self._server = server
        host, port = bound
        self.address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}/"

    def run(self) -> None:
        self._server.serve()

    def close(self) -> None:
        self._server.stop(grace_seconds=_STOP_SECONDS)


def _register_pages(app: Dash, views: Views, access: Access) -> None:
    @app.callback(
        Output("top", "children"),
        Output("page", "children"),
        Output("page-key", "data"),
        Output("again", "max_intervals"),
        Input("address", "pathname"),
        Input("address", "search"),
        Input("again", "n_intervals"),
        State("page-key", "data"),
    )
    def _route(path: str | None, search: str | None, asked: int | None, shown: str | None) -> Any:
        address = read_address(path, search)
        page = _PAGES.get(address.path)
        keys = page.KEYS if page is not None else ()
        key = repr((address.path, [address.get(name) for name in keys]))
        if key == shown:
            return no_update, no_update, no_update, no_update
        top, body, is_made = _page(views, address, page, reader_of(access))
        if is_made:
            return top, body, key, 0
        # What somebody types on top stays while the page waits. One request that is lost does not end the waiting.
        return no_update if ctx.triggered_id == "again" else top, body, None, (asked or 0) + _AGAIN_TIMES

    @app.callback(Output("top", "className"), Input("address", "pathname"))
    def _shade(path: str | None) -> str:
        return "top" if path in _PAGES else "top unknown"


def reader_of(access: Access) -> Reader:
    """Who reads, as the bar on top shows it."""
    person = access.who()
    role = person.highest_role
    return Reader(name=person.name, role="" if role is None else role.value, can_sign_out=access.can_sign_out())


def _page(views: Views, address: Address, page: ModuleType | None, reader: Reader) -> tuple[Any, Any, bool]:
    """Bar and body, and whether that is all; an error of the house takes the place of what could not be shown."""
    clusters: tuple[str, ...] = ()
    profiles: Profiles | None = None
    freshness: Freshness | None = None
    is_made = True
    try:
        clusters = views.fleet.clusters()
        if not clusters:
            body = missing(say("frame.no_data_yet"), say("frame.no_cluster_sent_anything_so_far"), "gputide demo")
        else:
            cluster = address.get("cluster") or clusters[0]
            profiles = views.fleet.profiles(cluster)
            freshness = views.fleet.freshness(cluster)
            body = (
                missing(say("frame.no_such_page"), say("frame.no_page_at_path", path=address.path), "gputide serve")
                if page is None
                else page.layout(views, address, profiles)
            )
    except NotEnoughData as exc:
        body = missing(say("frame.not_enough_data"), str(exc), "gputide workloads")
    except NotAllowed as exc:
        body = not_allowed(exc.said, reader)
    except NotMadeYet as exc:
        body = not_made_yet(exc.said)
        is_made = False
    except GputideError as exc:
        body = failure(exc.said)
    return top_bar(address, clusters, profiles, freshness, reader), body, is_made


def _register_search(app: Dash, views: Views) -> None:
    @app.callback(
        Output("search-results", "children"),
        Input("search", "value"),
        Input("address", "href"),
        State("address", "pathname"),
        State("address", "search"),
        prevent_initial_call=True,
    )
    def _search(text: str | None, _href: str, path: str, query: str) -> Any:
        address = read_address(path, query)
        if not text or not text.strip():
            return None
        try:
            profiles = views.fleet.profiles(address.get("cluster") or views.fleet.clusters()[0])
        except (GputideError, IndexError):
            return html.P(say("frame.no_data_search_yet"), className="soft")
        bare = Address(path="", query=tuple(pair for pair in address.query if pair[0] in ("cluster", "lang")))
        hits = search_fleet(profiles, text)
        return [
            dcc.Link(
                [html.Small(say_code("term", hit.kind)), html.Span(hit.text)],
                href=bare.href(hit.path, **dict(hit.query)),
                className="hit",
            )
            for hit in hits
        ] or html.P(say("frame.nothing_called_so"), className="soft")


def _guard(app: Dash, hosts: frozenset[str], *, public_url: str | None, is_secure: bool) -> None:
    """Checks before every answer, and the headers after it."""
    policy = "; ".join(
        (
            "default-src 'self'",
            "script-src 'self' " + " ".join(app.csp_hashes()),
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "worker-src 'self' blob:",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        )
    )

    public = None if public_url is None else urlsplit(public_url).netloc

    def _check() -> Response | None:
        if request.path == HEALTH_PATH:
            return Response("ok\n", mimetype="text/plain")
        if _name_of(f"http://{request.host}") not in hosts:
            return _turned_away("this host name is not one of dashboard.host")
        if request.method in _WRITING_METHODS:
            origin = request.headers.get("Origin")
            if origin is not None and _place_of(origin) not in (request.host, public):
                return _turned_away("the request comes from another origin")
            if request.headers.get("Sec-Fetch-Site", "same-origin") not in ("same-origin", "none"):
                return _turned_away("the request comes from another site")
            if request.mimetype != "application/json" and request.path not in (SIGN_IN_PATH, SIGN_OUT_PATH):
                return _turned_away("the request is not JSON")
        return None

    def _headers(response: Response) -> Response:
        response.headers["Content-Security-Policy"] = policy
        response.headers["X-Content-Type-Options"] = "nosniff"
        # Not no-referrer: browsers then send no origin with a form, and ours could not be distinguished from a
        # stranger's.
        response.headers["Referrer-Policy"] = "same-origin"
        response.headers["X-Frame-Options"] = "DENY"
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        response.headers["Cross-Origin-Opener-Policy"] = "same-origin"
        if not request.path.startswith(OPEN_PREFIXES):
            # What one person saw stands in no cache for the next.
            response.headers["Cache-Control"] = "no-store"
        if is_secure:
            response.headers["Strict-Transport-Security"] = "max-age=31536000"
        return response

    def _no_such_file(_: Exception) -> Response:
        return plain_answer("there is no such file", 404)

    # Dash raises for a library that it does not know, and anybody may ask for one.
    app.server.register_error_handler(DependencyException, _no_such_file)
    app.server.before_request(_check)
    app.server.after_request(_headers)


def _name_of(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _place_of(origin: str) -> str:
    """Host and port of an origin; empty for what is none."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


def _turned_away(reason: str) -> Response:
    return plain_answer(f"cannot answer: {reason}", 403)


_INDEX = """<!DOCTYPE html>
<html lang="en">
<head>{%metas%}<title>{%title%}</title>{%favicon%}<style>{%tokens%}</style>{%css%}</head>
<body>{%app_entry%}<footer>{%config%}{%scripts%}{%renderer%}</footer></body>
</html>
"""
