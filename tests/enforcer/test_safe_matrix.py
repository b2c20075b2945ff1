"""The judge of the fault matrix and its bars complain of what was not seen, not struck, not undone or not measured."""

from __future__ import annotations

import base64
import json
import runpy
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from http.client import IncompleteRead
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from bench.measured_run import ROOT
from bench.safe_matrix.bar import verdict
from bench.safe_matrix.case import Phase, Wanted, is_good
from bench.safe_matrix.judge import (
    ADMISSION,
    ALLOCATED,
    APART_SECONDS_MAX,
    WRITER,
    Look,
    Sampler,
    credential_of,
    not_as_planned,
    shares_of,
    stray_writes,
    with_compute,
)
from bench.safe_matrix.matrix import JUDGED, Line, code_digest, read
from tests.cluster.api import Api, Manifest
from tests.cluster.audit import Write

Answer = Callable[[], Manifest]


def a_pod(name: str, app: str, card: str = "", mib: int = 1000, **spec: str) -> Manifest:
    annotations = {ALLOCATED: f"{card},NVIDIA,{mib},0:;"} if card else {}
    metadata = {"name": name, "namespace": "n", "labels": {"app": app}, "annotations": annotations}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": metadata, "spec": {"nodeName": "node", **spec}, "status": ready}


