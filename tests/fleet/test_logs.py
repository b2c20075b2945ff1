"""Events are a phrase and fields: JSON away from a terminal, nothing below the level, nothing on standard output."""

import io
import json
import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog

from fleet.errors import Misconfigured
from fleet.logs import LogFormat, logger, set_up_logs


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_an_event_is_one_json_line_away_from_a_terminal() -> None:
    stream = io.StringIO()
    set_up_logs(stream=stream)
    logger("pipeline.bus.bus").warning("segment closed", segment_bytes=64)
    event = json.loads(stream.getvalue())
    assert {key: event[key] for key in ("event", "level", "module", "segment_bytes")} == {
        "event": "segment closed",
        "level": "warning",
        "module": "pipeline.bus.bus",
        "segment_bytes": 64,
    }
    assert event["timestamp"].endswith("Z")


def test_prose_is_written_on_request() -> None:
    stream = io.StringIO()
    set_up_logs(log_format=LogFormat.HUMAN, stream=stream)
    logger("x").info("segment closed", count=3)
    assert "segment closed" in stream.getvalue()
    assert not stream.getvalue().startswith("{")


def test_what_lies_below_the_level_is_dropped() -> None:
    stream = io.StringIO()
    set_up_logs(level="warning", stream=stream)
    logger("x").info("nothing to see")
    assert stream.getvalue() == ""


def test_a_logger_made_before_the_set_up_follows_it() -> None:
    early = logger("x")
    stream = io.StringIO()
    set_up_logs(stream=stream)
    early.info("late set-up")
    assert "late set-up" in stream.getvalue()


def test_standard_output_stays_for_data(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs()
    logger("x").error("lost")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "lost" in captured.err


def test_standard_error_that_was_replaced_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr("sys.stderr", first)
    set_up_logs()
    log = logger("x")
    log.info("before")
    monkeypatch.setattr("sys.stderr", second)
    first.close()
    log.info("after")
    assert "after" in second.getvalue()


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(Misconfigured, match="'loud'"):
        set_up_logs(level="loud")


def test_an_event_of_a_process_that_loaded_no_structlog_yet_follows_the_set_up() -> None:
    program = (
        "import sys; from fleet.logs import LogFormat, logger, set_up_logs\n"
        "set_up_logs(level='warning', log_format=LogFormat.JSON)\n"
        "assert 'structlog' not in sys.modules\n"
        "logger('x').info('dropped'); logger('x').warning('kept', count=3)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert [json.loads(line)["event"] for line in run.stderr.splitlines()] == ["kept"]
