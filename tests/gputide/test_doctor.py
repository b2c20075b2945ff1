"""The doctor's catalogue, how it runs checks, and what it says of data folder, files and services."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.core import TyperGroup

from enforcer.agent.view_server import ViewServer
from fleet.data_folder import open_data_folder
from fleet.errors import Unavailable
from fleet.sentences import sentence
from fleet.settings.settings import Settings, setting_fields
from fleet.words import Language, Words
from fleet.words import catalogue as catalogue_of
from gputide import cli
from gputide.doctor import data as doctor_data
from gputide.doctor.answer import doctor_answer, exit_status
from gputide.doctor.checks import Wish, checks_of, run_checks
from gputide.doctor.cluster_rights import ROLES, Rule, rules
from gputide.doctor.data import daily_growth, data_checks, history_checks
from gputide.doctor.engines import _kafka_state
from gputide.doctor.finding import Area, Check, Diagnosis, State, catalogue, finding, otherwise, unchecked, well
from gputide.doctor.installation import earliest_end, installation_checks
from gputide.doctor.services import (
    dashboard_checks,
    notify_checks,
    receiver_checks,
    relief_checks,
)
from gputide.session import Session
from pipeline.bus.kafka_survey import TopicSurvey
from tests.gputide.conftest import Program

EXPIRED = """-----BEGIN CERTIFICATE-----
MIIBCDCBr6ADAgECAgEBMAoGCCqGSM49BAMCMA4xDDAKBgNVBAMMA29sZDAeFw0y
MDAxMDEwMDAwMDBaFw0yMDAxMDIwMDAwMDBaMA4xDDAKBgNVBAMMA29sZDBZMBMG
ByqGSM49AgEGCCqGSM49AwEHA0IABAnAtKiEwLOgR7YUwVyy3t28l33DZCXhPYa2
bzsfAEs1X20b2AKDv47PasozL7Diuw7d2gDdFgQIMun7FSnI6LQwCgYIKoZIzj0E
AwIDSAAwRQIhAPzbHKeAqO6WxeP/iOVQjcDWdCuO5upN4H1h+CaQb8RlAiB4JF6B
733TRfjdOnDAS0F5aIDEj3NFuw3AjbqPDL7TUQ==
-----END CERTIFICATE-----
"""
"""Held for the first of January 2020."""
SETTINGS = frozenset(dict(setting_fields()))
ENGLISH = Words(language=Language.EN)
HOSTILE = "'; rm -rf /\n\u202eevil"


def codes(found: Iterable[Diagnosis]) -> set[str]:
    return {one.kind.code for one in found if one.kind is not None}


def a_check(look: Callable[[], list[Diagnosis]], name: str = "one", **changes: object) -> Check:
    return Check(area=Area.DATA, name=name, look=look, codes=("disk-low",), **changes)  # type: ignore[arg-type]


def test_every_code_is_made_by_some_check_and_no_check_makes_another(repository: Path, tmp_path: Path) -> None:
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (repository / "gputide" / "doctor").glob("*.py"))
    short = {code.removeprefix("prometheus-") for code in catalogue() if code.startswith("prometheus-")}
    told = {word for text in re.findall(r'"([a-z0-9 -]+)"', sources) for word in text.split()}
    unmade = {code for code in catalogue() if f'"{code}"' not in sources and code not in told}
    assert {code for code in unmade if code.removeprefix("prometheus-") not in short} == set()
    assert set(re.findall(r'finding\(\s*"([a-z0-9-]+)"', sources)) <= set(catalogue())
    settings = Settings.model_validate(
        {
            "scan": {"url": "http://127.0.0.1:1"}, "flink": {"rest": "http://127.0.0.1:1"},
            "notify": {"channels": {"ops": {"kind": "slack", "url_file": "/none"}}},
        }
    )  # fmt: skip
    session = Session(data_path=tmp_path, settings=settings, now_override=None, is_quiet=True)
    checks = checks_of(session, Wish(areas=tuple(Area)))
    made = {code for check in checks for code in check.codes}
    assert made == set(catalogue())


def test_every_command_of_ours_that_mends_is_one_that_exists() -> None:
    program = typer.main.get_command(cli.app)
    for kind in catalogue().values():
        command = re.sub(r"\{[a-z_]+\}", "x", kind.mend).partition("  #")[0]
        words = shlex.split(command)
        if words[0] != "gputide":
            continue
        words = words[1:]
        while words[0].startswith("--"):
            assert words[0] in ("--set", "--data-dir"), kind.code
            if words[0] == "--set":
                assert words[1].partition("=")[0] in {*SETTINGS, "x"}, kind.code
            words = words[2:]
        verb: Any = program
        params = []
        for word in words:
            if word.startswith("-") or not isinstance(verb, TyperGroup):
                break
            verb = verb.get_command(typer.Context(program), word)
            assert verb is not None, kind.mend
            params += verb.params
        known = {word for param in params for word in (*param.opts, *param.secondary_opts)}
        assert {word for word in words[1:] if word.startswith("-")} <= known, kind.code


def test_every_finding_says_what_it_disables_and_how_it_is_seen() -> None:
    for kind in catalogue().values():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", kind.code)
        assert str(kind.says).endswith("."), kind.code
        assert str(kind.disables).endswith("."), kind.code
        assert len(kind.mend) > 5, kind.code
        assert len(kind.sign) > 10, kind.code


def test_names_of_tenants_cannot_break_out_of_a_command() -> None:
    found = finding("prometheus-pod-silent", HOSTILE, namespace="team", pod=HOSTILE)
    assert shlex.split(found.mend)[4] == "'; rm -rf / evil"
    assert "\n" not in found.found_in(ENGLISH)
    assert "\u202e" not in found.found_in(ENGLISH)


def test_check_that_hangs_is_unchecked_and_keeps_nobody_waiting() -> None:
    never = threading.Event()

    def hang() -> list[Diagnosis]:
        never.wait(30)
        return []

    hanging = [a_check(hang, f"hangs {number}", seconds_max=0.2) for number in range(3)]
    started = time.monotonic()
    found = run_checks([*hanging, a_check(lambda: [well("fine")], "two")], parallel_max=2)
    never.set()
    assert time.monotonic() - started < 5
    assert [one.state for one in found] == [State.UNCHECKED] * 3 + [State.OK]
    assert str(found[0].said) == "not done in 0.2 s"


def test_checks_run_beside_each_other() -> None:
    together = threading.Barrier(2, timeout=10)

    def meet() -> list[Diagnosis]:
        together.wait()
        return [well("met")]

    found = run_checks([a_check(meet, "one"), a_check(meet, "two")])
    assert [str(one.said) for one in found] == ["met", "met"]


def test_check_whose_need_fails_is_unchecked_and_a_note_is_no_failure() -> None:
    def refuse() -> list[Diagnosis]:
        raise Unavailable("cannot reach it")

    bad = [finding("disk-low", "full")]
    noted = [finding("lease-held", "other")]
    after = a_check(lambda: [well("looked")], "second", needs="first")
    for look, state in ((refuse, State.UNCHECKED), (lambda: bad, State.UNCHECKED), (lambda: noted, State.OK)):
        found = run_checks([after, a_check(look, "first")])
        assert found[0].state is state
    assert run_checks([a_check(refuse, "first")])[0].said == "cannot reach it"


def test_last_word_of_a_look_holds_only_where_it_found_nothing() -> None:
    for before, kept in (([], ["fine"]), ([finding("disk-low", "full")], ["full"]), ([unchecked("away")], ["away"])):
        (check,) = (a_check(lambda before=before: [*before, otherwise("fine")]),)  # type: ignore[misc]
        assert [str(one.said) for one in run_checks([check])] == kept


def test_bug_in_a_check_is_no_finding() -> None:
    def wrong() -> list[Diagnosis]:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_checks([a_check(wrong)])


def test_exit_status_tells_findings_from_what_is_away() -> None:
    note, warning = finding("lease-held", "y"), finding("disk-filling", "y")
    away, unknown = finding("kafka-unreachable", "y"), unchecked("y")
    cases: tuple[list[Diagnosis], ...] = ([], [note, unknown], [warning], [warning, away])
    assert [exit_status(found, is_strict=False) for found in cases] == [0, 0, 1, 5]
    assert [exit_status(found, is_strict=True) for found in ([], [note], [unknown])] == [0, 1, 1]


def test_rights_are_those_that_the_documented_roles_grant(repository: Path) -> None:
    wanted: dict[str, set[tuple[str, ...]]] = {role: set() for role in ROLES}
    for role, page in (("reader", "rbac-reader"), ("node", "rbac-reader"), ("writer", "rbac-writer"),
                       ("relief", "rbac-relief"), ("agent", "agent")):  # fmt: skip
        for manifest in yaml.safe_load_all((repository / "docs" / f"{page}.yaml").read_text(encoding="utf-8")):
            name = manifest["metadata"]["name"]
            if manifest["kind"] not in ("Role", "ClusterRole") or not name.startswith(f"gputide-{role}"):
                continue
            place = manifest["metadata"].get("namespace", "")
            for rule in manifest["rules"]:
                names = sorted(rule.get("resourceNames", ()))
                wanted[role] |= {
                    (group, resource, verb, "own" if place == "gputide" else place, *names)
                    for group in rule["apiGroups"] for resource in rule["resources"] for verb in rule["verbs"]
                }  # fmt: skip
    asked: dict[str, set[tuple[str, ...]]] = {role: set() for role in ROLES}
    for rule in rules():
        asked[rule.role] |= {
            (rule.group, resource, verb, rule.namespace, *sorted(rule.names))
            for resource in rule.resources for verb in rule.verbs
        }  # fmt: skip
    assert asked == wanted


def test_end_of_a_certificate_is_read_and_nothing_else_is_one(repository: Path) -> None:
    pem = (repository / "tests" / "pipeline" / "certificates" / "receiver.pem").read_text()
    assert earliest_end(pem) == datetime(2126, 10, 28, 11, 56, 1, tzinfo=UTC)
    assert earliest_end(f"{pem}\n{EXPIRED}") == datetime(2020, 1, 2, tzinfo=UTC)
    assert earliest_end(pem[: len(pem) // 2] + "\n-----END CERTIFICATE-----\n") is None
    assert earliest_end("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----") is None
    assert earliest_end("") is None


def test_growth_is_of_full_days_alone(tmp_path: Path) -> None:
    for day, size in (("2026-01-05", 100), ("2026-01-06", 300), ("2026-01-07", 5)):
        folder = tmp_path / "pod_usage" / f"dt={day}" / "cluster=c1"
        folder.mkdir(parents=True)
        (folder / "a.parquet").write_bytes(b"x" * size)
    assert daily_growth(tmp_path) == 200
    assert daily_growth(tmp_path / "none") == 0


def test_data_folder_and_history_that_are_well_have_no_error(replayed: Path, program: Program) -> None:
    said = program(replayed, "doctor", "data", "history", "--format", "json")
    document = said.document
    assert document["schema"] == "gputide.doctor/v1"
    assert document["areas"] == ["data", "history"]
    assert {one["severity"] for one in document["diagnoses"]} <= {None, "warning", "note"}
    measures = {one["subject"] for one in document["diagnoses"] if one["code"] == "measure-missing"}
    assert "sm_active_ratio" not in measures


def test_traps_of_the_data_folder_are_named(replayed: Path, program: Program) -> None:
    (replayed / "freeze").write_text("by alice\n")
    (replayed / "dead-letters").mkdir(exist_ok=True)
    (replayed / "dead-letters" / "1").write_bytes(b"x")
    with (replayed / "ledger.jsonl").open("a") as ledger:
        ledger.write("{}\n")
    future = time.time() + 3600
    os.utime(replayed / "freeze", (future, future))
    said = program(replayed, "doctor", "data", "--format", "json")
    codes = {one["code"] for one in said.document["diagnoses"]} - {None}
    assert said.status == 1
    assert codes >= {"folder-frozen", "dead-letters", "ledger-broken", "clock-behind-data"}
    only = program(replayed, "doctor", "--only", "dead-*", "--format", "csv")
    assert [line.split(",")[0:2] for line in only.out.splitlines()[1:]] == [["data", "folder"]]


def test_data_folder_is_closed_to_others_and_an_open_one_is_named(tmp_path: Path, program: Program) -> None:
    folder = tmp_path / "data"
    open_data_folder(folder, create=True)
    assert folder.stat().st_mode & 0o077 == 0
    assert {one["code"] for one in program(folder, "doctor", "data", "--format", "json").document["diagnoses"]} == {
        None
    }
    folder.chmod(0o755)
    (open_one,) = (
        one for one in program(folder, "doctor", "data", "--format", "json").document["diagnoses"] if one["code"]
    )
    assert (open_one["code"], open_one["mend"]) == ("data-folder-open", f"chmod 700 {folder}")


def test_file_that_went_since_it_was_listed_is_no_bug(tmp_path: Path, program: Program) -> None:
    open_data_folder(tmp_path / "data", create=True)
    (tmp_path / "data" / "gone").symlink_to(tmp_path / "none")
    (tmp_path / "data" / "freezes.jsonl").write_text("{}\n")
    said = program(tmp_path / "data", "doctor", "data", "--format", "json")
    assert {one["code"] for one in said.document["diagnoses"]} == {None, "ledger-broken"}


@pytest.mark.parametrize(
    ("code", "bound", "value"),
    [
        ("disk-low", "DISK_BYTES_MIN", 2**62),
        ("disk-filling", "FULL_DAYS_MIN", 2**62),
        ("bus-filling", "BUS_RATIO_MAX", 0.0),
    ],
)
def test_disk_and_bus_beyond_a_bound_are_named(
    replayed: Path, monkeypatch: pytest.MonkeyPatch, code: str, bound: str, value: float
) -> None:
    session = Session(data_path=replayed, settings=Settings(), now_override=None, is_quiet=True)
    (check,) = (check for check in data_checks(session) if check.name == "disk")
    assert codes(run_checks([check])) == set()
    monkeypatch.setattr(doctor_data, bound, value)
    assert codes(run_checks([check])) == {code}


def test_history_that_ended_or_has_holes_is_named(replayed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(data_path=replayed, settings=Settings(), now_override=None, is_quiet=True)
    told = codes(run_checks(history_checks(session)))
    assert told.isdisjoint({"history-stale", "history-gaps", "history-short", "history-none"})
    late = replace(session, now_override=session.now() + timedelta(days=1))
    assert codes(run_checks(history_checks(late))) >= {"history-stale", "history-gaps"}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, None),
        ({"committed": {0: 500, 1: 500}}, "kafka-lag"),
        ({"begins": {0: 1_000_000, 1: 1_199_000}, "committed": {0: 5}}, None),
        ({"ends": {0: 10**6, 1: 10**6}, "begins": {0: 10**6, 1: 10**6}, "committed": {0: 5}}, None),
        ({"behind": (1,)}, "kafka-partition-down"),
        ({"leaderless": (0,)}, "kafka-partition-down"),
        ({"committed": {}}, "kafka-group-silent"),
    ],
)
def test_state_of_a_topic_is_named(changes: dict[str, Any], code: str | None) -> None:
    sound = TopicSurvey(
        brokers=1, partitions=8, copies=1, leaderless=(), behind=(), topic_operations=None, group_operations=None,
        ends={0: 1_000_500, 1: 1_200_000}, begins={}, committed={0: 1_000_400, 1: 1_199_000},
    )  # fmt: skip
    found = _kafka_state(Settings(), replace(sound, **changes), "b:9092")
    assert codes(found) == ({code} if code else set())


def test_receiver_that_could_not_start_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("short prometheus\n")
    for receiver, code in (
        ({"scrape_tokens_file": tmp_path / "tokens"}, "receiver-tls"),
        ({"insecure_listen": True}, "receiver-open"),
        ({}, None),
    ):
        found = codes(run_checks(receiver_checks(Settings.model_validate({"receiver": receiver}))))
        assert found == ({code} if code else set())


def test_what_can_not_be_looked_at_is_said_and_not_passed_over(tmp_path: Path, program: Program) -> None:
    unknown = program(tmp_path, "doctor", "installation", "--role", "nope")
    assert (unknown.status, "there are reader" in unknown.err) == (2, True)
    assert "scan.url=none" in program(tmp_path, "doctor", "prometheus").err
    assert "notify.channels names none" in program(tmp_path, "doctor", "notify", "--format", "json").out


def test_missing_folder_is_named_with_the_command(tmp_path: Path, program: Program) -> None:
    said = program(tmp_path / "none", "doctor", "data")
    assert said.status == 1
    assert f"data-folder-missing: gputide --data-dir {tmp_path / 'none'} demo --once" in said.out
    assert program(tmp_path / "none", "doctor", "--only", "nothing-such").status == 2
    assert program(tmp_path / "none", "doctor", "prometheus").status == 2
    listed = program(tmp_path / "none", "doctor", "--codes", "--format", "json").document
    assert [kind["code"] for kind in listed["findings"]] == list(catalogue())


def test_files_that_settings_name_are_looked_at(tmp_path: Path, repository: Path) -> None:
    secret, soon = tmp_path / "tokens", tmp_path / "soon.pem"
    secret.write_text("a-token-of-more-than-32-characters-in-all sender\n")
    secret.chmod(0o644)
    soon.write_text(EXPIRED)
    # One of several authorities has ended: those whom the others know come in.
    valid = (repository / "tests" / "pipeline" / "certificates" / "receiver.pem").read_text()
    (tmp_path / "bundle.pem").write_text(valid + EXPIRED)
    settings = Settings.model_validate(
        {
            "receiver": {"tokens_file": secret},
            "scan": {"ca_file": soon, "password_file": tmp_path / "none"},
            "prometheus": {"ca_file": tmp_path / "bundle.pem"},
        }
    )
    named = [one for one in run_checks(installation_checks(settings)) if one.kind is not None]
    assert {(one.kind.code, one.subject) for one in named if one.kind is not None} == {
        ("secret-open", "receiver.tokens_file"), ("certificate-expires", "scan.ca_file"),
        ("file-unreadable", "scan.password_file"),
    }  # fmt: skip
    secret.chmod(0o600)
    codes = {one.kind.code for one in run_checks(receiver_checks(settings)) if one.kind is not None}
    assert codes == {"receiver-clear-text"}
    assert [one.state for one in run_checks(receiver_checks(Settings()))] == [State.OK]


@pytest.fixture
def listener() -> Iterator[int]:
    """Return a port on which connections are taken, and nothing is said."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_channel_is_reached_without_sending_and_its_address_is_not_told(tmp_path: Path, listener: int) -> None:
    hook = tmp_path / "hook"
    hook.write_text(f"http://127.0.0.1:{listener}/services/SECRET\n")

    def look() -> tuple[Diagnosis, ...]:
        channels = {"ops": {"kind": "webhook", "url_file": hook}}
        return run_checks(
            notify_checks(Settings.model_validate({"notify": {"channels": channels, "everything": ["ops"]}}))
        )

    assert [one.state for one in look()] == [State.OK]
    hook.write_text("http://127.0.0.1:1/services/SECRET\n")
    (away,) = look()
    assert away.kind is not None
    assert away.kind.code == "channel-unreachable"
    assert "SECRET" not in json.dumps([str(away.said), away.mend, away.subject])
    hook.write_text("")
    (unusable,) = look()
    assert unusable.kind is not None
    assert unusable.kind.code == "channel-unusable"