class AnsweringApi(Api):
    """Gives the answers of a test, one after the other, the last one again and again."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)

    def ask(self, *_: Any, **__: Any) -> Manifest:
        """The next answer."""
        return (self._answers.pop(0) if len(self._answers) > 1 else self._answers[0])()


def two_pods() -> Manifest:
    return {"items": [a_pod("a-1", "a"), a_pod("a-2", "a")]}


def cut_short() -> Manifest:
    raise IncompleteRead(b"half")


def refused() -> Manifest:
    raise HTTPError("https://api", 503, "away", None, None)  # type: ignore[arg-type]


def not_a_list() -> Manifest:
    return {}


def sampled(*answers: Answer, seconds: float = 0.7) -> Sampler:
    with Sampler(api=AnsweringApi(*answers), namespace="n", least={"a": 2}) as sampler:
        time.sleep(seconds)
    return sampler


def test_pods_that_were_seen_all_the_time_are_no_complaint() -> None:
    sampler = sampled(two_pods)
    assert (sampler.blindness, sampler.breaches) == ([], [])


def test_api_server_that_refuses_every_look_is_a_complaint_with_its_reason() -> None:
    sampler = sampled(refused)
    assert sampler.breaches == []
    assert sampler.blindness == ["pods were never seen, last failure: HTTPError: HTTP Error 503: away"]


def test_answer_that_is_cut_short_does_not_end_the_looks() -> None:
    sampler = sampled(cut_short, two_pods)
    assert sampler.blindness == []
    assert sampler.looks


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_thread_that_died_is_a_complaint() -> None:
    sampler = sampled(two_pods, not_a_list)
    assert len(sampler.looks) == 1
    assert sampler.blindness == ["the thread that looks at pods died"]


def looked_at(*moments: float) -> Sampler:
    sampler = Sampler(api=AnsweringApi(two_pods), namespace="n", least={"a": 2})
    sampler.looks = [Look(at=moment, ready={"a": 2}, least={"a": 2}) for moment in moments[1:-1]]
    sampler._began, sampler._ended = moments[0], moments[-1]
    return sampler


@pytest.mark.parametrize(
    "moments", [(0.0, 5.0, 6.0), (0.0, 1.0, 6.0, 7.0), (0.0, 1.0, 6.0)], ids=["start", "middle", "end"]
)
def test_gap_between_looks_is_a_complaint_wherever_it_is(moments: tuple[float, ...]) -> None:
    sampler = looked_at(*moments)
    assert sampler.apart_seconds_max == 5.0 > APART_SECONDS_MAX
    assert sampler.blindness == ["pods were not seen for 5.0 s"]


def test_gap_within_a_declared_outage_is_none() -> None:
    sampler = looked_at(0.0, 1.0, 6.0, 7.0)
    sampler._outages.append((1.5, 5.5))
    assert (sampler.apart_seconds_max, sampler.blindness) == (1.0, [])


def test_pod_that_is_lost_twice_excuses_one_pod_once() -> None:
    with Sampler(api=AnsweringApi(lambda: {"items": []}), namespace="n", least={"a": 2}) as sampler:
        for _ in range(3):
            sampler.lose([("a", "a-1")])
        time.sleep(0.7)
    assert sampler.looks[-1].least == {"a": 1}
    assert sampler.breaches


# --- what cases come to ---


def a_write(verb: str, resource: str, name: str, **other: Any) -> Write:
    fields = {"user": WRITER, "namespace": "n", "status": 200, "is_dry": False, **other}
    return Write(verb=verb, resource=resource, name=name, **fields)


@pytest.mark.parametrize(
    "stray",
    [
        a_write("patch", "deployments", "a", namespace="other"),
        a_write("patch", "deployments", "z"),
        a_write("patch", "nodes", "some-node", namespace=""),
        a_write("delete", "pods", "a-7c-xyz12"),
        a_write("patch", "deployments", "a", user=ADMISSION),
        a_write("create", "gpuapprovals", "mine", namespace=""),
        a_write("delete", "gpuchanges", "plan-1", namespace=""),
        a_write("patch", "deployments", "a", credential="JTI=refused"),
    ],
    ids=str,
)
def test_write_that_no_approved_plan_asks_for_is_found_wherever_it_is_and_of_either_account(stray: Write) -> None:
    asked = [
        a_write("patch", "deployments", "a"),
        a_write("create", "pods/eviction", "a-7c-xyz12"),
        a_write("update", "gpuchanges", "plan-1", namespace=""),
        a_write("patch", "gpuplans/status", "p", namespace=""),
        a_write("create", "events", "e", user=ADMISSION),
        a_write("update", "gpuchanges", "plan-2", namespace="", credential="JTI=refused"),
    ]
    assert stray_writes(asked, "n", ["a"], {"JTI=refused"}) == []
    (said,) = stray_writes([*asked, stray], "n", ["a"], {"JTI=refused"})
    assert f"{stray.verb} {stray.resource} {stray.namespace}/{stray.name}" in said


def test_credential_is_the_id_of_a_token() -> None:
    claims = base64.urlsafe_b64encode(json.dumps({"jti": "7f"}).encode()).decode().rstrip("=")
    assert credential_of(f"head.{claims}.sign") == "JTI=7f"


RATIOS = {"a": 0.25, "c": 0.5}


@pytest.mark.parametrize(
    ("cards", "served"),
    [
        (["g0", "g0", "g1", "g2"], 2),
        (["g0", "g0", "g0", "g1"], 1),
        (["g0", "g0", "g0", "g0"], 0),
        (["g0", "g0", "g1", ""], 1),
        (["g0", "g0", "g9", "g1"], 1),
        (["g0", "g0", "g8", "g1"], 2),
    ],
    ids=["own cards", "three on one", "four on one", "no card", "beside a full neighbour", "beside a small neighbour"],
)
def test_replica_has_compute_where_all_pods_of_its_card_need_no_more_than_it_has(cards: list[str], served: int) -> None:
    neighbours = [a_pod("other", "filler", "g9"), a_pod("a-0", "a", "g8"), a_pod("a-1", "a", "g8")]
    pods = [a_pod(f"c-{number}", "c", card) for number, card in enumerate(cards)]
    assert with_compute([*pods, *neighbours], "c", 2, RATIOS) == served


def test_pod_that_is_not_bound_has_no_share() -> None:
    assert shares_of([a_pod("c-0", "c", "g0", nodeName="")]) == {}


def an_owner(gpumem: str) -> Manifest:
    containers = [{"resources": {"limits": {"nvidia.com/gpumem": gpumem}}}]
    return {"metadata": {"name": "c"}, "spec": {"template": {"spec": {"containers": containers}}}}


@pytest.mark.parametrize(
    ("gpumem", "card", "is_displaced", "complaints"),
    [
        ("3k", "g0", False, 0), ("3000", "g0", False, 0), ("2000", "g0", False, 1), ("3000", "g1", False, 1),
        ("3000", "g1", True, 0), ("2000", "g1", True, 1), ("none", "g0", False, 1),
    ],
)  # fmt: skip
def test_applied_is_what_has_the_limits_and_the_cards_of_the_plan(
    gpumem: str, card: str, is_displaced: bool, complaints: int
) -> None:
    planned = Counter({("g0", 3000): 1})
    pods = [a_pod("c-0", "c", card, mib=3000)]
    assert len(not_as_planned(an_owner(gpumem), pods, planned, is_displaced=is_displaced)) == complaints


# --- bars ---


def a_line(fault: str = "none", phase: str = "applied", seed: int = 0, **other: Any) -> Line:
    return {
        "code": "now", "fault": fault, "phase": phase, "seed": seed, "ends": ["applied", "applied"], "complaints": [],
        "struck": True, "breaches": [], "looks": 9, "unwanted": [], "pending": 0, "rescheduled_seconds": 0.0,
        "spread": {}, "undo": [], "seconds": 1.0, **other,
    }  # fmt: skip


def crashed(**other: Any) -> Line:
    return a_line(**{**dict.fromkeys(JUDGED), "complaints": ["AssertionError: no cluster"], **other})


def judged_by(bar: str) -> Callable[[Sequence[Line]], Any]:
    found: Callable[[Sequence[Line]], Any] = runpy.run_path(str(ROOT / "bench" / "bars" / bar))["judged"]
    return found


BARS = ("safe-abort", "safe-node-loss", "safe-scale-out", "safe-undo", "safe-writes")
GOOD = {
    "safe-scale-out": [a_line(spread={"beyond": 2, "with_compute": 2})],
    "safe-undo": [
        a_line(name)
        for name in ("none", "enforcer killed", "enforcer away 1 s", "API away 1 s", "quota full", "two enforcers")
    ],
}


def good(bar: str) -> list[Line]:
    return list(GOOD.get(bar, [a_line()]))


def asked(lines: Sequence[Line]) -> list[Wanted]:
    return [Wanted(fault=line["fault"], phase=Phase(line["phase"]), seed=line["seed"]) for line in lines]


@pytest.mark.parametrize("bar", BARS)
def test_bar_holds_where_every_case_that_was_asked_for_is_good(bar: str) -> None:
    assert verdict(good(bar), asked(good(bar)), judged_by(bar))[1] is True


@pytest.mark.parametrize("bar", BARS)
def test_bar_does_not_hold_where_a_case_came_to_no_end(bar: str) -> None:
    lines = [*good(bar), crashed(seed=1)]
    _, holds, more = verdict(lines, asked(lines), judged_by(bar))
    assert (holds, more["unmeasured"]) == (False, 1)
    assert "no cluster" in str(more["unmeasured_for"])


@pytest.mark.parametrize("bar", BARS)
def test_nobody_knows_whether_a_bar_holds_while_cases_are_missing(bar: str) -> None:
    lines = good(bar)
    assert verdict(lines, asked([*lines, a_line(seed=1)]), judged_by(bar))[1] is None
    assert verdict([], asked(lines), judged_by(bar))[1] is None


def test_undo_bar_counts_cases_with_something_to_undo_and_wants_one_of_every_fault() -> None:
    lines = good("safe-undo")
    lines[-1] = {**lines[-1], "phase": "canary starts", "ends": ["restored", "restored"]}
    value, holds, more = judged_by("safe-undo")(lines)
    assert (value, holds, more["undone"], more["never_undone"]) == (0, False, len(lines) - 1, ["two enforcers"])


@pytest.mark.parametrize("wrong", [{"undo": ["a/spec: 1 is 2"]}, {"complaints": ["x"]}, dict.fromkeys(JUDGED)])
def test_case_that_left_something_behind_or_was_not_judged_is_not_good(wrong: dict[str, Any]) -> None:
    assert is_good(a_line())
    assert not is_good(a_line(**wrong))


def test_lines_of_other_code_do_not_count_and_the_last_of_a_case_does(tmp_path: Path) -> None:
    results = tmp_path / "lines.jsonl"
    lines = [a_line(pending=1), a_line(pending=2), a_line(seed=1, code="before")]
    results.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    assert [line["pending"] for line in read(results, "now").values()] == [2]
    assert len(read(results, None)) == 2


def test_digest_changes_with_what_is_shipped_and_with_the_judge(tmp_path: Path) -> None:
    for folder in ("enforcer", "bench/safe_matrix", "tests/cluster"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(ROOT / "bench" / "safe_matrix" / "judge.py", tmp_path / "bench" / "safe_matrix")
    found = [code_digest(tmp_path)]
    for path in ("enforcer/guard.py", "bench/safe_matrix/judge.py", "tests/cluster/audit.py"):
        (tmp_path / path).write_text("changed = True\n", encoding="utf-8")
        found.append(code_digest(tmp_path))
    assert len(set(found)) == 4
