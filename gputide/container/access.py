"""Opens the web app as the settings say: who may use it and how people are known, TLS, names and port."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from dashboards.access.proxy import TrustedProxy
from dashboards.access.roster import Roster
from dashboards.access.sessions import Sessions
from dashboards.access.sign_in import RETURN_PATH, SignIn, Ways
from dashboards.app import LOOPBACK_NAMES, Server, create_app, open_server
from dashboards.assistant.route import Offer
from dashboards.queries import Views
from fleet.addresses import host_and_port
from fleet.errors import Misconfigured
from fleet.settings.dashboard import Access, DashboardSettings, UsageApiSettings
from wire.http_server import TlsContexts
from wire.listener_tls import ListenerContexts

if TYPE_CHECKING:
    from dashboards.usage_api.server import UsageServer


def open_web_app(
    views: Views, settings: DashboardSettings, *, operator: str, assistant: Offer | None = None, port: int | None = None
) -> Server:
    """The web app, listening; on `dashboard.port` unless a port is given.

    Args:
        operator: login name of the person who started the app; its only user where nobody else can reach it.
        assistant: what answers assistants; None where their SDK is not installed.
        port: 0 picks a free one.

    Raises:
        Misconfigured: a file of rights or of TLS can't be read.
        Unavailable: another process listens on the port.
    """
    pages = create_app(
        views,
        ways=ways_in(settings, operator=operator),
        hosts=_names_of(settings),
        public_url=settings.public_url,
        assistant=assistant,
    )
    _allow_many_sockets()
    return open_server(pages, host=settings.host, port=settings.port if port is None else port, tls=_tls(settings))


def _allow_many_sockets() -> None:
    """As many open files as the system lets this process have: strangers' sockets must not use up a low limit."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextmanager
def usage_api(views: Views, settings: UsageApiSettings, *, cluster: Callable[[], str]) -> Iterator[UsageServer | None]:
    """Serves the Kubernetes API server while the caller goes on; None where `usage_api.listen` names no port.

    Args:
        cluster: name of the cluster whose API server asks.

    Raises:
        Misconfigured: a file of TLS can't be read, or this machine has no such address.
        Unavailable: another process listens there.
    """
    if settings.listen is None:
        yield None
        return
    from dashboards.usage_api.server import UsageApi, UsageServer

    host, port = host_and_port(settings.listen)
    files = settings.files("usage_api", None)
    tls = ListenerContexts(files, needs_client=True, now_seconds=time.monotonic)
    api = UsageApi(views, cluster=cluster, front_proxy_names=settings.front_proxy_names)
    with UsageServer(api, host=host, port=port, tls=tls.context) as server:
        yield server


def ways_in(settings: DashboardSettings, *, operator: str) -> Ways:
    """How people are known.

    Args:
        operator: login name of the person who started the app; its only user where nobody else can reach it.

    Raises:
        Misconfigured: a file can't be read.
    """
    if settings.access is Access.NONE:
        return Ways(operator=operator)
    if settings.rights_file is None:
        raise Misconfigured(f"cannot know anybody: dashboard.access={settings.access}, dashboard.rights_file=none")
    sessions = Sessions(
        idle_seconds_max=settings.session_idle_seconds_max,
        seconds_max=settings.session_seconds_max,
        clock=time.monotonic,
    )
    return Ways(
        roster=Roster(settings.rights_file),
        sessions=None if settings.access is Access.PROXY else sessions,
        proxy=_proxy(settings) if settings.access is Access.PROXY else None,
        provider=_provider(settings) if settings.access is Access.OIDC else None,
        is_secure=settings.tls_certificate_file is not None or (settings.public_url or "").startswith("https://"),
    )


def _tls(settings: DashboardSettings) -> TlsContexts | None:
    """What gives the web app's TLS context; None where it speaks plain HTTP.

    Where `dashboard.client_ca_file` says whose, a browser (or the proxy in front) needs a certificate too.

    Raises:
        Misconfigured: a file of it can't be used.
    """
    if settings.tls_certificate_file is None:
        return None
    files = settings.files("dashboard", None)
    return ListenerContexts(files, needs_client=True, now_seconds=time.monotonic).context


def _names_of(settings: DashboardSettings) -> tuple[str, ...]:
    """Names, without port, under which the app may be asked for."""
    public = None if settings.public_url is None else urlsplit(settings.public_url).hostname
    return (*LOOPBACK_NAMES, settings.host, *(() if public is None else (public,)))


def _proxy(settings: DashboardSettings) -> TrustedProxy:
    return TrustedProxy(
        settings.proxy_networks, user_header=settings.proxy_user_header, groups_header=settings.proxy_groups_header
    )


def _provider(settings: DashboardSettings) -> SignIn:
    from dashboards.access.oidc import OidcSignIn, Provider

    if settings.oidc_issuer is None or settings.oidc_client_id is None or settings.public_url is None:
        raise Misconfigured(
            "cannot sign people in by OpenID Connect: oidc_issuer, oidc_client_id and public_url belong together"
        )
    secret = None
    if settings.oidc_client_secret_file is not None:
        try:
            secret = settings.oidc_client_secret_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise Misconfigured(
                f"cannot read dashboard.oidc_client_secret_file={settings.oidc_client_secret_file}: {exc}"
            ) from exc
    return OidcSignIn(
        Provider(
            issuer=settings.oidc_issuer,
            client_id=settings.oidc_client_id,
            client_secret=secret or None,
            redirect_url=settings.public_url + RETURN_PATH,
            scopes=settings.oidc_scopes,
            name_claim=settings.oidc_name_claim,
            groups_claim=settings.oidc_groups_claim,
            ca_file=settings.oidc_ca_file,
        )
    )
