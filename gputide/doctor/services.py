"""The areas receiver, relief, dashboard and notify: what their verbs would read at their start, and whom they reach.

Nothing is sent to anybody beyond a connection or a question that changes nothing; addresses of chat hooks are secrets,
so that of them the host alone is told.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from http import HTTPStatus
from importlib.util import find_spec
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import urlsplit

from fleet.errors import GputideError, Misconfigured, Unavailable
from fleet.sentences import Sentence, sentence
from fleet.settings.dashboard import Access
from fleet.settings.notify import ChannelKind, ChannelSettings, NotifySettings
from fleet.settings.settings import Settings
from gputide.container.prometheus import instant_query
from gputide.container.receiver import receiver_guard, receiver_senders, receiver_tls
from gputide.doctor.finding import Area, Check, Diagnosis, a_check, finding, otherwise, some, unchecked, well
from wire.http_answer import read_body
from wire.http_client import Endpoint, HttpClient, Request, endpoint_of
from wire.tls import Tls

CONNECT_SECONDS = 5.0
_AGENT = "gputide-doctor"
_ANSWER_BYTES_MAX = 1 << 20
_WIDEST_PREFIX = 1
_AGENTS_MAX = 50
"""Addresses of one name that are tried."""


def receiver_checks(settings: Settings) -> tuple[Check, ...]:
    """What is looked at of the receiver's settings."""
    codes = "receiver-open receiver-tls receiver-clear-text"
    return (a_check(Area.RECEIVER, "senders", lambda: _receiver(settings), codes),)


def relief_checks(settings: Settings) -> tuple[Check, ...]:
    """What is looked at of relief: its agents, and the objectives of relief and of the watch after a change."""
    return (
        a_check(Area.RELIEF, "agents", lambda: _agents(settings), "relief-agent-unreachable"),
        a_check(Area.RELIEF, "objectives", lambda: _objectives(settings), "objective-unusable"),
    )


def dashboard_checks(settings: Settings) -> tuple[Check, ...]:
    """What is looked at of the web app's settings."""
    codes = "access-unusable oidc-unreachable proxy-anybody"
    return (a_check(Area.DASHBOARD, "access", lambda: _access(settings), codes),)


def notify_checks(settings: Settings) -> tuple[Check, ...]:
    """What is looked at of each channel; a check of its own each, as any may hang."""
    codes = "channel-unusable channel-unreachable channel-unused"
    if not settings.notify.channels:
        none = unchecked(sentence("doctor.found.no_channels"))
        return (a_check(Area.NOTIFY, "channels", lambda: (none,), codes),)
    return tuple(
        a_check(Area.NOTIFY, f"channel {name}", partial(_channel, settings.notify, name), codes)
        for name in settings.notify.channels
    )


def _receiver(settings: Settings) -> Iterator[Diagnosis]:
    receiver = settings.receiver
    try:
        tls = receiver_tls(settings)
        senders = receiver_senders(settings)
        receiver_guard(settings)
    except GputideError as exc:
        yield finding("receiver-tls", exc.said)
        return
    is_asked = receiver.tokens_file is not None or receiver.client_ca_file is not None
    if receiver.insecure_listen and not is_asked:
        yield finding("receiver-open", "receiver.insecure_listen=true")
    elif receiver.tokens_file is not None and tls is None:
        yield finding("receiver-clear-text", sentence("doctor.found.clear_text"))
    elif is_asked:
        yield well(sentence("doctor.found.senders", senders=len(senders.names)))
    else:
        yield well(sentence("doctor.found.local_senders"))


def _agents(settings: Settings) -> Iterator[Diagnosis]:
    """Whether agents answer; the address of a whole service stands for many."""
    reasons, healthy = [], 0
    for url in settings.relief.agents:
        parts = urlsplit(url)
        try:
            places = socket.getaddrinfo(parts.hostname, parts.port or 9478, type=socket.SOCK_STREAM)
        except (OSError, ValueError) as exc:
            reasons.append(f"{parts.hostname}: {exc}")
            continue
        for *_, place in places[:_AGENTS_MAX]:
            trouble = _agent_trouble(str(place[0]), int(place[1]), is_plain=parts.scheme == "http")
            if trouble is None:
                healthy += 1
            else:
                reasons.append(f"{place[0]}: {trouble}")
    if reasons or not healthy:
        text = sentence("doctor.found.agents_part", agents=healthy, reasons=some(reasons))
        yield finding("relief-agent-unreachable", text, subject=some(settings.relief.agents))
    yield otherwise(sentence("doctor.found.agents", agents=healthy))


def _agent_trouble(host: str, port: int, *, is_plain: bool) -> Sentence | str | None:
    """Why an agent does not answer; None where it does. One that speaks TLS is asked for no more than a connection."""
    http = HttpClient(Endpoint(host=host, port=port), _AGENT, is_kept=False)
    try:
        if not is_plain:
            http.reach(CONNECT_SECONDS)
            return None
        with http.ask(Request(path="/healthz", seconds_max=CONNECT_SECONDS)) as answer:
            is_well = answer.status == HTTPStatus.OK
            return None if is_well else sentence("doctor.found.status", status=str(answer.status))
    except Unavailable as exc:
        return exc.said


