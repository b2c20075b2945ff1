"""An object's change in the file that keeps it: what stays, what is a conflict, what can't be edited."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from enforcer.emit.manifest_edit import desired, documents, edited, holds
from tests.enforcer.forge.test_pull_request import RANKER, a_patch

Json = dict[str, Any]
LIMITS = ("spec", "template", "spec", "containers", 1, "resources", "limits")


def changed(text: str, wanted: Json, number: int = 1) -> list[str]:
    """Lines that are not the same, as a diff has them."""
    after = edited(text, number, wanted)
    assert after is not None
    before_lines, after_lines = text.splitlines(), after.splitlines()
    return [
        *(f"-{line}" for line in before_lines if line not in after_lines),
        *(f"+{line}" for line in after_lines if line not in before_lines),
    ]


def ranker() -> Json:
    found: Json = copy.deepcopy(documents(RANKER.encode())[1][1])
    return found


def at(value: Any, *places: str | int) -> Any:
    for place in places:
        value = value[place]
    return value


def test_values_are_replaced_and_their_comments_stay() -> None:
    wanted = ranker()
    wanted["spec"]["replicas"] = 2
    assert changed(RANKER, wanted) == [
        "-  replicas: 4       # four since May", "+  replicas: 2       # four since May",
    ]  # fmt: skip


def test_keys_are_added_at_the_end_of_their_mapping_and_taken_away_with_their_lines() -> None:
    wanted = ranker()
    at(wanted, *LIMITS)["nvidia.com/gpucores"] = "30"
    del wanted["spec"]["replicas"]
    assert changed(RANKER, wanted) == [
        "-  replicas: 4       # four since May", "+            nvidia.com/gpucores: '30'",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "a: &x {b: 1}\nc: *x\n", "a: 1\na: 2\n", "{{ if .Values.a }}\na: 1\n{{ end }}\n", "a: [1\n", "\t",
        "a: !!python/x 1",
        "- a\n- b\n", "", "# nothing\n",
    ],
)  # fmt: skip
def test_file_that_is_no_manifest_holds_nothing(text: str) -> None:
    patch = a_patch()
    assert not [value for _, value in documents(text.encode()) if holds(value, patch)]


def test_text_that_is_no_unicode_holds_nothing() -> None:
    assert documents(b"\xff\xfe") == []


@pytest.mark.parametrize(
    ("change", "is_held"),
    [
        ({}, True),
        ({"kind": "StatefulSet"}, False),
        ({"apiVersion": "extensions/v1beta1"}, False),
        ({"metadata": {"name": "other"}}, False),
        ({"metadata": {"name": "ranker", "namespace": "search"}}, True),
        ({"metadata": {"name": "ranker", "namespace": "ads"}}, False),
        ({"metadata": "ranker"}, False),
    ],
)
def test_object_is_known_by_group_kind_name_and_namespace(change: Json, is_held: bool) -> None:
    assert holds({**ranker(), **change}, a_patch()) is is_held


@pytest.mark.parametrize("here", ["24000", 24000, "24k", "24e3"])
def test_amount_is_the_same_however_it_is_written(here: object) -> None:
    manifest = ranker()
    at(manifest, *LIMITS)["nvidia.com/gpumem"] = here
    wanted, conflicts = desired(manifest, a_patch())
    assert (at(wanted, *LIMITS)["nvidia.com/gpumem"], conflicts) == ("4000", ())


def test_what_the_plan_wants_already_is_left_as_it_is_written() -> None:
    manifest = ranker()
    at(manifest, *LIMITS)["nvidia.com/gpumem"] = "4k"
    wanted, conflicts = desired(manifest, a_patch())
    assert (at(wanted, *LIMITS)["nvidia.com/gpumem"], conflicts) == ("4k", ())


@pytest.mark.parametrize(
    ("here", "found"),
    [(9000, "9000"), ("many\n" * 99, " ".join(["many"] * 20)), ({"a": 1}, "{'a': 1}"), (True, "True")],
)
def test_other_values_are_conflicts(here: object, found: str) -> None:
    manifest = ranker()
    at(manifest, *LIMITS)["nvidia.com/gpumem"] = here
    (conflict,) = desired(manifest, a_patch())[1]
    assert conflict.place == "spec.template.spec.containers[server].resources.limits.nvidia.com/gpumem"
    assert (conflict.found, conflict.expected) == (found, "24000")


def test_file_without_the_container_can_not_take_its_change() -> None:
    manifest = ranker()
    del at(manifest, *LIMITS[:4])[1]
    (conflict,) = desired(manifest, a_patch())[1]
    assert (conflict.place, conflict.found) == ("spec.template.spec.containers[server]", None)


SCALARS = st.one_of(
    st.integers(-9, 99), st.booleans(), st.text(max_size=8), st.sampled_from(["1", "null", "yes", "#x", ": "])
)
KEYS = st.text(alphabet="abcxyz-./", min_size=1, max_size=6)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)
DOCUMENTS = st.dictionaries(KEYS, VALUES, min_size=1, max_size=4)


@settings(max_examples=300, deadline=None)
@given(
    first=DOCUMENTS, now=DOCUMENTS, change=DOCUMENTS, flow=st.sampled_from([None, False, True]), ending=st.booleans()
)
def test_edit_is_exact_or_none(first: Json, now: Json, change: Json, flow: bool | None, ending: bool) -> None:
    text = yaml.safe_dump_all([first, now], default_flow_style=flow, allow_unicode=True)
    text = text if ending else text.rstrip("\n")
    if [value for _, value in documents(text.encode())] != [first, now]:
        return
    wanted = {**now, **change}
    after = edited(text, 1, wanted)
    if after is not None:
        assert list(yaml.safe_load_all(after)) == [first, wanted]
        assert edited(after, 1, wanted) == after


@settings(max_examples=150, deadline=None)
@given(now=DOCUMENTS, change=st.dictionaries(KEYS, SCALARS, min_size=1, max_size=3))
def test_scalars_of_a_block_can_be_changed(now: Json, change: Json) -> None:
    text = yaml.safe_dump(now, default_flow_style=False, allow_unicode=True)
    if [value for _, value in documents(text.encode())] == [now]:
        assert edited(text, 0, {**now, **change}) is not None
