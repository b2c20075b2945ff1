"""What every process counts of itself, read over HTTP as a scraper reads it."""

from __future__ import annotations

import http.client
import time
from functools import partial
from pathlib import Path

import pytest

from fleet.errors import Misconfigured, Refused, Unavailable
from fleet.listener_files import ListenerFiles
from tests.scraping import samples_of
from wire.own_metrics import CONTENT_TYPE, OwnMetrics, own_port
from wire.port_guard import PortGuard

SETTING = "exporter.own_listen"


def ask(address: tuple[str, int], path: str, **headers: str) -> tuple[int, str, str]:
    asked = http.client.HTTPConnection(*address, timeout=10)
    asked.request("GET", path, headers=headers)
    answer = asked.getresponse()
    found = answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
    asked.close()
    return found


def test_passes_say_how_many_failed_of_what_and_when_one_last_succeeded() -> None:
    own = OwnMetrics("relief")
    looks = own.passes("look", "look at the cards")
    began = time.time()
    for error in (Unavailable, Refused, Unavailable):
        with pytest.raises(error), looks.one():
            raise error("not now")
    before = samples_of(own.text().decode())
    assert before["gputide_relief_last_success_timestamp_seconds"] <= began
    time.sleep(0.01)
    with looks.one():
        pass
    found = samples_of(own.text().decode())
    assert found['gputide_relief_look_failures_total{error="unavailable"}'] == 2
    assert found['gputide_relief_look_failures_total{error="refused"}'] == 1
    assert found["gputide_relief_look_seconds_count"] == 4
    assert found["gputide_relief_last_success_timestamp_seconds"] > began
    assert found["process_resident_memory_bytes"] > 2**20


def test_counter_keeps_what_objects_counted_that_are_gone_and_a_gauge_forgets_them() -> None:
    own = OwnMetrics("tide")
    requests = own.followed_counter("api_requests_total", "Requests.")
    waiting = own.followed_gauge("waiting_bytes", "Bytes.")
    assert "gputide_tide_waiting_bytes" not in samples_of(own.text().decode())
    for count in (3.0, 4.0):
        with requests.following(partial(float, count)), waiting.following(partial(float, count)):
            assert samples_of(own.text().decode())["gputide_tide_waiting_bytes"] == count
    found = samples_of(own.text().decode())
    assert found["gputide_tide_api_requests_total"] == 7
    assert "gputide_tide_waiting_bytes" not in found


def test_a_scraper_gets_the_text_a_kubelet_its_word_and_others_nothing() -> None:
    own = OwnMetrics("agent")
    own.counter("evictions_total", "Pods that were evicted.").inc(2)
    with own_port(own.text, "127.0.0.1", 0, setting=SETTING) as address:
        status, kind, text = ask(address, "/metrics")
        assert (status, kind) == (200, CONTENT_TYPE)
        assert samples_of(text)["gputide_agent_evictions_total"] == 2
        assert ask(address, "/healthz")[0] == 200
        assert ask(address, "/view")[0] == 404
    with pytest.raises(ConnectionRefusedError):
        ask(address, "/metrics")


def test_metrics_are_shown_to_holders_of_a_token_alone_where_tokens_are_set(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("0123456789abcdef prometheus\n")
    files = ListenerFiles(section="exporter", tokens_file=str(tokens))
    guard = PortGuard(files, tokens_setting="scrape_tokens_file", now_seconds=time.monotonic)
    with own_port(OwnMetrics("relief").text, "127.0.0.1", 0, setting=SETTING, guard=guard) as address:
        assert ask(address, "/metrics")[0] == 401
        assert ask(address, "/metrics", Authorization="Bearer 0123456789abcdef")[0] == 200
        assert ask(address, "/healthz")[0] == 200


def test_an_address_that_is_taken_or_of_another_machine_names_its_setting() -> None:
    with own_port(bytes, "127.0.0.1", 0, setting=SETTING) as (host, port):
        for error, wrong in ((Unavailable, host), (Misconfigured, "192.0.2.1")):
            with pytest.raises(error, match=r"exporter\.own_listen"), own_port(bytes, wrong, port, setting=SETTING):
                pass
