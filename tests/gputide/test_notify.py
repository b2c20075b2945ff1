"""The program tells people of a plan that waits, once, and of the week; and writes dashboards and rules."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import yaml

from tests.dashboards.notify.local_services import Answer, chat_service
from tests.gputide.conftest import Program
from tests.scraping import OWN_PORT, own_url, scraped
from tests.waiting import until


def settings_file(folder: Path, url: str) -> str:
    """Write settings with a channel for all and one for a team, and return the options that name them."""
    (folder / "url").write_text(url + "\n")
    path = folder / "gputide.toml"
    channel = f'kind = "webhook"\nurl_file = "{folder / "url"}"\n'
    path.write_text(
        f'[notify]\neverything = ["ops"]\nbase_url = "https://gputide.example"\ntries_max = 1\n'
        f"[notify.channels.ops]\n{channel}[notify.channels.search]\n{channel}"
        '[notify.teams.search]\nnamespaces = ["search*"]\nchannels = ["search"]\n'
    )
    return str(path)


def test_a_waiting_plan_is_told_once_and_again_only_after_a_failure(
    program: Program, planned: Path, tmp_path: Path
) -> None:
    with chat_service(Answer(status=500), Answer()) as service:
        config = settings_file(tmp_path, service.url)
        shown = program(planned, "--config", config, "admin", "notify", "show", "--format", "json").document
        assert {row["topic"] for row in shown["due"]} == {"plan"}
        first = program(planned, "--config", config, "admin", "notify", "send")
        assert first.status == 5
        assert "answered 500" in first.out
        assert service.url not in first.out + first.err
        assert program(planned, "--config", config, "admin", "notify", "send").status == 0
        before = len(service.received)
        assert program(planned, "--config", config, "admin", "notify", "send").out == "nothing to tell\n"
    assert len(service.received) == before
    titles = [json.loads(one.body)["title"] for one in service.received]
    assert all("waits for approval" in title for title in titles)


def test_a_scraper_sees_what_was_sent_and_what_failed(program: Program, planned: Path, tmp_path: Path) -> None:
    with chat_service(Answer(status=500), Answer()) as service:
        config = ("--config", settings_file(tmp_path, service.url), "--set", "notify.interval_seconds=1")
        running = program.start(planned, *config, *OWN_PORT, "admin", "notify", "run")
        try:
            url = own_url(running.err)
            until(lambda: 'gputide_notify_messages_total{channel="ops",result="sent"}' in scraped(url))
            found = scraped(url)
        finally:
            os.kill(running.pid, signal.SIGTERM)
        running.wait()
    assert found['gputide_notify_messages_total{channel="ops",result="failed"}'] == 1
    assert found["gputide_notify_look_seconds_count"] >= 2


def test_nothing_is_sent_where_it_could_not_be_remembered(program: Program, planned: Path, tmp_path: Path) -> None:
    """Else each run would send the same news again for as long as that file can't be written."""
    kept = planned / "notices" / "sent.json"
    kept.mkdir(parents=True)
    with chat_service() as service:
        config = settings_file(tmp_path, service.url)
        failed = program(planned, "--config", config, "admin", "notify", "send")
        assert failed.status != 0
        assert "sent.json" in failed.err
        assert not service.received
        kept.rmdir()
        assert program(planned, "--config", config, "admin", "notify", "send").status == 0
        assert service.received


def test_the_week_is_sent_to_all_and_to_each_team_and_a_dry_run_sends_nothing(
    program: Program, planned: Path, tmp_path: Path
) -> None:
    with chat_service() as service:
        config = settings_file(tmp_path, service.url)
        out = tmp_path / "out"
        assert program(planned, "--config", config, "report", "--send", "--to-file", str(out)).status == 0
        assert not service.received
        names = sorted(path.name for path in out.iterdir())
        assert names[0] == "ops-001-report.json"
        for again in (0, 0, 1):
            said = program(planned, "--config", config, "report", "--send", *(["--again"] if again else []))
            assert said.status == 0, said.err
    assert len(service.received) == 2 * len(names)
    assert json.loads(service.received[0].body)["topic"] == "report"


def test_wrong_use_is_told_in_a_sentence(program: Program, planned: Path, tmp_path: Path) -> None:
    nobody = program(planned, "admin", "notify", "send")
    assert (nobody.status, nobody.out) == (2, "")
    assert "notify.channels" in nobody.err
    config = settings_file(tmp_path, "http://chat.example/hook?key=sesame")
    refused = program(planned, "--config", config, "admin", "notify", "test", "ops")
    assert refused.status == 2
    assert "https" in refused.err
    assert "sesame" not in refused.err
    assert program(planned, "--config", config, "admin", "notify", "test", "pos").status == 2
    assert program(planned, "report", "--again").status == 2


def test_dashboards_and_rules_are_written_with_the_settings(program: Program, tmp_path: Path) -> None:
    target = tmp_path / "grafana"
    said = program(
        tmp_path / "no-data", "--set", "analyzer.idle_ratio_max=0.03", "admin", "grafana", "export", str(target)
    )
    assert said.status == 0, said.err
    assert len(list((target / "dashboards").glob("gputide-*.json"))) == 6
    text = (target / "rules" / "gputide-recording.rules.yaml").read_text()
    assert "<= 0.03)" in text
    assert yaml.safe_load(text)["groups"]
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    assert program(tmp_path / "no-data", "admin", "grafana", "export", str(in_the_way)).status == 2


def test_an_exceeded_budget_is_told_in_the_language_that_is_set(
    program: Program, planned: Path, tmp_path: Path
) -> None:
    (planned / "prices.toml").write_text('[[budget]]\nnamespace = "search"\nper_month = 1\n')
    try:
        config = settings_file(tmp_path, "https://hooks.example/x")
        out = tmp_path / "out"
        said = program(
            planned, "--config", config, "--set", "notify.language=zh", "admin", "notify", "send", "--to-file", str(out)
        )
        assert said.status == 0, said.err
        sent = {path.name: json.loads(path.read_text()) for path in out.iterdir()}
    finally:
        (planned / "prices.toml").unlink()
    told = [body for body in sent.values() if any("预算" in line for line in (body["title"], *body["lines"]))]
    assert told, sent
    assert all("$" in " ".join(body["lines"]) for body in told)
