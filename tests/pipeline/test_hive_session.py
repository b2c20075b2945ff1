"""A Hive that is not there, says nothing, or says nonsense is told of in one kind of error, and in time."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleet.errors import Misconfigured, Unavailable
from fleet.settings.pipeline import HiveAuth, HiveSettings
from pipeline.warehouse.catalogue_hive import HiveCatalogue
from pipeline.warehouse.hive_session import HiveSession


@pytest.fixture
def server() -> Iterator[Callable[[bytes | None], int]]:
    """Return a starter of servers that answer everything with the same bytes, or, with None, hold their breath."""
    listeners: list[socket.socket] = []
    held: list[socket.socket] = []

    def serve(listener: socket.socket, answer: bytes | None) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            held.append(connection)
            if answer is not None:
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)

    def start(answer: bytes | None) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)
        threading.Thread(target=serve, args=(listener, answer), daemon=True).start()
        return int(listener.getsockname()[1])

    yield start
    for opened in (*listeners, *held):
        opened.close()


@pytest.mark.parametrize("auth", ["NONE", "NOSASL"])
@pytest.mark.parametrize(
    "answer", [None, b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x05\x00\x00\x00\x02no", b"\0" * 64]
)
def test_whatever_is_no_hive_is_unavailable(server, auth, answer):
    settings = HiveSettings(port=server(answer), auth=auth, request_seconds=1)
    session = HiveSession(settings)
    for _ in range(2):
        with pytest.raises(Unavailable, match=rf"cannot talk to HiveServer2 at 127\.0\.0\.1:{settings.port}"):
            session.rows("SHOW DATABASES")


def test_password_that_hive_does_not_take_is_misconfigured(server, tmp_path):
    said = b"Error validating the login"
    (tmp_path / "password").write_text("wrong")
    settings = HiveSettings(
        port=server(b"\x03" + len(said).to_bytes(4, "big") + said), auth=HiveAuth.LDAP, username="ada",
        password_file=tmp_path / "password", request_seconds=1,
    )  # fmt: skip
    with pytest.raises(Misconfigured, match=r"does not let hive\.username=ada in: .*validating the login"):
        HiveSession(settings).execute("SHOW DATABASES")


def test_server_without_tls_is_unavailable_over_tls(server):
    settings = HiveSettings(port=server(b"hello"), tls=True, request_seconds=1)
    with pytest.raises(Unavailable):
        HiveSession(settings).execute("SHOW DATABASES")


def test_closed_port_is_unavailable(tmp_path):
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
        HiveSession(HiveSettings(port=1)).execute("SHOW DATABASES")


@pytest.mark.parametrize("text", [None, "", "\nsecond line"])
def test_password_file_without_a_password_is_misconfigured(tmp_path, text):
    path = tmp_path / "password"
    if text is not None:
        path.write_text(text)
    settings = HiveSettings(port=1, auth=HiveAuth.LDAP, password_file=path)
    with pytest.raises(Misconfigured, match=r"hive\.password_file"):
        HiveSession(settings).execute("SHOW DATABASES")


def test_missing_authorities_are_misconfigured(tmp_path):
    settings = HiveSettings(port=1, tls=True, ca_file=tmp_path / "ca.pem")
    with pytest.raises(Misconfigured, match=r"hive\.ca_file"):
        HiveSession(settings).execute("SHOW DATABASES")


@pytest.mark.parametrize(
    "location", ["/srv/gputide", "srv", "file:/srv/with space", "file:/srv/ü", "file:/a%20b", "file:/a'b", "file:/${x}"]
)
def test_location_that_hive_would_not_keep_as_it_is_is_misconfigured(location):
    with pytest.raises(Misconfigured, match=r"hive\.location"):
        HiveCatalogue(HiveSession(HiveSettings()), database="g", location=location)


@pytest.mark.parametrize(
    "location", ["file:/srv/gputide", "file:///srv/", "hdfs://nn:8020/gpu-tide_1/x", "s3a://bucket/path=1"]
)
def test_location_of_any_file_system_can_be_used(location):
    HiveCatalogue(HiveSession(HiveSettings()), database="g", location=location)


@pytest.mark.parametrize(
    "options",
    [{"auth": "LDAP"}, {"password_file": Path("p")}, {"ca_file": Path("ca")}, {"database": "a`b"}, {"database": "A"}],
)
def test_half_of_a_sign_on_and_names_that_hive_would_change_are_refused(options):
    with pytest.raises(ValueError, match=r"password_file|ca_file|pattern"):
        HiveSettings(**options)
