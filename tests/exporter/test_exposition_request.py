"""Whatever arrives on the port is a request, or is refused: never anything else."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.server_request import HEADERS_MAX, read_request
from fleet.errors import Corrupt


def head(*lines: str) -> io.BytesIO:
    return io.BytesIO("".join(f"{line}\r\n" for line in (*lines, "")).encode("latin-1"))


def test_a_scrape_is_read() -> None:
    request = read_request(
        head("GET /metrics?name[]=up HTTP/1.1", "Host: node:9400", "ACCEPT:  text/plain ", "accept: */*;q=0.1")
    )
    assert request is not None
    assert (request.method, request.path, request.stays_open) == ("GET", "/metrics", True)
    assert request.headers == {"host": "node:9400", "accept": "text/plain,*/*;q=0.1"}


@pytest.mark.parametrize(
    ("line", "headers"),
    [
        ("GET / HTTP/1.0", ()),
        ("GET / HTTP/1.1", ("Connection: close",)),
        ("GET / HTTP/1.1", ("Connection: TE, Close",)),
        ("GET / HTTP/1.1", ("Content-Length: 5",)),
        ("GET / HTTP/1.1", ("Transfer-Encoding: chunked",)),
    ],
)
def test_nothing_is_read_behind_a_request_that_may_have_a_body_or_is_the_last(
    line: str, headers: tuple[str, ...]
) -> None:
    request = read_request(head(line, *headers))
    assert request is not None
    assert not request.stays_open


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"GET / HTTP/2.0\r\n\r\n", id="version"),
        pytest.param(b"GET /a b HTTP/1.1\r\n\r\n", id="space-in-path"),
        pytest.param(b"get / HTTP/1.1\r\n\r\n", id="lower-case"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n", id="folded"),
        pytest.param(b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", id="space-before-colon"),
        pytest.param(b"GET / HTTP/1.1\r\nHost\r\n\r\n", id="no-colon"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\rb\r\n\r\n", id="bare-carriage-return"),
        pytest.param(b"GET / HTTP/1.1\nHost: x\r\n\r\n", id="bare-line-feed"),
        # A proxy that takes it for one field passes on what would be two requests here.
        pytest.param(b"GET / HTTP/1.1\r\nX: a\n\nGET /healthz HTTP/1.1\r\n\r\n", id="bare-line-feeds-within"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n", id="no-blank-line"),
        pytest.param(b"GET http:///metrics HTTP/1.1\r\n\r\n", id="no-authority"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * (HEADERS_MAX + 1) + b"\r\n", id="too-many"),
    ],
)
def test_what_is_not_the_grammar_is_refused(sent: bytes) -> None:
    with pytest.raises(Corrupt):
        read_request(io.BytesIO(sent))


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("http://node-a:9400/metrics?x=1", "/metrics"),
        ("HTTPS://[::1]:9400/healthz", "/healthz"),
        ("http://node-a:9400", "/"),
        ("http://node-a?x", "/"),
        ("*", "*"),
        ("//metrics", "//metrics"),
    ],
)
def test_a_proxy_may_name_the_host_in_the_target(target: str, path: str) -> None:
    request = read_request(head(f"GET {target} HTTP/1.1"))
    assert request is not None
    assert request.path == path


def test_requests_on_one_connection_are_read_in_order() -> None:
    lines = io.BytesIO(head("GET /a HTTP/1.1").getvalue() + b"\r\n" + head("HEAD /b HTTP/1.1").getvalue())
    first, second, end = (read_request(lines) for _ in range(3))
    assert first is not None
    assert second is not None
    assert (first.path, second.method, second.path, end) == ("/a", "HEAD", "/b", None)


token = st.text(st.sampled_from("abcXYZ-_.~"), min_size=1, max_size=12)
text = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=30)


@given(token, st.dictionaries(token.map(str.lower), text, max_size=5))
def test_every_head_of_the_grammar_reads_back(path: str, headers: dict[str, str]) -> None:
    request = read_request(head(f"GET /{path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())))
    assert request is not None
    assert request.path == f"/{path}"
    assert request.headers == headers


@given(st.lists(st.one_of(st.binary(max_size=30), st.sampled_from([b"\r\n", b"GET / HTTP/1.1\r\n", b"a: b\r\n"]))))
def test_any_bytes_are_a_request_or_refused(parts: list[bytes]) -> None:
    lines = io.BytesIO(b"".join(parts))
    try:
        request = read_request(lines)
    except Corrupt:
        return
    assert request is None or request.method.isalpha()
