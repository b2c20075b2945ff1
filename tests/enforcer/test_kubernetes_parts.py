"""The parts by which the enforcer speaks to an API server: patches, kinds, refusals, rate, clock, equal contents."""

from __future__ import annotations

import copy
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from enforcer.kubernetes.json_patch import json_patch
from enforcer.kubernetes.kinds import API_KINDS, kind_named
from enforcer.kubernetes.reader import VERSIONS_MAX, SeenContents
from fleet.errors import GputideError, Refused, Unavailable
from wire.http_answer import Busy
from wire.kubernetes.read import ServerClock
from wire.kubernetes.refusals import BudgetForbids, Conflict, Deed, Expired, Forbidden, refusal
from wire.kubernetes.request_rate import RequestRate

RULES = Path(__file__).resolve().parents[2] / "docs" / "rbac-writer.yaml"
KEYS = st.text(alphabet="ab/~. é", min_size=1, max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)
PATCH = Deed(verb="patch", resource="deployments.apps", namespace="team", name="a")


class Ticks:
    """A monotonic clock that stands unless it is slept on."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def applied(operations: list[dict[str, Any]], document: Any) -> Any:
    """What RFC 6902 makes of add, remove and replace."""
    result = copy.deepcopy(document)
    for operation in operations:
        *holders, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        holder = result
        for part in holders:
            holder = holder[int(part)] if isinstance(holder, list) else holder[part]
        place: Any = int(last) if isinstance(holder, list) else last
        if operation["op"] == "remove":
            del holder[place]
        else:
            assert operation["op"] == "add" or isinstance(holder, list) or place in holder
            holder[place] = operation["value"]
    return result


@given(OBJECTS, OBJECTS)
def test_patch_makes_the_one_into_the_other(before: dict[str, Any], after: dict[str, Any]) -> None:
    made = applied(json_patch(before, after, "7")[1:], before)
    assert json.dumps(made, sort_keys=True) == json.dumps(after, sort_keys=True)


@given(OBJECTS)
def test_patch_of_equal_objects_is_empty(document: dict[str, Any]) -> None:
    assert json_patch(document, copy.deepcopy(document), "7") == []


def test_patch_depends_on_the_version_that_was_read() -> None:
    first, *others = json_patch({"a": 1}, {"a": 2}, "7")
    assert first == {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"}
    assert others == [{"op": "replace", "path": "/a", "value": 2}]


@pytest.mark.parametrize("name", ["../secrets", "a/b", "a?x=1", "a%2fb", "", "A", "-a", "a" * 254, "ä", "a\n"])
def test_name_that_no_object_can_have_becomes_no_part_of_a_path(name: str) -> None:
    with pytest.raises(Refused):
        kind_named("Deployment").path("v1", "team", name)
    with pytest.raises(Refused):
        kind_named("Deployment").path("v1", name, "a")


def test_paths_are_those_of_the_api() -> None:
    assert kind_named("Pod").path("v1", "team", "a") == "/api/v1/namespaces/team/pods/a"
    assert kind_named("Pod").path("v1", None) == "/api/v1/pods"
    assert kind_named("Node").path("v1", "", "n") == "/api/v1/nodes/n"
    assert kind_named("Rollout").path("v1alpha1", "t", "r") == "/apis/argoproj.io/v1alpha1/namespaces/t/rollouts/r"


def test_kind_that_the_enforcer_has_no_business_with_is_refused() -> None:
    with pytest.raises(Refused, match="Secret"):
        kind_named("Secret")


def test_documented_rights_cover_every_kind_and_no_verb_that_empties() -> None:
    rules = [rule for document in yaml.safe_load_all(RULES.read_text("utf-8")) for rule in document.get("rules", ())]
    granted = {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    for kind in API_KINDS.values():
        assert {(kind.group, kind.plural, verb) for verb in ("get", "list")} & granted, kind
    assert not {verb for _, _, verb in granted} & {"deletecollection", "escalate", "bind", "impersonate", "*"}
    # Proposals of the planner that nobody took up; the writer's admission policy says which.
    assert {entry for entry in granted if entry[2] == "delete"} == {("gputide.io", "gpuplans", "delete")}
    assert not [resource for _, resource, _ in granted if resource in ("*", "secrets", "pods/exec", "roles")]
    assert {entry for entry in granted if entry[2] == "create"} == {
        ("", "pods/eviction", "create"),
        ("", "events", "create"),
        ("coordination.k8s.io", "leases", "create"),
        ("gputide.io", "gpuchanges", "create"),
        ("gputide.io", "gpuplans", "create"),
        ("gputide.io", "gpuplanparts", "create"),
        ("resource.k8s.io", "resourceclaims", "create"),
        ("resource.k8s.io", "resourceclaimtemplates", "create"),
    }


@pytest.mark.parametrize(
    ("status", "told", "retry_after", "expected"),
    [
        (401, "Unauthorized", None, Forbidden),
        (403, 'User "u" cannot patch resource "deployments" in API group "apps"', None, Forbidden),
        (403, "exceeded quota: compute", None, Refused),
        (400, 'admission webhook "w" denied the request', None, Refused),
        (409, "the object has been modified", None, Conflict),
        (410, "The provided continue parameter is too old", None, Expired),
        (413, "too large", None, Refused),
        (422, "invalid", None, Refused),
        (429, "too many requests", "3", Busy),
        (429, "too many requests", None, Unavailable),
        (500, "internal", None, Unavailable),
        (500, "This pod has more than one PodDisruptionBudget", None, Refused),
        (503, "starting", "later", Unavailable),
        (504, "timed out", "1", Busy),
    ],
)
def test_every_refusal_is_one_of_our_errors(
    status: int, told: str, retry_after: str | None, expected: type[GputideError]
) -> None:
    error = refusal(PATCH, status, {"message": told}, retry_after, rules_file=RULES.name)
    assert type(error) is expected
    assert "patch deployments.apps team/a" in str(error)


@pytest.mark.parametrize(
    ("status", "retry_after", "expected"),
    [
        (403, None, Forbidden),
        (404, None, Expired),
        (410, None, Expired),
        (400, None, Unavailable),
        (409, None, Unavailable),
        (429, "3", Busy),
        (500, None, Unavailable),
    ],
)
def test_read_that_is_refused_is_a_missing_right_or_may_work_later(
    status: int, retry_after: str | None, expected: type[GputideError]
) -> None:
    deed = Deed(verb="watch", resource="pods")
    assert type(refusal(deed, status, {"message": "no"}, retry_after, rules_file=RULES.name)) is expected


def test_missing_right_names_verb_resource_and_namespace_and_where_it_is_written() -> None:
    told = {"message": 'deployments.apps "a" is forbidden: User "u" cannot patch resource "deployments"'}
    said = str(refusal(PATCH, 403, told, None, rules_file=RULES.name))
    assert "RBAC lacks verb patch on resource deployments.apps in namespace team" in said
    assert f'add rule {{apiGroups: ["apps"], resources: ["deployments"], verbs: ["patch"]}} of {RULES.name}' in said


def test_budget_that_forbids_an_eviction_is_named() -> None:
    cause = {"reason": "DisruptionBudget", "message": "The disruption budget web needs 2 healthy pods"}
    error = refusal(
        PATCH, 429, {"message": "Cannot evict", "details": {"causes": [cause]}}, "10", rules_file=RULES.name
    )
    assert isinstance(error, BudgetForbids)
    assert "web needs 2" in str(error)


@pytest.mark.parametrize("details", [None, 7, [], {"causes": 7}, {"causes": [7, {"reason": 1}]}])
def test_malformed_status_is_unavailable_like_any_other(details: object) -> None:
    assert type(refusal(PATCH, 429, {"message": 5, "details": details}, None, rules_file=RULES.name)) is Unavailable


def test_quoted_object_does_not_hide_what_is_wrong_with_it() -> None:
    told = {"message": f"invalid: {'x' * 5000} unknown field spec.replica"}
    said = str(refusal(PATCH, 422, told, None, rules_file=RULES.name))
    assert said.endswith("unknown field spec.replica")
    assert len(said) < 600


def test_burst_is_free_and_then_requests_are_spaced() -> None:
    clock = Ticks()
    rate = RequestRate(per_second=10.0, burst=3, clock=clock, sleep=clock.sleep)
    waits = [rate.take() for _ in range(6)]
    assert waits == pytest.approx([0, 0, 0, 0.1, 0.1, 0.1])


@given(st.lists(st.floats(0, 2), min_size=1, max_size=60), st.integers(1, 5))
def test_no_span_holds_more_requests_than_rate_and_burst_allow(idle: list[float], burst: int) -> None:
    clock = Ticks()
    rate = RequestRate(per_second=4.0, burst=burst, clock=clock, sleep=clock.sleep)
    moments = []
    for seconds in idle:
        clock.sleep(seconds)
        rate.take()
        moments.append(clock.now)
    for first in range(len(moments)):
        for last in range(first, len(moments)):
            assert last - first + 1 <= burst + 4.0 * (moments[last] - moments[first]) + 1e-6


def test_nobody_asks_while_the_server_wants_to_be_left_alone() -> None:
    clock = Ticks()
    rate = RequestRate(per_second=10.0, burst=3, clock=clock, sleep=clock.sleep)
    rate.rest(5.0)
    assert rate.take() == pytest.approx(5.0)


def test_clock_is_the_servers_and_goes_on_between_its_answers() -> None:
    clock = Ticks()
    server = ServerClock(clock)
    assert server.now() is None
    server.hear("Tue, 13 Jan 2026 10:00:00 GMT")
    clock.sleep(2.5)
    assert server.now() == datetime(2026, 1, 13, 10, 0, 2, 500_000, tzinfo=UTC)


def test_second_that_was_cut_off_does_not_turn_the_clock_back() -> None:
    clock = Ticks()
    server = ServerClock(clock)
    server.hear("Tue, 13 Jan 2026 10:00:01 GMT")
    clock.sleep(0.9)
    server.hear("Tue, 13 Jan 2026 10:00:01 GMT")
    assert server.now() == datetime(2026, 1, 13, 10, 0, 1, 900_000, tzinfo=UTC)


def test_clock_that_was_set_is_followed_both_ways() -> None:
    clock = Ticks()
    server = ServerClock(clock)
    for date in ("Tue, 13 Jan 2026 10:00:00 GMT", "Tue, 13 Jan 2026 09:00:00 GMT", "Tue, 13 Jan 2026 11:00:00 GMT"):
        server.hear(date)
        assert f"{server.now():%a, %d %b %Y %H:%M:%S} GMT" == date


@pytest.mark.parametrize("date", [None, "", "yesterday", "Tue, 13 Jan 2026 10:00:00", "Tue, 99 Jan 2026 10:00:00 GMT"])
def test_header_that_is_no_date_tells_nothing(date: str | None) -> None:
    server = ServerClock(Ticks())
    server.hear(date)
    assert server.now() is None


def an_object(version: str, **changes: Any) -> dict[str, Any]:
    metadata = {"namespace": "team", "name": "a", "resourceVersion": version, "annotations": {}}
    found = {"kind": "Deployment", "metadata": metadata, "spec": {"replicas": 2}, "status": {"ready": 1}}
    for path, value in changes.items():
        holder: Any = found
        *parts, last = path.split("__")
        for part in parts:
            holder = holder[part]
        holder[last] = value
    return found


KEY = ("Deployment", "team", "a")
HAMI = {"hami.io/node-handshake": "Requesting_2026", "hami.io/mutex.lock": "x"}


@pytest.mark.parametrize(
    ("changes", "is_same"),
    [
        ({"status": {"ready": 2}}, True),
        ({"metadata__generation": 3}, True),
        ({"metadata__annotations": {"deployment.kubernetes.io/revision": "2"}}, True),
        ({"metadata__annotations": HAMI}, True),
        ({"spec": {"replicas": 3}}, False),
        ({"metadata__annotations": {"note": "x"}}, False),
        ({"metadata__labels": {"a": "b"}}, False),
        ({"metadata__uid": "another"}, False),
        ({"data": {"a": "b"}}, False),
    ],
)
def test_what_a_controller_reports_leaves_an_object_the_same_and_what_people_write_does_not(
    changes: dict[str, Any], is_same: bool
) -> None:
    seen = SeenContents()
    seen.see(an_object("1"))
    seen.see(an_object("2", **changes))
    assert seen.is_same(KEY, "1") is is_same
    assert seen.is_same(KEY, "2")


def test_object_that_was_never_seen_is_not_the_same() -> None:
    assert not SeenContents().is_same(KEY, "1")


def test_versions_that_are_remembered_are_bounded() -> None:
    seen = SeenContents()
    for version in range(VERSIONS_MAX + 10):
        seen.see(an_object(str(version)))
    assert not seen.is_same(KEY, "9")
    assert seen.is_same(KEY, "10")
    assert seen.is_same(KEY, str(VERSIONS_MAX + 9))
