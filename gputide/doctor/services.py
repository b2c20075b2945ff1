"""The areas receiver, relief, dashboard and notify: what their verbs would read at their start, and whom they reach.

Nothing is sent to anybody beyond a connection or a question that changes nothing; addresses of chat hooks are secrets,
so that of them the host alone is told.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from importlib.util import find_spec
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import urlsplit

from fleet.errors import GputideError, Misconfigured, Unavailable
from fleet.sentences import Sentence, sentence
from fleet.settings.dashboard import Access
from fleet.settings.notify import ChannelKind
from fleet.settings.settings import Settings
from gputide.container.prometheus import instant_query
from gputide.container.receiver import receiver_guard, receiver_senders, receiver_tls
from gputide.doctor.catalogue import kind_of
from gputide.doctor.finding import Area, Check, Diagnosis, finding, some, unchecked, well
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
    codes = ("receiver-open", "receiver-tls", "receiver-clear-text")
    return (Check(area=Area.RECEIVER, name="senders", look=lambda: _receiver(settings), codes=codes),)


def relief_checks(settings: Settings) -> tuple[Check, ...]:
    """What is looked at of relief: its agents, and the objectives of relief and of the watch after a change."""
    area = Area.RELIEF
    return (
        Check(area=area, name="agents", look=lambda: _agents(settings), codes=("relief-agent-unreachable",)),
        objectives_check(settings),
    )


def objectives_check(settings: Settings) -> Check:
    """Whether queries of latency objectives can be asked."""
    return Check(area=Area.RELIEF, name="objectives", look=lambda: _objectives(settings), codes=("objective-unusable",))


def dashboard_checks(settings: Settings) -> tuple[Check, ...]:
    """What is looked at of the web app's settings."""
    codes = ("access-unusable", "oidc-unreachable", "proxy-anybody")
    return (Check(area=Area.DASHBOARD, name="access", look=lambda: _access(settings), codes=codes),)


def notify_checks(settings: Settings) -> tuple[Check, ...]:
    """What is looked at of each channel; a check of its own each, as any may hang."""
    codes = ("channel-unusable", "channel-unreachable", "channel-unused")
    if not settings.notify.channels:
        none = unchecked(Area.NOTIFY, "channels", sentence("doctor.found.no_channels"))
        return (Check(area=Area.NOTIFY, name="channels", look=lambda: (none,), codes=codes),)
    return tuple(
        Check(area=Area.NOTIFY, name=f"channel {name}", look=_Channel(settings, name), codes=codes)
        for name in settings.notify.channels
    )


def _receiver(settings: Settings) -> Iterator[Diagnosis]:
    receiver, check = settings.receiver, "senders"
    try:
        tls = receiver_tls(settings)
        senders = receiver_senders(settings)
        receiver_guard(settings)
    except GputideError as exc:
        yield finding(kind_of("receiver-tls"), check, exc.said)
        return
    is_asked = receiver.tokens_file is not None or receiver.client_ca_file is not None
    if receiver.insecure_listen and not is_asked:
        yield finding(kind_of("receiver-open"), check, "receiver.insecure_listen=true")
    elif receiver.tokens_file is not None and tls is None:
        yield finding(kind_of("receiver-clear-text"), check, sentence("doctor.found.clear_text"))
    else:
        who = (
            sentence("doctor.found.senders", senders=len(senders.names))
            if is_asked
            else sentence("doctor.found.local_senders")
        )
        yield well(Area.RECEIVER, check, who)


def _agents(settings: Settings) -> Iterator[Diagnosis]:
    """Whether agents answer; the address of a whole service stands for many."""
    check = "agents"
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
        yield finding(kind_of("relief-agent-unreachable"), check, text, subject=some(settings.relief.agents))
    else:
        yield well(Area.RELIEF, check, sentence("doctor.found.agents", agents=healthy))


def _agent_trouble(host: str, port: int, *, is_plain: bool) -> Sentence | str | None:
    """Why an agent does not answer; None where it does. One that speaks TLS is asked for no more than a connection."""
    http = HttpClient(Endpoint(host=host, port=port), _AGENT, is_kept=False)
    try:
        if not is_plain:
            http.reach(CONNECT_SECONDS)
            return None
        with http.ask(Request(path="/healthz", seconds_max=CONNECT_SECONDS)) as answer:
            return (
                None if answer.status == HTTPStatus.OK else sentence("doctor.found.status", status=str(answer.status))
            )
    except Unavailable as exc:
        return exc.said


