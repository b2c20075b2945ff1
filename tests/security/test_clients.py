"""Every client of ours checks who answers, shows what it is asked for, and carries its token to nobody else."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from dashboards.access import oidc
from dashboards.notify.chat_formats import Hook, webhook
from dashboards.notify.delivery_http import HttpDelivery
from enforcer.relief.feed_agents import AgentFeed
from fleet.errors import Misconfigured, Refused, Unavailable
from fleet.listener_files import ListenerFiles
from fleet.settings.prometheus import PrometheusSettings
from gputide.container.prometheus import instant_query
from pipeline.flink.rest import FlinkRest
from tests.dashboards.notify.build import message
from tests.security.authority import Authority, Pair
from tests.security.listeners import agent
from tests.waiting import until
from wire.credentials import TokenFile
from wire.own_network import is_metadata, is_own_network
from wire.tls import Tls

TOKEN = "a-token-of-32-letters-and-digits"
VECTOR = {"status": "success", "data": {"resultType": "vector", "result": []}}
Ask = Callable[[str, Tls, Path], object]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    answer: dict[str, Any]
    seen: list[tuple[str, str | None]]
    leads_to: str | None = None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A handshake that fails is what is tested."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        body = json.dumps(self.server.answer).encode()
        self.server.seen.append((self.path, self.headers.get("Authorization")))
        self.send_response(200 if self.server.leads_to is None else 307)
        if self.server.leads_to is not None:
            self.send_header("Location", self.server.leads_to)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serving(pair: Pair, client_authority: Authority | None, answer: dict[str, Any]) -> Iterator[_Server]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    if client_authority is not None:
        context.load_verify_locations(client_authority.file)
        context.verify_mode = ssl.CERT_REQUIRED
    server = _Server(("127.0.0.1", 0), _Handler)
    server.answer, server.seen = answer, []
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask_prometheus(url: str, tls: Tls, token: Path) -> object:
    way = PrometheusSettings(
        ca_file=tls.authority_file,
        certificate_file=tls.certificate_file,
        key_file=tls.key_file,
        bearer_token_file=token,
    )
    with closing(instant_query(url, "x", way)) as prometheus:
        return prometheus.vector("up")


def ask_flink(url: str, tls: Tls, token: Path) -> object:
    del token
    return FlinkRest(url, tls).job_state("a")


CLIENTS: dict[str, tuple[Ask, dict[str, Any]]] = {
    "prometheus": (ask_prometheus, VECTOR),
    "flink": (ask_flink, {"state": "RUNNING"}),
}


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.mark.parametrize("client", CLIENTS)
def test_client_shows_its_certificate_and_believes_no_stranger(client: str, tmp_path: Path, token: Path) -> None:
    ask, answer = CLIENTS[client]
    ours, stranger = Authority(tmp_path, "ours"), Authority(tmp_path, "stranger")
    own = ours.pair("client")
    good = Tls(authority_file=ours.file, certificate_file=own.certificate, key_file=own.key)
    with serving(ours.pair("server"), ours, answer) as server:
        url = f"https://localhost:{server.server_address[1]}"
        ask(url, good, token)
        other = stranger.pair("client")
        for wrong in (
            replace(good, authority_file=stranger.file),
            replace(good, certificate_file=None, key_file=None),
            replace(good, certificate_file=other.certificate, key_file=other.key),
            Tls(),
        ):
            with pytest.raises(Unavailable):
                ask(url, wrong, token)
        assert len(server.seen) == 1
    with serving(ours.pair("server", is_expired=True), None, answer) as server, pytest.raises(Unavailable):
        ask(f"https://localhost:{server.server_address[1]}", good, token)


def test_token_goes_to_the_server_that_was_named_and_follows_no_redirect(tmp_path: Path, token: Path) -> None:
    ours = Authority(tmp_path, "ours")
    tls = Tls(authority_file=ours.file)
    with serving(ours.pair("server"), None, VECTOR) as named, serving(ours.pair("server"), None, VECTOR) as other:
        url = f"https://localhost:{named.server_address[1]}"
        ask_prometheus(url, tls, token)
        named.leads_to = f"https://localhost:{other.server_address[1]}/api/v1/query"
        with pytest.raises(Unavailable, match="307"):
            ask_prometheus(url, tls, token)
        assert named.seen == [("/api/v1/query", f"Bearer {TOKEN}")] * 2
        assert other.seen == []


def test_relief_hears_an_agent_over_mutual_tls_with_a_token_and_no_other(tmp_path: Path, token: Path) -> None:
    ours, stranger = Authority(tmp_path, "ours"), Authority(tmp_path, "stranger")
    own, client = ours.pair("gputide-agent"), ours.pair("relief")
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{TOKEN} relief\n")
    files = ListenerFiles(
        section="agent", certificate_file=str(own.certificate), key_file=str(own.key), tokens_file=str(tokens)
    )
    with_certificates = replace(files, client_ca_file=str(ours.file), tokens_file=None)
    by_token = Tls(authority_file=ours.file, server_name="gputide-agent")
    by_certificate = replace(by_token, certificate_file=client.certificate, key_file=client.key)
    for port_files, tls, credentials, is_heard in (
        (files, by_token, TokenFile(token), True),
        (files, by_token, None, False),
        (files, replace(by_token, authority_file=stranger.file), TokenFile(token), False),
        (files, replace(by_token, server_name="another"), TokenFile(token), False),
        (with_certificates, by_certificate, None, True),
    ):
        with agent(port_files, time.monotonic, tmp_path) as (port, _):
            feed = AgentFeed([f"https://127.0.0.1:{port}"], wait_seconds=0.5, tls=tls, credentials=credentials)
            feed.start()
            try:
                until(lambda found=feed: found.silent == 1 or found.views(0.0) != {})  # type: ignore[misc]
                assert (feed.silent == 0) is is_heard
            finally:
                feed.close()


@pytest.mark.parametrize("ask", [ask_prometheus, ask_flink])
@pytest.mark.parametrize("answer", [b"garbage\r\n\r\n", b"HTTP/1.1 500 no\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"])
def test_server_that_speaks_no_http_is_unavailable(ask: Ask, answer: bytes, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as opened:
                opened.recv(65536)
                opened.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(Unavailable, match="cannot ask"):
            ask(f"http://127.0.0.1:{listener.getsockname()[1]}", Tls(), tmp_path / "token")
        thread.join()


@pytest.mark.parametrize(
    "host",
    [
        "169.254.169.254",
        "[fe80::1]",
        "fd00:ec2::254",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b::169.254.169.254",
        "64:ff9b:1::a9fe:a9fe",
        "2002:a9fe:a9fe::1",
        "::169.254.169.254",
        "64:ff9b::6464:64c8",
        "metadata.google.internal.",
        "METADATA",
        "2852039166",
        "0xa9fea9fe",
        "0251.0376.0251.0376",
        "169.254.43518",
        "\uff11\uff16\uff19.254.169.254",
        "169\u3002254\u3002169\u3002254",
    ],
)
def test_metadata_services_of_clouds_are_known_however_they_are_written(host: str) -> None:
    assert is_metadata(host)
    assert is_own_network(host)


@pytest.mark.parametrize(
    "host", ["127.1", "0", "::1", "2130706433", "app.localhost", "64:ff9b::7f00:1", "2002:7f00:1::"]
)
def test_this_machine_is_known_however_it_is_written(host: str) -> None:
    assert is_own_network(host)
    assert not is_metadata(host)


@pytest.mark.parametrize(
    "host", ["10.0.0.1", "sso.example.com", "192.168.1.1", "example.localhost.com", "64:ff9b::808:808", ""]
)
def test_other_hosts_are_none(host: str) -> None:
    assert not is_own_network(host)


def test_hook_is_shown_our_certificate_where_it_wants_one(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    own = ours.pair("client")
    with serving(ours.pair("server"), ours, {}) as server:
        hook = Hook(url=f"https://localhost:{server.server_address[1]}/hook", secret=None)
        ways: dict[str, Any] = {"channel": "ops", "hook": hook, "outgoing": webhook, "timeout_seconds": 5.0}
        shown = HttpDelivery(**ways, ca_file=ours.file, certificate_file=own.certificate, key_file=own.key)
        shown.send(message())
        with pytest.raises(Unavailable):
            HttpDelivery(**ways, ca_file=ours.file).send(message())
        assert [path for path, _ in server.seen] == ["/hook"]


def test_hook_at_a_metadata_service_is_refused() -> None:
    hook = Hook(url="https://169.254.169.254/latest/meta-data", secret=None)
    with pytest.raises(Misconfigured, match="metadata"):
        HttpDelivery(channel="ops", hook=hook, outgoing=webhook, timeout_seconds=1.0, ca_file=None)


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://sso.example.com/token",
        "https://169.254.169.254/x",
        "https://127.0.0.1/x",
        "file:///etc/passwd",
        "//x",
        "",
    ],
)
def test_provider_may_not_lead_us_into_our_own_network(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    issuer = "https://sso.example.com"
    document = {
        "issuer": issuer, "authorization_endpoint": f"{issuer}/a", "token_endpoint": endpoint, "jwks_uri": f"{issuer}/k"
    }  # fmt: skip
    monkeypatch.setattr(oidc, "_json_at", lambda _url, _verified_by: document)
    sign_in = oidc.OidcSignIn(
        oidc.Provider(
            issuer=issuer, client_id="g", client_secret=None, redirect_url="https://g.example/signed-in",
            scopes=("openid",), name_claim="sub", groups_claim="groups",
        )
    )  # fmt: skip
    with pytest.raises(Refused, match="token_endpoint"):
        sign_in.begin("/")
