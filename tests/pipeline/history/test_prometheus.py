"""Samples come whole or not at all from servers with limits, bad days, gates, and from what is no Prometheus."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from fleet.errors import Corrupt, Misconfigured, Unavailable
from pipeline.history.prometheus import PrometheusHistory
from tests.pipeline.history.scripted_server import Refusal, ScriptedServer, api_error, serving
from wire.credentials import FixedHeader
from wire.http_client import Endpoint, HttpClient
from wire.prometheus_query import QueryOptions

NAME = "DCGM_FI_DEV_GPU_UTIL"
HOUR_MS = 3_600_000
POINTS = [(60_000 * minute, float(minute)) for minute in range(1, 61)]


@contextmanager
def history(*, points=POINTS, limits=None, credentials=None, headers=(), matchers=(), **behaviour):
    script = ScriptedServer([({"__name__": NAME, "UUID": "GPU-1"}, points)], **behaviour)
    waits: list[float] = []
    with serving(script):
        host, port = script.url.removeprefix("http://").split(":")
        access = Endpoint(
            host=host, port=int(port), path="", tls=None, credentials=FixedHeader(credentials), headers=headers
        )
        connection = HttpClient(access, "test")
        asked = {"bytes_max": 1 << 20, "seconds_max": 5.0, "attempts_max": 3, "take_partial": False, "is_packed": False}
        advice = "name a token by scan.bearer_token_file"
        options = QueryOptions(**{**asked, **(limits or {})}, sign_in=advice, matchers=matchers)
        source = PrometheusHistory(connection, options, pause=waits.append)
        try:
            yield source, script, waits
        finally:
            connection.close()


def read(source, until_ms=HOUR_MS):
    block = source.samples(NAME, since_ms=0, until_ms=until_ms)
    order = block.ts_ms.argsort(kind="stable")
    return list(zip(block.ts_ms[order].tolist(), block.values[order].tolist(), strict=True))


def first(count, refusal):
    """Refuses that often, then answers."""
    left = [count]

    def refuse(path, asked, headers):
        del path, asked, headers
        left[0] -= 1
        return refusal if left[0] >= 0 else None

    return refuse


def longer_than(span_ms, refusal):
    """Refuses what reaches over more time."""

    def refuse(path, asked, headers):
        del path, headers
        return refusal if int(asked["query"].split("[")[1].removesuffix("ms]")) > span_ms else None

    return refuse


@pytest.mark.parametrize(
    "refusal",
    [
        api_error(422, "execution", "query processing would load too many samples into memory in query execution"),
        api_error(503, "timeout", "query timed out in expression evaluation"),
        api_error(422, "bad_data", "the query exceeded the maximum number of chunks (err-mimir-max-chunks-per-query)"),
        api_error(400, "bad_data", "the query time range exceeds the limit"),
    ],
)
def test_what_is_too_much_for_the_server_is_asked_for_in_halves(refusal):
    with history(refuse=longer_than(HOUR_MS // 4, refusal)) as (source, _, _):
        assert read(source) == POINTS
        assert source.work.halved == 3


def test_halves_of_a_series_are_one_series():
    refusal = api_error(422, "execution", "too many samples")
    with history(refuse=longer_than(60_000, refusal)) as (source, _, _):
        block = source.samples(NAME, since_ms=0, until_ms=HOUR_MS)
    assert block.starts.tolist() == [0, len(POINTS)]
    assert list(zip(block.ts_ms.tolist(), block.values.tolist(), strict=True)) == POINTS


def test_an_answer_larger_than_is_read_is_asked_for_in_halves():
    with history(limits={"bytes_max": 700}) as (source, _, _):
        assert read(source) == POINTS
        assert source.work.halved > 0


def test_what_is_too_much_even_for_a_minute_is_given_up_with_the_knobs_named():
    refusal = api_error(422, "execution", "too many samples")
    with history(refuse=lambda *_: refusal) as (source, _, _), pytest.raises(Unavailable, match=r"scan\.matchers"):
        read(source)


def test_the_sample_at_the_border_of_two_halves_counts_once():
    refusal = api_error(422, "execution", "too many samples")
    with history(refuse=longer_than(HOUR_MS // 4, refusal), includes_start=True) as (source, _, _):
        assert read(source) == POINTS


@pytest.mark.parametrize(
    "refusal",
    [
        api_error(503, "unavailable", "TSDB not ready"),
        api_error(429, "too_many_requests", "slow down"),
        Refusal(502, b"<html>bad gateway</html>"),
        Refusal(200, b'{"status":"success","data":{"resul', {}, claims=500),
        Refusal(200, b'{"status":"success","data":{"resul'),
    ],
)
def test_a_bad_moment_of_the_server_is_waited_out(refusal):
    with history(refuse=first(2, refusal)) as (source, _, waits):
        assert read(source) == POINTS
        assert waits == [1.0, 2.0]
        assert source.work.tried_again == 2


def test_a_server_that_says_when_to_come_again_is_obeyed():
    refusal = api_error(429, "x", "busy", **{"Retry-After": "7"})
    with history(refuse=first(1, refusal)) as (source, _, waits):
        read(source)
        assert waits == [7.0]


def test_a_server_that_stays_down_is_unavailable():
    refusal = api_error(503, "unavailable", "TSDB not ready")
    with history(refuse=lambda *_: refusal) as (source, _, _), pytest.raises(Unavailable, match="TSDB not ready"):
        read(source)


def test_a_server_that_cuts_every_answer_is_an_error_and_no_short_history():
    refusal = Refusal(200, b'{"status":"success","data":{"resultType":"matrix","result":[')
    with history(refuse=lambda *_: refusal) as (source, _, _), pytest.raises(Corrupt, match="cut"):
        read(source)


def test_a_server_that_says_nothing_is_not_waited_for_for_ever():
    refusal = Refusal(200, b"{}", after_seconds=0.3)
    limits = {"seconds_max": 0.1, "attempts_max": 1}
    with (
        history(refuse=lambda *_: refusal, limits=limits) as (source, _, _),
        pytest.raises(Unavailable, match="not answered"),
    ):
        read(source, until_ms=60_000)


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (Refusal(401, b""), "scan.bearer_token_file"),
        (api_error(403, "forbidden", "no"), "403: no"),
        (Refusal(302, b"", {"Location": "https://login"}), "login pages"),
        (Refusal(200, b"<!doctype html><title>Sign in</title>", {"Content-Type": "text/html"}), "a web page"),
        (Refusal(404, b"404 page not found"), "before /api/v1"),
        (Refusal(200, b"hello"), "no JSON"),
        (api_error(400, "bad_data", "parse error"), "parse error"),
    ],
)
def test_what_is_no_open_prometheus_is_told_in_words(refusal, words):
    with history(refuse=lambda *_: refusal) as (source, _, waits):
        with pytest.raises(Misconfigured, match=words.replace(".", r"\.")):
            read(source)
        assert waits == []


def test_what_a_server_says_can_not_draw_on_the_terminal():
    refusal = api_error(400, "bad_data", "\x1b[2Jparse\n\u202eerror" + "x" * 9999)
    with history(refuse=lambda *_: refusal) as (source, _, _), pytest.raises(Misconfigured) as caught:
        read(source)
    assert "parse error" in str(caught.value)
    assert len(str(caught.value)) < 600
    assert str(caught.value).isprintable()


def test_a_partial_answer_is_refused_unless_it_is_wanted():
    extra = {"warnings": ["store a is down"]}
    with history(extra=extra) as (source, _, _), pytest.raises(Unavailable, match=r"store a is down.*take_partial"):
        read(source)
    with history(extra=extra, limits={"take_partial": True}) as (source, _, _):
        assert read(source) == POINTS
        assert source.work.partial == ["store a is down"]


def test_a_proxy_that_lets_only_get_through_is_asked_so():
    def refuse(path, asked, headers):
        del path, headers
        return Refusal(405, b"method not allowed") if asked["method"] == "POST" else None

    with history(refuse=refuse) as (source, _, _):
        assert read(source) == POINTS


def test_credentials_headers_and_matchers_go_with_every_request_and_into_no_message():
    seen = []

    def refuse(path, asked, headers):
        seen.append(
            (headers.get("Authorization"), headers.get("X-Scope-OrgID"), asked.get("query", asked.get("match[]")))
        )
        return api_error(400, "bad_data", "no") if path.endswith("/query") else None

    options = {"credentials": "Bearer secret", "headers": (("X-Scope-OrgID", "team"),), "matchers": ('job="dcgm"',)}
    with history(refuse=refuse, **options) as (source, _, _):
        source.names([NAME], since_ms=0, until_ms=HOUR_MS)
        source.series(NAME, since_ms=0, until_ms=HOUR_MS)
        with pytest.raises(Misconfigured) as caught:
            read(source)
    assert {(signed, scope) for signed, scope, _ in seen} == {("Bearer secret", "team")}
    assert all('job="dcgm"' in query for _, _, query in seen)
    assert "secret" not in str(caught.value)


def test_names_that_nobody_asked_for_are_not_names():
    with history() as (source, _, _):
        assert source.names([NAME, "vllm:kv_cache_usage_perc"], since_ms=0, until_ms=HOUR_MS) == {NAME}


def test_facts_are_looked_at_once_an_hour_and_not_between():
    with history(points=[(minute * 60_000, 7.0) for minute in range(300)]) as (source, script, _):
        block = source.looks(NAME, since_ms=0, until_ms=4 * HOUR_MS, step_ms=HOUR_MS)
    assert block.ts_ms.tolist() == [0, HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS, 4 * HOUR_MS]
    assert [path for path, _ in script.asked] == ["/api/v1/query_range"]