def _objectives(settings: Settings) -> Iterator[Diagnosis]:
    asked = 0
    for setting, url, queries in (
        ("relief.prometheus_url", settings.relief.prometheus_url, settings.relief.slo_queries),
        ("enforcer.watch_prometheus_url", settings.enforcer.watch_prometheus_url, settings.enforcer.watch_queries),
    ):
        if url is None:
            if queries:
                text = sentence("doctor.found.no_queries", setting=setting, queries=len(queries))
                yield finding("objective-unusable", text, subject=setting, url="URL")
            continue
        for query in queries or ("vector(1)",):
            asked += 1
            try:
                with closing(instant_query(url, setting, settings.prometheus)) as prometheus:
                    prometheus.vector(query)
            except (Unavailable, Misconfigured) as exc:
                yield finding("objective-unusable", exc.said, subject=setting, url=url)
    yield otherwise(sentence("doctor.found.queries", queries=asked))


def _access(settings: Settings) -> Iterator[Diagnosis]:
    dashboard = settings.dashboard
    if find_spec("dash") is None:
        yield unchecked(sentence("doctor.found.extra_dashboards"))
        return
    from gputide.container.access import ways_in

    try:
        ways_in(dashboard, operator="doctor")
    except GputideError as exc:
        yield finding("access-unusable", exc.said)
        return
    wide = [text for text in dashboard.proxy_networks if ip_network(text).prefixlen < _WIDEST_PREFIX]
    if dashboard.access is Access.PROXY and wide:
        yield finding("proxy-anybody", sentence("doctor.found.proxy", names=some(wide)))
    if dashboard.access is Access.OIDC and dashboard.oidc_issuer is not None:
        trouble = _oidc_trouble(dashboard.oidc_issuer, dashboard.oidc_ca_file)
        if trouble is not None:
            yield finding("oidc-unreachable", trouble, subject=dashboard.oidc_issuer, url=dashboard.oidc_issuer)
    where = sentence("doctor.found.access", place=f"{dashboard.host}:{dashboard.port}", access=dashboard.access.value)
    yield otherwise(where)


def _oidc_trouble(issuer: str, ca_file: Path | None) -> Sentence | None:
    """What stands against signing in (OpenID Connect Discovery 1.0, section 4); None where nothing does."""
    issuer = issuer.rstrip("/")
    path = "/.well-known/openid-configuration"
    url = f"{issuer}{path}"
    try:
        endpoint = endpoint_of(issuer, setting="dashboard.oidc_issuer", tls=Tls(authority_file=ca_file))
        asked = Request(path=path, seconds_max=CONNECT_SECONDS)
        with HttpClient(endpoint, _AGENT, is_kept=False).ask(asked) as answer:
            body = read_body(answer, _ANSWER_BYTES_MAX)
        if answer.status != HTTPStatus.OK:
            why = sentence("doctor.found.status", status=str(answer.status))
            return sentence("doctor.found.cannot_read", url=url, why=why)
        document = json.loads(body)
    except (GputideError, ValueError, RecursionError) as exc:
        return sentence("doctor.found.cannot_read", url=url, why=str(exc))
    told = document.get("issuer") if isinstance(document, dict) else None
    if str(told).rstrip("/") == issuer:
        return None
    return sentence("doctor.found.issuer", url=url, told=repr(told), issuer=repr(issuer))


def _channel(notify: NotifySettings, name: str) -> Iterator[Diagnosis]:
    """Whether a channel of messages can be opened and reached."""
    channel = notify.channels[name]
    # It loads the formats of all services.
    from gputide.container.notify import open_channel

    try:
        open_channel(name, notify)
        host, port, is_tls = _place(channel)
    except (GputideError, ValueError) as exc:
        yield finding("channel-unusable", str(exc), subject=name, channel=name)
        return
    tls = Tls(authority_file=channel.ca_file, certificate_file=channel.certificate_file, key_file=channel.key_file)
    try:
        HttpClient(Endpoint(host=host, port=port, tls=tls if is_tls else None), _AGENT).reach(CONNECT_SECONDS)
    except (Unavailable, Misconfigured) as exc:
        text = f"{host}:{port}: {exc}"
        yield finding("channel-unreachable", text, subject=name, host=host, port=str(port))
        return
    if name not in {*notify.everything, *(one for team in notify.teams.values() for one in team.channels)}:
        yield finding("channel-unused", sentence("doctor.found.no_receiver"), subject=name, channel=name)
    yield otherwise(sentence("doctor.found.connections", host=host, port=str(port)), name)


def _place(channel: ChannelSettings) -> tuple[str, int, bool]:
    """Host, port, and whether TLS begins at once."""
    if channel.kind is ChannelKind.MAIL or channel.url_file is None:
        return channel.host or "", channel.port, channel.security.value == "tls"
    parts = urlsplit(channel.url_file.read_text(encoding="utf-8").strip())
    is_tls = parts.scheme == "https"
    return parts.hostname or "", parts.port or (443 if is_tls else 80), is_tls
