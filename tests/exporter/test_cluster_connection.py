"""HTTP with an API server that is slow, breaks off, lies about lengths, changes its mind, or is not who it says."""

from __future__ import annotations

import gzip
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from bench.cluster_api import SimulatedApi, fill, start_server
from exporter.cluster.kubernetes import KubernetesReader
from exporter.cluster.reader import Watched
from fleet.errors import Corrupt, Misconfigured, Unavailable
from wire import http_client
from wire.http_answer import Busy, TooLarge
from wire.kubernetes.read import EVENT_BYTES_MAX

CERTIFICATES = Path(__file__).parents[1] / "pipeline" / "certificates"
LIST = json.dumps({"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "a"}}]}).encode()
BOOKMARK = json.dumps({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}).encode() + b"\n"
Script = Callable[[str, int], Iterable[bytes]]


class Scripted:
    """A server that answers the n-th request head with bytes of its own choice; empty bytes end the connection."""

    def __init__(self, script: Script) -> None:
        self.heads: list[str] = []
        self.connections = 0
        self.ended = threading.Event()
        self._script = script
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []
        self._accepting = threading.Thread(target=self._run, daemon=True)
        self._accepting.start()

    def close(self) -> None:
        # Only closed, its number would be the next server's, from which this one's thread would take connections.
        self._listening.shutdown(socket.SHUT_RDWR)
        self._accepting.join(30)
        self._listening.close()
        for one in self._open:
            one.close()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        received = b""
        try:
            while True:
                while b"\r\n\r\n" not in received:
                    part = connection.recv(65536)
                    if not part:
                        return
                    received += part
                head, _, received = received.partition(b"\r\n\r\n")
                self.heads.append(head.decode())
                for part in self._script(self.heads[-1], len(self.heads)):
                    if part == b"":
                        connection.shutdown(socket.SHUT_RDWR)
                        self.ended.set()
                        return
                    connection.sendall(part)
        except OSError:
            return


@pytest.fixture
def reading(tmp_path: Path) -> Iterator[Callable[..., tuple[KubernetesReader, Scripted]]]:
    """Return a maker of a scripted server with a reader of it."""
    made: list[KubernetesReader | Scripted] = []

    def make(script: Script, *, user: dict[str, Any] | None = None, **more: Any) -> tuple[KubernetesReader, Scripted]:
        server = Scripted(script)
        path = kubeconfig(tmp_path, f"http://127.0.0.1:{server.port}", user or {"token": "t"})
        reader = KubernetesReader(kubeconfig=path, **more)
        made.extend((reader, server))
        return reader, server

    yield make
    for one in made:
        one.close()


def kubeconfig(folder: Path, server: str, user: dict[str, Any], **cluster: Any) -> Path:
    path = folder / "kubeconfig"
    document = {
        "current-context": "t",
        "clusters": [{"name": "t", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "t", "context": {"cluster": "t", "user": "u"}}],
    }
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def whole(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def chunk(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(body), body)


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def names(reader: KubernetesReader) -> list[object]:
    return [manifest["metadata"]["name"] for manifest in reader.page(Watched.PODS, limit=9, token=None).manifests]  # type: ignore[index]


def test_connection_is_kept_from_one_answer_to_the_next(reading) -> None:
    reader, server = reading(lambda head, number: [whole(LIST)])
    assert [names(reader) for _ in range(3)] == [["a"]] * 3
    assert server.connections == 1
    assert all("\r\nAuthorization: Bearer t" in head for head in server.heads)


def test_connection_that_the_server_closed_meanwhile_is_made_anew_without_a_word(reading) -> None:
    reader, server = reading(lambda head, number: [whole(LIST), *([b""] if number == 1 else [])])
    assert names(reader) == ["a"]
    # The server's end has come.
    server.ended.wait(30)
    assert names(reader) == ["a"]
    assert server.connections == 2


def test_fresh_connection_that_ends_without_an_answer_is_unavailable(reading) -> None:
    reader, server = reading(lambda head, number: [b""])
    with pytest.raises(Unavailable, match="RemoteDisconnected"):
        names(reader)
    assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        [whole(LIST)[:-5], b""],
        [CHUNKED, chunk(LIST)[:-9], b""],
        [CHUNKED, chunk(LIST), b""],
        [CHUNKED, b"zz\r\n", LIST],
        [CHUNKED, b"-5\r\n", LIST, b""],
        [b"SSH-2.0-OpenSSH\r\n\r\n", b""],
        [b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200 + b"\r\n", b""],
        [b"HTTP/1.1 200 OK\r\nA: " + b"x" * 70_000, b""],
        [whole(b"{}[")],
        [whole(LIST[:-2])],
        [whole(LIST[:-2] + b", 5")],
        [whole(LIST.replace(b"[", b"[[5] {", 1))],
        [whole(b'{"metadata": 5, "items": []}')],
        [whole(b'{"metadata": {}, "items": 5}')],
        [whole(b"{5: 5}")],
        [whole(b'{"metadata": {}, "items": [' + b"[" * 100_000)],
        [whole(b"\xff\xfe\x00")],
        [whole(b"[" * 100_000)],
        [whole(gzip.compress(LIST)[:-9], "200 OK", "Content-Encoding: gzip")],
        [whole(b"no gzip at all", "200 OK", "Content-Encoding: gzip")],
        [whole(b"", "302 Found", "Location: http://127.0.0.1:1/")],
        [whole(b"oops", "500 Internal Server Error")],
    ],
)
def test_answer_that_is_broken_is_unavailable_and_its_connection_is_not_used_again(reading, answer) -> None:
    reader, _ = reading(lambda head, number: answer if number == 1 else [whole(LIST)])
    with pytest.raises(Unavailable):
        names(reader)
    assert names(reader) == ["a"]


@pytest.mark.parametrize("framing", ["length", "chunked", "to the end", "gzip", "gzip in chunks"])
def test_every_framing_of_an_answer_is_understood(reading, framing) -> None:
    packed = gzip.compress(LIST)
    answer = {
        "length": [whole(LIST)],
        "chunked": [CHUNKED, *(chunk(LIST[at : at + 7]) for at in range(0, len(LIST), 7)), b"0\r\n\r\n"],
        "to the end": [b"HTTP/1.0 200 OK\r\n\r\n", LIST, b""],
        "gzip": [whole(packed, "200 OK", "Content-Encoding: gzip")],
        "gzip in chunks": [
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n",
            *(chunk(packed[at : at + 9]) for at in range(0, len(packed), 9)), b"0\r\n\r\n",
        ],
    }[framing]  # fmt: skip
    reader, server = reading(lambda head, number: answer)
    assert names(reader) == ["a"]
    assert "Accept-Encoding: gzip" in server.heads[0]


def test_answer_that_unpacks_to_more_than_is_read_is_too_large_before_it_is_unpacked(reading) -> None:
    bomb = gzip.compress(b" " * 200_000_000, 9)
    reader, _ = reading(
        lambda head, number: [whole(bomb, "200 OK", "Content-Encoding: gzip")], page_bytes_max=1_000_000
    )
    started = time.process_time()
    with pytest.raises(TooLarge, match="1000000"):
        names(reader)
    assert time.process_time() - started < 1.0


def test_server_that_trickles_is_given_up_when_its_time_is_over(reading, monkeypatch) -> None:
    monkeypatch.setattr("wire.kubernetes.read._ANSWER_SECONDS", 0.5)

    def trickle(head: str, number: int) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"
        while True:
            time.sleep(0.05)
            yield b" "

    reader, _ = reading(trickle)
    started = time.monotonic()
    with pytest.raises(Unavailable, match="not answered in"):
        names(reader)
    assert time.monotonic() - started < 20.0


def test_events_come_one_by_one_however_they_are_cut(reading) -> None:
    go_on = threading.Event()

    def events(head: str, number: int) -> Iterator[bytes]:
        yield CHUNKED + chunk(BOOKMARK[:10])
        yield chunk(BOOKMARK[10:])
        go_on.wait(10)
        yield chunk(BOOKMARK * 3) + b"0\r\n\r\n"

    reader, server = reading(events)
    watch = reader.watch(Watched.PODS, version="1")
    assert next(watch).version == "9"
    go_on.set()
    assert len(list(watch)) == 3
    assert "Accept-Encoding: identity" in server.heads[0]


def test_event_without_an_end_is_corrupt(reading) -> None:
    def endless(head: str, number: int) -> Iterator[bytes]:
        yield CHUNKED
        for _ in range(EVENT_BYTES_MAX // 2**20 + 2):
            yield chunk(b"x" * 2**20)

    reader, _ = reading(endless)
    with pytest.raises(Corrupt, match=str(EVENT_BYTES_MAX)):
        list(reader.watch(Watched.PODS, version="1"))


def test_busy_server_says_for_how_long(reading) -> None:
    reader, _ = reading(lambda head, number: [whole(b"{}", "429 Too Many Requests", f"Retry-After: {7 * number**9}")])
    with pytest.raises(Busy) as busy:
        names(reader)
    assert busy.value.retry_after_seconds == 7
    with pytest.raises(Busy) as busy:
        names(reader)
    assert busy.value.retry_after_seconds == 300


@pytest.mark.parametrize("value", ["soon", "-5", "", "1e9", "²"])
def test_busy_server_that_says_nothing_sensible_is_unavailable(reading, value) -> None:
    head = f"HTTP/1.1 503 Busy\r\nContent-Length: 2\r\nRetry-After: {value}\r\n\r\n{{}}".encode()
    reader, _ = reading(lambda _head, _number: [head])
    with pytest.raises(Unavailable) as unavailable:
        names(reader)
    assert not isinstance(unavailable.value, Busy)


def test_token_that_was_replaced_is_tried_at_once_and_a_wrong_one_is_the_users_to_mend(reading, tmp_path) -> None:
    token = tmp_path / "token"
    token.write_text("old")

    def by_token(head: str, number: int) -> list[bytes]:
        if "Bearer new" in head:
            return [whole(LIST)]
        token.write_text("new")
        return [whole(b'{"message": "Unauthorized"}', "401 Unauthorized")]

    reader, server = reading(by_token, user={"tokenFile": "token"})
    assert names(reader) == ["a"]
    assert len(server.heads) == 2
    refusing, asked = reading(lambda head, number: [whole(b"{}", "401 Unauthorized")], user={"tokenFile": "token"})
    with pytest.raises(Misconfigured, match="does not know who asks"):
        names(refusing)
    assert len(asked.heads) == 1


def test_plugin_that_always_has_another_token_is_not_asked_for_ever(reading, tmp_path) -> None:
    plugin = tmp_path / "plugin"
    plugin.write_text('#!/bin/sh\necho "{\\"status\\": {\\"token\\": \\"t$$\\"}}"\n')
    plugin.chmod(0o700)
    user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin"}}
    reader, server = reading(lambda head, number: [whole(b"{}", "401 Unauthorized")], user=user)
    with pytest.raises(Misconfigured, match="does not know who asks"):
        names(reader)
    assert len(server.heads) == 2


def test_reader_that_is_closed_wakes_whoever_waits_and_takes_no_more(reading) -> None:
    reader, server = reading(lambda head, number: [CHUNKED] if "watch=1" in head else [whole(LIST)])
    woken: list[Exception] = []

    def wait() -> None:
        try:
            list(reader.watch(Watched.PODS, version="1"))
        except Unavailable as exc:
            woken.append(exc)

    waiting = threading.Thread(target=wait)
    waiting.start()
    while not server.heads:
        time.sleep(0.01)
    time.sleep(0.05)
    reader.close()
    reader.close()
    waiting.join(30)
    assert not waiting.is_alive()
    assert "closed" in str(woken[0])
    with pytest.raises(Unavailable, match="closed"):
        names(reader)


@pytest.mark.parametrize(
    "name", ["..", "a/../../../../secrets/x", "", "A", "a?b", "a#b", "ä", "a" * 254, "a%2f", "-a", "a\r\nX: y"]
)
def test_name_that_no_object_can_have_is_never_asked_for(reading, name) -> None:
    reader, server = reading(lambda head, number: [whole(b"{}")])
    assert reader.one(Watched.REPLICA_SETS, namespace="team", name=name) is None
    assert reader.one(Watched.REPLICA_SETS, namespace=name, name="web") is None
    assert server.heads == []


def test_one_object_is_asked_for_by_its_path_with_its_metadata_only(reading) -> None:
    reader, server = reading(
        lambda head, number: [whole(b'{"metadata": {"uid": "u"}}') if number == 1 else whole(b"{}", "404 Not Found")]
    )
    assert reader.one(Watched.JOBS, namespace="team", name="nightly-1") == {"metadata": {"uid": "u"}}
    assert server.heads[0].startswith("GET /apis/batch/v1/namespaces/team/jobs/nightly-1 HTTP/1.1")
    assert "as=PartialObjectMetadata;" in server.heads[0]
    assert reader.one(Watched.JOBS, namespace="team", name="gone") is None


def test_refused_object_names_the_verb_and_the_rule(reading) -> None:
    reader, _ = reading(lambda head, number: [whole(b'{"message": "no"}', "403 Forbidden")])
    with pytest.raises(Misconfigured, match=r'get jobs.batch .*resources: \["jobs"\], verbs: \["get"\]'):
        reader.one(Watched.JOBS, namespace="team", name="nightly-1")


def test_nodes_pods_are_listed_from_the_servers_memory_until_that_is_too_old(reading) -> None:
    gone = json.dumps({"type": "ERROR", "object": {"code": 410, "message": "too old"}}).encode() + b"\n"

    def script(head: str, number: int) -> list[bytes]:
        return [CHUNKED, chunk(gone), b"0\r\n\r\n"] if "watch=1" in head else [whole(LIST)]

    reader, server = reading(script, node="node-1")
    names(reader)
    with pytest.raises(Unavailable, match="too old"):
        list(reader.watch(Watched.PODS, version="7"))
    names(reader)
    names(reader)
    lists = [head.split()[1] for head in server.heads if "watch=1" not in head]
    assert all("fieldSelector=spec.nodeName%3Dnode-1" in path for path in lists)
    assert ["resourceVersion=0" in path for path in lists] == [True, False, True]


def test_list_of_the_servers_memory_that_is_too_large_is_asked_for_of_its_store_in_pages(reading) -> None:
    # What a server has in memory it lists as a whole, whatever the limit is.
    everything = json.dumps({"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "x" * 2000}}]})

    def script(head: str, number: int) -> list[bytes]:
        return [whole(everything.encode() if "resourceVersion=0" in head else LIST)]

    reader, server = reading(script, node="node-1", page_bytes_max=1000)
    with pytest.raises(TooLarge):
        names(reader)
    assert names(reader) == ["a"]
    assert ["resourceVersion=0" in head for head in server.heads] == [True, False]


def test_watches_of_many_readers_do_not_end_in_one_moment(reading) -> None:
    reader, server = reading(lambda head, number: [CHUNKED, b"0\r\n\r\n"], watch_seconds=240)
    for _ in range(20):
        assert list(reader.watch(Watched.PODS, version="1")) == []
    times = [int(parse_qs(urlsplit(head.split()[1]).query)["timeoutSeconds"][0]) for head in server.heads]
    assert all(180 <= seconds <= 240 for seconds in times)
    assert len(set(times)) > 1


def test_server_that_went_away_without_a_word_is_noticed_within_a_minute(reading, monkeypatch) -> None:
    made: list[socket.socket] = []
    connect = http_client._connected

    def connected(*arguments: Any) -> socket.socket:
        made.append(connect(*arguments))
        return made[-1]

    monkeypatch.setattr(http_client, "_connected", connected)
    reader, _ = reading(lambda head, number: [whole(LIST)])
    assert names(reader) == ["a"]
    (one,) = made
    assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    idle, interval, count = (
        one.getsockopt(socket.IPPROTO_TCP, option)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
    )
    assert idle + interval * count <= 60


@pytest.fixture
def secured() -> Iterator[int]:
    """Serve a small cluster by TLS, as localhost; return the port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(CERTIFICATES / "authority.pem"))
    context.load_cert_chain(CERTIFICATES / "receiver.pem", CERTIFICATES / "receiver.key.pem")
    context.verify_mode = ssl.CERT_OPTIONAL
    api = SimulatedApi()
    fill(api, nodes=1, pods=2, cards_per_node=1)
    server = start_server(api, tls=context)
    yield server.server_address[1]
    api.cut(forget=False)
    server.shutdown()
    server.server_close()


AUTHORITY = {"certificate-authority": str(CERTIFICATES / "authority.pem")}


def over_tls(folder: Path, server: str, **cluster: Any) -> list[object]:
    reader = KubernetesReader(kubeconfig=kubeconfig(folder, server, {"token": "t"}, **cluster), watch_seconds=0)
    try:
        page = reader.page(Watched.PODS, limit=1, token=None)
        list(reader.watch(Watched.PODS, version=page.version))
        return [manifest["metadata"]["name"] for manifest in page.manifests]  # type: ignore[index]
    finally:
        reader.close()


def test_server_of_a_trusted_authority_is_read_by_tls(secured: int, tmp_path: Path) -> None:
    assert len(over_tls(tmp_path, f"https://localhost:{secured}", **AUTHORITY)) == 1
    assert len(over_tls(tmp_path, f"https://127.0.0.1:{secured}", **AUTHORITY)) == 1


@pytest.mark.parametrize(
    "cluster",
    [
        {},
        {"certificate-authority": str(CERTIFICATES / "stranger.pem")},
        {**AUTHORITY, "tls-server-name": "kubernetes.example"},
        {**AUTHORITY, "tls-server-name": "kubernetes.example", "insecure-skip-tls-verify": True},
    ],
)
def test_server_that_can_not_show_who_it_is_gets_no_token(secured: int, tmp_path: Path, cluster: dict) -> None:
    with pytest.raises(Unavailable, match="not trusted"):
        over_tls(tmp_path, f"https://localhost:{secured}", **cluster)


def test_certificate_is_unchecked_or_checked_for_another_name_where_that_is_said(secured: int, tmp_path: Path) -> None:
    assert over_tls(tmp_path, f"https://127.0.0.1:{secured}", **{"insecure-skip-tls-verify": True})
    assert over_tls(tmp_path, f"https://127.0.0.1:{secured}", **AUTHORITY, **{"tls-server-name": "localhost"})


def test_reader_of_a_tls_server_is_closed_while_it_waits(secured: int, tmp_path: Path) -> None:
    path = kubeconfig(tmp_path, f"https://localhost:{secured}", {"token": "t"}, **AUTHORITY)
    reader = KubernetesReader(kubeconfig=path)
    version = reader.page(Watched.PODS, limit=1, token=None).version
    ended = threading.Event()

    def wait() -> None:
        try:
            list(reader.watch(Watched.PODS, version=version))
        except Unavailable:
            ended.set()

    threading.Thread(target=wait, daemon=True).start()
    time.sleep(0.3)
    reader.close()
    assert ended.wait(30)