def test_agents_that_answer_are_told_from_one_that_does_not() -> None:
    def look(url: str) -> set[str]:
        (first, _) = relief_checks(Settings.model_validate({"relief": {"agents": [url]}}))
        return {one.kind.code for one in run_checks([first]) if one.kind is not None}

    agent = ViewServer("node-1", host="127.0.0.1", port=0, full_ratio=0.97, free_ratio_min=0.03)
    agent.start()
    try:
        host, port = agent.address
        assert look(f"http://{host}:{port}") == set()
    finally:
        agent.stop()
    assert look(f"http://{host}:{port}") == {"relief-agent-unreachable"}


def test_doors_of_the_web_app_that_do_not_hold_are_named(tmp_path: Path) -> None:
    rights = tmp_path / "rights.toml"

    def look(**dashboard: object) -> set[str]:
        settings = Settings.model_validate({"dashboard": {"rights_file": rights, **dashboard}})
        return {one.kind.code for one in run_checks(dashboard_checks(settings)) if one.kind is not None}

    assert look(access="token") == {"access-unusable"}
    rights.write_text('[[right]]\nperson = "mei"\nrole = "viewer"\n')
    assert look(access="proxy") == set()
    assert look(access="proxy", proxy_networks=["10.0.0.0/8", "0.0.0.0/0"]) == {"proxy-anybody"}
    sign_in = {"access": "oidc", "oidc_client_id": "gputide", "public_url": "http://127.0.0.1:8050"}
    assert look(**sign_in, oidc_issuer="http://127.0.0.1:1") == {"oidc-unreachable"}


