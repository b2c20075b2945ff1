"""`kubectl gputide watch` ends when nothing is due, and says where nobody acts; other versions are named."""

from __future__ import annotations

import json
from functools import partial
from itertools import count, islice, repeat
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from fleet.errors import Misconfigured, Refused
from gputide.kubectl.objects import ClusterObjects
from gputide.kubectl.program import app
from gputide.kubectl.verbs.watch import UNSEEN_SECONDS, steps
from tests.enforcer.scripted_api import Heard, ScriptedApi, Told

Head = dict[str, Any]


def head(apply: list[int] | None, *, seen: int = 2, **status: Any) -> Head:
    """A plan at generation 2."""
    spec = {"plan": "ab" * 32, **({} if apply is None else {"apply": apply})}
    return {
        "metadata": {"name": "plan-x", "generation": 2}, "spec": spec,
        "status": {"observedGeneration": seen, **status},
    }  # fmt: skip


def condition(kind: str, reason: str, *, is_true: bool = False, seen: int = 2) -> Head:
    return {
        "type": kind, "status": str(is_true), "reason": reason, "message": f"because {reason}",
        "observedGeneration": seen,
    }  # fmt: skip


APPLYING = head([1], state="Applying", underWay="1", conditions=[condition("Applied", "Waiting")])


@pytest.mark.parametrize(
    "last",
    [
        head(None, state="Approved"),
        head([1], state="Applied", applied="1", conditions=[condition("Applied", "Applied", is_true=True)]),
        head([], state="Undone", conditions=[condition("Applied", "NothingWanted")]),
        # Stage 2 is of the tide, which `gputide run tide` rolls: nobody waits for it.
        head([1, 2], state="Applied", applied="1", conditions=[condition("Applied", "Applied", is_true=True)]),
    ],
)
def test_watch_ends_where_nothing_is_due(last: Head) -> None:
    found = steps([APPLYING, APPLYING, last, head([1], state="Applying", underWay="2")])
    state = last["status"]["state"]
    assert [line.partition(": ")[2] for line in found] == ["Applying, under way: 1", state]


def test_watch_goes_on_while_something_is_due() -> None:
    waiting = head([1, 2], state="PartlyApplied", applied="1", conditions=[condition("Applied", "Waiting")])
    refused = head([1], state="Approved", conditions=[condition("Applied", "Refused")])
    before = head([1], seen=1, state="Applied", conditions=[condition("Applied", "Applied", is_true=True, seen=1)])
    end = head(None, state="Undone")
    found = [line.partition(": ")[2] for line in steps([before, waiting, refused, end])]
    assert found == ["Applied", "PartlyApplied", "Approved, not yet: because Refused", "Undone"]


def test_stage_that_was_taken_back_ends_it_as_refused() -> None:
    failed = head([1], state="Failed", conditions=[condition("Failed", "TakenBack", is_true=True)])
    with pytest.raises(Refused, match="was taken back: because TakenBack"):
        list(steps([APPLYING, failed]))


def test_wish_that_nobody_takes_up_is_named_once() -> None:
    heads = repeat(head([1], seen=1, state="Approved"), 3 * round(UNSEEN_SECONDS))
    found = list(steps(heads, now_seconds=partial(next, count())))
    assert [line for line in found if "does a controller run" in line] == found[1:]
    assert len(found) == 2


def test_plan_is_followed_by_a_watch_and_by_looks_where_that_is_forbidden(tmp_path: Path) -> None:
    def plan(version: int) -> Head:
        return {"metadata": {"name": "plan-x", "resourceVersion": str(version)}}

    def script(heard: Heard, number: int) -> Told:
        if "watch" not in heard.query:
            return Told(document=plan(number))
        if number > 2:
            return Told(status=403, document={"kind": "Status", "message": "no watch for you"})
        return Told(document=json.dumps({"type": "MODIFIED", "object": plan(7)}).encode() + b"\n")

    api = ScriptedApi(tmp_path, script)
    objects = ClusterObjects(api.kubeconfig, None)
    try:
        found = [one["metadata"]["resourceVersion"] for one in islice(objects.following("plan-x"), 4)]
    finally:
        objects.close()
        api.close()
    watches = [heard.query for heard in api.heard if "watch" in heard.query]
    assert found == ["1", "7", "3", "5"]
    assert [(query["resourceVersion"], query["fieldSelector"]) for query in watches] == [
        ("1", "metadata.name=plan-x"), ("3", "metadata.name=plan-x"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "words", [("top", "-n", "n"), ("top", "cards"), ("cost", "-A"), ("why", "p", "-n", "n"), ("plan",)]
)
def test_object_of_another_version_is_named(tmp_path: Path, words: tuple[str, ...]) -> None:
    def script(heard: Heard, _: int) -> Told:
        bare = {"metadata": {"name": "p", "namespace": "n", "creationTimestamp": "2026-01-12T00:00:00Z"}}
        is_one = heard.path.endswith("/advice")
        return Told(document=bare if is_one else {"metadata": {}, "items": [bare]})

    api = ScriptedApi(tmp_path, script)
    try:
        said = CliRunner().invoke(app, ["--kubeconfig", str(api.kubeconfig), *words])
    finally:
        api.close()
    assert isinstance(said.exception, Misconfigured), said.output
    assert "are of different versions" in str(said.exception)
