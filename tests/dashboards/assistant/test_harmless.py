"""Whatever tenants write, an answer shows it cleaned, bounded and marked."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.assistant.harmless import ANSWER_BYTES_MAX, NAME_CHARS_MAX, OWN_WORDS, Harmless, cleaned

NAMES = st.sampled_from(["name", "reason", "manifest", "state", "workload"])
LEAVES = st.one_of(st.text(max_size=80), st.integers(), st.none(), st.floats())
CONTENT = st.dictionaries(
    NAMES, st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4))
)


def texts(value: Any, path: str = "") -> list[tuple[str, str, str]]:
    """Path, key and text of every text."""
    if isinstance(value, dict):
        return [one for key, part in value.items() for one in texts(part, f"{path}.{key}".lstrip("."))]
    if isinstance(value, list):
        return [one for part in value for one in texts(part, f"{path}[]")]
    return [(path, path.rpartition(".")[2].rstrip("[]"), value)] if isinstance(value, str) else []


@given(CONTENT)
def test_every_text_is_marked_or_one_word_of_ours_and_nothing_invisible_is_left(content: dict[str, Any]) -> None:
    safe = Harmless(content)
    json.dumps(safe.content, allow_nan=False)
    for path, key, text in texts(safe.content):
        if path not in safe.by_tenants:
            assert key in OWN_WORDS
            assert text.isascii()
            assert not set(text) & set(" \n\"'`<>[](){}")
        ends = "\n" if key == "manifest" else ""
        assert all(unicodedata.category(letter)[0] != "C" for letter in text if letter not in ends)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("team\u202egnp.exe", "team\ufffdgnp.exe"),
        ("a\x1b[2Jb", "a\ufffd[2Jb"),
        ("line\nof its own", "line\ufffdof its own"),
        ("tag\U000e0041", "tag\ufffd"),
        ("zero\u200bwidth", "zero\ufffdwidth"),
        ("搜索/推理", "搜索/推理"),
    ],
)
def test_characters_that_nobody_sees_are_replaced_and_others_kept(text: str, shown: str) -> None:
    assert cleaned(text) == shown


def test_overlong_name_is_cut_and_says_by_how_much() -> None:
    assert cleaned("n" * (NAME_CHARS_MAX + 7)).endswith("n… (7 more characters left out)")


def test_long_lists_are_cut_at_a_limit_and_counted() -> None:
    safe = Harmless({"pods": [f"pod-{number}" for number in range(80)], "hours": list(range(168))})
    assert (len(safe.content["pods"]), safe.left_out) == (50, {"pods": 30})
    assert len(safe.content["hours"]) == 168


def test_answer_that_is_too_large_loses_rows_and_counts_them() -> None:
    rows = [{"workload": "w" * 400, "reason": "r" * 1000, "title": "t" * 1000} for _ in range(50)]
    safe = Harmless({"data": {"rows": rows}})
    assert len(json.dumps(safe.content)) <= ANSWER_BYTES_MAX
    assert safe.left_out["data.rows"] == 50 - len(safe.content["data"]["rows"]) > 0


def test_name_of_a_tenant_is_no_key_of_an_answer() -> None:
    with pytest.raises(TypeError, match="no name of ours: 'team-3'"):
        Harmless({"tenants": {"team-3": 1}})