def test_objectives_without_an_answer_are_named() -> None:
    settings = Settings.model_validate({"enforcer": {"watch_prometheus_url": "http://127.0.0.1:1"}})
    (found,) = run_checks(relief_checks(settings)[1:])
    assert found.kind is not None
    assert (found.kind.code, found.subject) == ("objective-unusable", "enforcer.watch_prometheus_url")


@pytest.mark.parametrize(("backend", "is_found"), [("kai", True), ("hami", False), ("nvidia_mps", False)])
def test_backend_that_nothing_real_has_accepted_is_a_warning(
    backend: str, is_found: bool, tmp_path: Path, program: Program
) -> None:
    said = program(
        tmp_path, "--set", f"enforcer.backend={backend}", "doctor", "installation", "--format", "json"
    ).document
    assert ("backend-experimental" in {item["code"] for item in said["diagnoses"]}) is is_found


@pytest.mark.parametrize("code", sorted(catalogue()))
def test_chinese_says_of_every_finding_what_it_is_and_what_it_disables(code: str) -> None:
    kind = catalogue()[code]
    for said in (kind.says, kind.disables):
        text = Words(language=Language.ZH).said(said)
        # Where commands are all that is disabled, marks and the commands alone are left.
        assert re.search(r"[\u4e00-\u9fff]", text) or text == str(said).replace(".", "。"), code


