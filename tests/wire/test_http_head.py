"""Heads of requests: each is read in one way, or refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.http_head import FIELDS_MAX, Refusal, RequestHead, head_of


def head(*lines: str) -> RequestHead:
    return head_of("\r\n".join(lines).encode("latin-1"))


def test_head_is_read() -> None:
    found = head("GET /metrics?name[]=up&x=%20 HTTP/1.1", "Host: node:9400", "ACCEPT:  text/plain ", "accept: */*")
    assert (found.method, found.path, found.query) == ("GET", "/metrics", "name[]=up&x=%20")
    assert found.fields == {"host": "node:9400", "accept": "text/plain, */*"}
    assert (found.is_kept_alive, found.length, found.is_chunked) == (True, None, False)


@pytest.mark.parametrize(
    ("line", "fields", "is_kept_alive"),
    [
        ("GET / HTTP/1.0", (), False),
        ("GET / HTTP/1.0", ("Connection: Keep-Alive",), True),
        ("GET / HTTP/1.1", ("Connection: close",), False),
        ("GET / HTTP/1.1", ("Connection: TE, Close",), False),
        ("GET / HTTP/1.1", ("Connection: TE",), True),
    ],
)
def test_client_says_whether_its_connection_goes_on(line: str, fields: tuple[str, ...], is_kept_alive: bool) -> None:
    assert head(line, "Host: x", *fields).is_kept_alive is is_kept_alive


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"GET /a b HTTP/1.1\r\nHost: x", id="space-in-path"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: x\r\n folded", id="folded"),
        pytest.param(b"GET / HTTP/1.1\r\nHost : x", id="space-before-colon"),
        pytest.param(b"GET / HTTP/1.1\r\nHost", id="no-colon"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\rb", id="bare-carriage-return"),
        pytest.param(b"GET / HTTP/1.1\nHost: x", id="bare-line-feed"),
        # A proxy that takes it for one field passes on what would be two requests here.
        pytest.param(b"GET / HTTP/1.1\r\nHost: a\n\nGET /healthz HTTP/1.1", id="bare-line-feeds-within"),
        pytest.param(b"GET http:///metrics HTTP/1.1\r\nHost: x", id="no-authority"),
        pytest.param(b"GET / HTTP/1.1\r\nX: y", id="no-host"),
        pytest.param(b"\r\n\r\nGET / HTTP/1.1\r\nHost: x", id="two-empty-lines"),
    ],
)
def test_what_is_not_the_grammar_is_refused(sent: bytes) -> None:
    with pytest.raises(Refusal) as refusal:
        head_of(sent)
    assert (refusal.value.status, refusal.value.is_final) == (400, True)


def test_more_fields_than_the_limit_are_refused() -> None:
    lines = ["GET / HTTP/1.1", "Host: x", *(["X: y"] * (FIELDS_MAX - 1))]
    assert head(*lines).path == "/"
    with pytest.raises(Refusal, match=str(FIELDS_MAX)):
        head(*lines, "X: y")


def test_one_empty_line_before_a_request_is_skipped() -> None:
    assert head("", "GET /a HTTP/1.1", "Host: x").path == "/a"


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("http://node-a:9400/metrics?x=1", "/metrics", "x=1"),
        ("HTTPS://[::1]:9400/healthz", "/healthz", ""),
        ("http://node-a:9400", "/", ""),
        ("http://node-a?x", "/", "x"),
        ("*", "*", ""),
        ("//metrics", "//metrics", ""),
    ],
)
def test_proxy_may_name_the_host_in_the_target(target: str, path: str, query: str) -> None:
    found = head(f"GET {target} HTTP/1.1", "Host: x")
    assert (found.path, found.query) == (path, query)


TOKEN = st.text(st.sampled_from("abcXYZ-_.~"), min_size=1, max_size=12)
TEXT = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), max_size=30)


@given(TOKEN, st.dictionaries(TOKEN.map(str.lower), TEXT, max_size=5))
def test_every_head_of_the_grammar_reads_back(path: str, fields: dict[str, str]) -> None:
    found = head(f"GET /{path} HTTP/1.1", "Host: x", *(f"{name}: {value}" for name, value in fields.items()))
    assert found.path == f"/{path}"
    assert found.fields == {"host": "x", **fields}


@given(st.binary(max_size=400))
def test_any_bytes_are_a_head_or_a_refusal(data):
    found: RequestHead | Refusal
    try:
        found = head_of(data)
    except Refusal as refusal:
        found = refusal
    if isinstance(found, Refusal):
        assert (found.status in (400, 413, 417, 431, 505), found.is_final) == (True, True)
    else:
        assert found.length is None or not found.is_chunked


FIELDS = st.lists(
    st.tuples(
        st.sampled_from(["Host", "Content-Length", "Transfer-Encoding", "Expect", "Connection", "X-A", " X", "X "]),
        st.sampled_from(["x", "3", "chunked", "close", "100-continue", "3, 3", "", "\t5\t", "identity"]),
    ),
    max_size=6,
)


@given(FIELDS, st.sampled_from(["1.0", "1.1"]))
def test_head_that_is_taken_has_one_framing_only(fields, version):
    lines = [f"POST / HTTP/{version}", *(f"{name}: {value}" for name, value in fields)]
    try:
        head = head_of("\r\n".join(lines).encode())
    except Refusal:
        return
    names = [name.lower() for name, _ in fields]
    assert names.count("content-length") + names.count("transfer-encoding") <= 1
    assert head.is_chunked == ("transfer-encoding" in names)
    assert (head.length is not None) == ("content-length" in names)
