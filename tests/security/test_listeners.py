"""Every port refuses plain HTTP, strangers and what is expired, and takes renewed certificates without a restart."""

from __future__ import annotations

import http.client
import resource
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fleet.data_folder import open_data_folder
from fleet.errors import Misconfigured
from fleet.listener_files import ListenerFiles
from fleet.settings.dashboard import DashboardSettings
from fleet.settings.settings import Settings
from gputide.container.access import open_web_app
from gputide.container.pages import views_of
from gputide.container.receiver import receiver_guard
from gputide.session import Session
from tests.security.authority import Authority, Pair
from tests.security.listeners import LISTENERS
from wire.listener_tls import ListenerContexts

TOKEN = "a-token-of-32-letters-and-digits"
BROKEN = (ssl.SSLError, ConnectionError, http.client.HTTPException)


class Place:
    """What one test stands on: an authority, a stranger's, and the files of a port."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority, self.stranger = Authority(folder, "authority"), Authority(folder, "stranger")
        self.own = self.authority.pair("server")
        self.now = 0.0
        self.files = ListenerFiles(
            section="exporter", certificate_file=str(self.own.certificate), key_file=str(self.own.key)
        )

    @contextmanager
    def port(self, listener: str, **changes: Any) -> Iterator[tuple[int, str]]:
        with LISTENERS[listener](replace(self.files, **changes), lambda: self.now, self.folder) as found:
            yield found

    def line(self, port: int, client: Pair | None = None, *, authority: Authority | None = None, **how: Any) -> Any:
        context = ssl.create_default_context(cafile=str((authority or self.authority).file))
        if client is not None:
            context.load_cert_chain(client.certificate, client.key)
        for name, value in how.items():
            setattr(context, name, value)
        return http.client.HTTPSConnection("localhost", port, context=context, timeout=10)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def status_of(line: Any, path: str, **headers: str) -> int:
    try:
        line.request("GET", path, headers=headers)
        answer = line.getresponse()
        answer.read()
        return int(answer.status)
    finally:
        line.close()


@pytest.mark.parametrize("listener", LISTENERS)
def test_plain_http_gets_no_answer_from_a_port_with_a_certificate(place: Place, listener: str) -> None:
    with place.port(listener) as (port, path):
        with pytest.raises(BROKEN):
            status_of(http.client.HTTPConnection("127.0.0.1", port, timeout=10), path)
        assert status_of(place.line(port), path) == 200


@pytest.mark.parametrize("listener", LISTENERS)
def test_mutual_tls_lets_in_who_the_authority_knows_and_nobody_else(place: Place, listener: str) -> None:
    with place.port(listener, client_ca_file=str(place.authority.file)) as (port, path):
        assert status_of(place.line(port, place.authority.pair("client")), path) == 200
        for wrong in (place.stranger.pair("client"), place.authority.pair("client", is_expired=True)):
            with pytest.raises(BROKEN):
                status_of(place.line(port, wrong), path)
        if listener in ("admission", "dashboard", "router"):
            with pytest.raises(BROKEN):
                status_of(place.line(port), path)
        else:
            assert status_of(place.line(port), path) == 401
            assert status_of(place.line(port), "/healthz") in (200, 503)


@pytest.mark.parametrize("listener", LISTENERS)
def test_renewed_certificate_is_shown_and_open_connections_go_on(place: Place, listener: str) -> None:
    with place.port(listener) as (port, path):
        before = place.line(port)
        before.request("GET", path)
        before.getresponse().read()
        shown = before.sock.getpeercert()["serialNumber"]
        place.authority.pair("server", into=place.own.certificate)
        place.now += 60.0
        after = place.line(port)
        after.connect()
        assert after.sock.getpeercert()["serialNumber"] != shown
        after.close()
        # The connection that was there before goes on, with what it was shown.
        before.request("GET", path)
        assert before.getresponse().status == 200
        assert before.sock.getpeercert()["serialNumber"] == shown
        before.close()


@pytest.mark.parametrize("listener", [name for name in LISTENERS if name != "admission"])
def test_versions_before_the_least_one_are_refused(place: Place, listener: str) -> None:
    contexts = ListenerContexts(place.files, needs_client=False, now_seconds=lambda: 0.0)
    assert contexts.context().minimum_version is ssl.TLSVersion.TLSv1_2
    with place.port(listener, version_min="1.3") as (port, path):
        assert status_of(place.line(port, minimum_version=ssl.TLSVersion.TLSv1_3), path) == 200
        with pytest.raises(BROKEN):
            status_of(place.line(port, maximum_version=ssl.TLSVersion.TLSv1_2), path)


@pytest.mark.parametrize("listener", ["exporter", "receiver", "agent"])
def test_figures_are_told_to_holders_of_a_token_alone(place: Place, listener: str) -> None:
    tokens = place.folder / "tokens"
    tokens.write_text(f"{TOKEN} prometheus\n")
    with place.port(listener, certificate_file=None, key_file=None, tokens_file=str(tokens)) as (port, path):
        for shown, status in ((f"Bearer {TOKEN}", 200), (f"Bearer {TOKEN}x", 401), ("Bearer", 401), ("", 401)):
            line = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            assert status_of(line, path, **({"Authorization": shown} if shown else {})) == status
        line = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        assert status_of(line, "/healthz") in (200, 503)


@pytest.mark.parametrize("listener", [name for name in LISTENERS if name != "admission"])
def test_700_clients_that_send_slowly_or_nothing_keep_nobody_out(place: Place, listener: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        with place.port(listener, certificate_file=None, key_file=None) as (port, path), ExitStack() as held:
            for number in range(700):
                silent = held.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
                if number % 2:
                    silent.sendall(b"GET / HTTP/1.1\r\nHost: l")
            began = time.monotonic()
            assert status_of(http.client.HTTPConnection("127.0.0.1", port, timeout=10), path) == 200
            assert time.monotonic() - began < 5
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_body_and_a_long_answer_go_over_an_encrypted_page_connection(place: Place) -> None:
    with place.port("dashboard") as (port, path):
        line = place.line(port)
        for size in (1, 70_000, 400_000):
            body = bytes(range(256)) * (size // 256) + b"y"
            line.request("POST", path, body=body)
            assert line.getresponse().read() == b"https" + b"x" * 300_000 + body
        line.close()


@pytest.mark.parametrize("broken", ["absent", "empty", "of another key"])
def test_files_that_do_not_fit_are_said_with_their_settings(place: Place, broken: str) -> None:
    if broken == "absent":
        place.own.key.unlink()
    elif broken == "empty":
        place.own.key.write_bytes(b"")
    else:
        place.own.key.write_bytes(place.stranger.pair("x").key.read_bytes())
    with pytest.raises(Misconfigured, match=r"exporter\.tls_key_file"):
        ListenerContexts(place.files, needs_client=False, now_seconds=lambda: 0.0)


def test_authority_of_clients_alone_closes_the_metrics_of_the_receiver(place: Place) -> None:
    files = {"tls_certificate_file": place.own.certificate, "tls_key_file": place.own.key}
    guard = receiver_guard(Settings.model_validate({"receiver": {**files, "client_ca_file": place.authority.file}}))
    assert guard is not None
    assert not guard.may(None, None)
    assert guard.may(None, {"subject": ((("commonName", "prometheus"),),)})
    assert receiver_guard(Settings.model_validate({"receiver": files})) is None


def test_web_app_of_demo_and_serve_has_the_certificate_that_the_settings_name(place: Place) -> None:
    settings = DashboardSettings(tls_certificate_file=place.own.certificate, tls_key_file=place.own.key)
    views = views_of(
        Session(
            data_path=open_data_folder(place.folder / "data", create=True).path,
            settings=Settings(dashboard=settings),
            now_override=None,
            is_quiet=True,
        )
    )
    with closing(open_web_app(views, settings, operator="mei", port=0)) as server:
        serving = threading.Thread(target=server.run, daemon=True)
        serving.start()
        assert server.address.startswith("https://")
        assert status_of(place.line(int(server.address.rstrip("/").rpartition(":")[2])), "/assets/none") == 404
    serving.join(10.0)