def test_answer_in_chinese_has_the_same_codes_as_in_english() -> None:
    found = [finding("disk-low", "x"), well("y"), unchecked("w")]
    answers = {
        language: doctor_answer(
            found, Words(language=language), at=datetime(2026, 1, 1, tzinfo=UTC), looked_at=[Area.DATA],
            unused=[Area.KAFKA], for_people=True,
        )
        for language in Language
    }  # fmt: skip
    english, chinese = answers[Language.EN], answers[Language.ZH]
    assert english.headline == ("1 errors, 0 warnings, 0 notes; 1 well, 1 could not be checked",)
    assert chinese.headline == ("1 个错误，0 个警告，0 个提示；1 项正常，1 项无法检查",)
    assert [row[2] for row in chinese.listings[0].rows] == ["错误", "正常", "未检查"]
    assert all("disk-low" in str(answer.document["diagnoses"]) for answer in answers.values())


def test_what_a_look_says_is_a_sentence_of_the_catalogue(repository: Path) -> None:
    prose = re.compile(r"[a-z]{2,} [a-z]{2,}")
    plain = []
    for path in sorted((repository / "gputide" / "doctor").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            said: list[ast.expr] = []
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                first = {"well": 0, "otherwise": 0, "unchecked": 0, "finding": 1}.get(node.func.id, len(node.args))
                said = node.args[first:]
            elif isinstance(node, ast.Assign) and any(getattr(name, "id", "") == "text" for name in node.targets):
                said = [node.value]
            for one in said:
                parts = one.values if isinstance(one, ast.JoinedStr) else [one]
                words = "=".join(str(part.value) if isinstance(part, ast.Constant) else "" for part in parts)
                plain += [f"{path.name}:{one.lineno}"] if prose.search(words) else []
    assert plain == []


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: f"{rule.role}-{rule.group}-{rule.resources[0]}")
def test_a_missing_right_says_in_chinese_what_is_lost(rule: Rule) -> None:
    assert re.search(r"[\u4e00-\u9fff]", Words(language=Language.ZH).say(f"doctor.right.{rule.disables}"))


def test_chinese_texts_of_the_doctor_are_chinese() -> None:
    chinese, english = Words(language=Language.ZH), catalogue_of(Language.EN)
    # Codes, names and values alone read alike in every language.
    alike = {"doctor.area.flink", "doctor.area.hive", "doctor.area.kafka", "doctor.area.prometheus"}
    told = {str(one.id) for one in english if str(one.id).startswith("doctor.")} - alike
    texts = {str(one.id): str(one.string) for one in catalogue_of(chinese.language)}
    commands = {name for name in told if str(english[name].string).startswith("`gputide ")}
    bare = {name for name in told - commands if not re.search(r"[\u4e00-\u9fff，；：（]", texts[name])}
    assert bare == set()


def test_an_error_that_is_a_sentence_is_said_in_chinese() -> None:
    def refuse() -> list[Diagnosis]:
        raise Unavailable(sentence("admission.silent"))

    (found,) = run_checks([a_check(refuse, "first")])
    assert re.search(r"[\u4e00-\u9fff]", found.found_in(Words(language=Language.ZH)))