def _objectives(settings: Settings) -> Iterator[Diagnosis]:
    check, is_well = "objectives", True
    asked = 0
    for setting, url, queries in (
        ("relief.prometheus_url", settings.relief.prometheus_url, settings.relief.slo_queries),
        ("enforcer.watch_prometheus_url", settings.enforcer.watch_prometheus_url, settings.enforcer.watch_queries),
    ):
        if url is None:
            if queries:
                is_well = False
                text = sentence("doctor.found.no_queries", setting=setting, queries=len(queries))
                yield finding(kind_of("objective-unusable"), check, text, subject=setting, url="URL")
            continue
        for query in queries or ("vector(1)",):
            asked += 1
            try:
                with closing(instant_query(url, setting, settings.prometheus)) as prometheus:
                    prometheus.vector(query)
            except (Unavailable, Misconfigured) as exc:
                is_well = False
                yield finding(kind_of("objective-unusable"), check, exc.said, subject=setting, url=url)
    if is_well:
        yield well(Area.RELIEF, check, sentence("doctor.found.queries", queries=asked))


def _access(settings: Settings) -> Iterator[Diagnosis]:
    dashboard, check = settings.dashboard, "access"
    if find_spec("dash") is None:
        yield unchecked(Area.DASHBOARD, check, sentence("doctor.found.extra_dashboards"))
        return
    from gputide.container.access import ways_in

    try:
        ways_in(dashboard, operator="doctor")
    except GputideError as exc:
        yield finding(kind_of("access-unusable"), check, exc.said)
        return
    found: list[Diagnosis] = []
    wide = [text for text in dashboard.proxy_networks if ip_network(text).prefixlen < _WIDEST_PREFIX]
    if dashboard.access is Access.PROXY and wide:
        found.append(finding(kind_of("proxy-anybody"), check, sentence("doctor.found.proxy", names=some(wide))))
    if dashboard.access is Access.OIDC and dashboard.oidc_issuer is not None:
        trouble = _oidc_trouble(dashboard.oidc_issuer, dashboard.oidc_ca_file)
        if trouble is not None:
            kind = kind_of("oidc-unreachable")
            found.append(finding(kind, check, trouble, subject=dashboard.oidc_issuer, url=dashboard.oidc_issuer))
    where = sentence("doctor.found.access", place=f"{dashboard.host}:{dashboard.port}", access=dashboard.access.value)
    yield from found or [well(Area.DASHBOARD, check, where)]


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


@dataclass(frozen=True, slots=True, kw_only=False)
class _Channel:
    """One channel, as a look."""

    settings: Settings
    name: str

    def __call__(self) -> Iterator[Diagnosis]:
        notify, check = self.settings.notify, f"channel {self.name}"
        channel = notify.channels[self.name]
        # It loads the formats of all services.
        from gputide.container.notify import open_channel

        try:
            open_channel(self.name, notify)
            host, port, is_tls = self._place()
        except (GputideError, ValueError) as exc:
            yield finding(kind_of("channel-unusable"), check, str(exc), subject=self.name, channel=self.name)
            return
        tls = Tls(authority_file=channel.ca_file, certificate_file=channel.certificate_file, key_file=channel.key_file)
        try:
            HttpClient(Endpoint(host=host, port=port, tls=tls if is_tls else None), _AGENT).reach(CONNECT_SECONDS)
        except (Unavailable, Misconfigured) as exc:
            text = f"{host}:{port}: {exc}"
            kind = kind_of("channel-unreachable")
            yield finding(kind, check, text, subject=self.name, host=host, port=str(port))
            return
        named = {*notify.everything, *(one for team in notify.teams.values() for one in team.channels)}
        if self.name in named:
            yield well(Area.NOTIFY, check, sentence("doctor.found.connections", host=host, port=str(port)), self.name)
        else:
            yield finding(
                kind_of("channel-unused"),
                check,
                sentence("doctor.found.no_receiver"),
                subject=self.name,
                channel=self.name,
            )

    def _place(self) -> tuple[str, int, bool]:
        """Host, port, and whether TLS begins at once."""
        channel = self.settings.notify.channels[self.name]
        if channel.kind is ChannelKind.MAIL or channel.url_file is None:
            return channel.host or "", channel.port, channel.security.value == "tls"
        parts = urlsplit(channel.url_file.read_text(encoding="utf-8").strip())
        is_tls = parts.scheme == "https"
        return parts.hostname or "", parts.port or (443 if is_tls else 80), is_tls
