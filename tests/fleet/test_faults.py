"""No word of the validator reaches a user: every constraint of every model is provoked, and answered in our words."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from dashboards.access.roster import Entry
from dashboards.notify.digest import SentNews
from dashboards.report.weeks import WeekFacts
from fleet.decisions import Plan
from fleet.outcomes import Outcome
from fleet.settings.faults import FAULTS_MAX, fault_words, faults
from fleet.settings.money import PriceRule
from fleet.settings.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
OF_THE_VALIDATOR = re.compile(
    r"Input|Field required|Extra inputs|valid (integer|number|string|boolean|tuple|dict|list|decimal|date)|"
    r"should (be|have|match)|Unable to|unable to|[Pp]ydantic|Value error|Datetimes|class '|isoformat"
)
WRONG: tuple[Any, ...] = (
    None, True, -1, 1.5, 10**12, 10**25, 10**400, -1e30, 1e30, float("nan"), float("inf"), "", "x", "none", "x" * 6000,
    "\udcff", "1.1234567890123", "2026-13-01", b"\xff", date(2026, 1, 1), object(), (), ("x",), [1], [{}], [[], []], {},
    {"x": "y"}, {"x": 1}, {1: 2},
)  # fmt: skip
READ = (Settings, Entry, Plan, Outcome, WeekFacts, SentNews)
"""Everything that is validated when it is read; what these hold is found from them."""


def parts(kind: Any, above: tuple[Any, ...] = ()) -> Iterator[Any]:
    """A type with its constraints, and all types inside it; one that holds its like is gone into once."""
    yield kind
    if kind in above:
        return
    for inner in fields_of(kind) if is_record(kind) else get_args(kind):
        if inner is not type(None) and (isinstance(inner, type) or get_origin(inner) is not None):
            yield from parts(inner, (*above, kind))


def is_record(kind: Any) -> bool:
    return isinstance(kind, type) and (issubclass(kind, BaseModel) or dataclasses.is_dataclass(kind))


def fields_of(kind: Any) -> list[Any]:
    if issubclass(kind, BaseModel):
        return [Annotated[(field.annotation, field)] for field in kind.model_fields.values()]
    return list(get_type_hints(kind, include_extras=True).values())


def all_parts() -> list[Any]:
    found: dict[str, Any] = {}
    for kind in READ:
        for part in parts(kind):
            found.setdefault(repr(part), part)
    return list(found.values())


def words_of(kind: Any, value: Any) -> str | None:
    """What is said about a value; None where it fits."""
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError as exc:
        return fault_words(exc, kind)
    return None


def beyond(bound: Any) -> Iterator[Any]:
    """Values just outside the constraints of one field."""
    for constraint in bound.metadata if isinstance(bound, FieldInfo) else [bound]:
        for name, wrong in (
            ("ge", lambda limit: limit - 1),
            ("gt", lambda limit: limit),
            ("le", lambda limit: limit + 1),
            ("lt", lambda limit: limit),
            ("max_length", lambda limit: "x" * (limit + 1)),
            ("pattern", lambda _: "\n" * 9),
            ("decimal_places", lambda limit: Decimal(1).scaleb(-limit - 1)),
            ("max_digits", lambda limit: "1" * (limit + 1)),
        ):
            limit = getattr(constraint, name, None)
            if limit is not None:
                yield limit, wrong(limit)


def test_every_constraint_of_every_model_is_said_in_our_words_with_its_limit() -> None:
    provoked = 0
    for kind in all_parts():
        if get_origin(kind) is not Annotated:
            continue
        for bound in kind.__metadata__:
            for limit, wrong in beyond(bound):
                said = words_of(kind, wrong)
                assert said is not None, (kind, wrong)
                assert not OF_THE_VALIDATOR.search(said), (kind, said)
                assert str(limit).removesuffix(".0") in said, (kind, limit, said)
                provoked += 1
    assert provoked > 150


def test_every_wrong_value_for_every_part_of_every_model_is_said_in_our_words() -> None:
    seen = set()
    for kind in all_parts():
        adapter = TypeAdapter(kind)
        for value in WRONG:
            try:
                adapter.validate_python(value)
            except ValidationError as exc:
                types = {tuple(map(str, item["loc"])): item["type"] for item in exc.errors()}
                for fault in faults(exc, kind):
                    assert not OF_THE_VALIDATOR.search(fault.reason), (kind, value, fault)
                    assert types[fault.place] == "value_error" or fault.reason != "does not fit", (kind, value, fault)
                seen |= set(types.values())
    assert {
        "missing",
        "decimal_whole_digits",
        "extra_forbidden",
        "enum",
        "literal_error",
        "bool_parsing",
        "datetime_type",
    } <= seen


PACKAGES = ("fleet", "wire", "exporter", "pipeline", "analyzer", "recommender", "enforcer", "dashboards", "gputide")
VALIDATING = {"validate_json", "validate_python", "model_validate", "model_validate_json"}


def test_everything_that_is_validated_has_its_errors_worded_here() -> None:
    """Without this a reader that catches ValueError shows what the validator wrote."""
    found, unworded = 0, []
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if not any(name in text for name in VALIDATING):
                continue
            tree = ast.parse(text)
            worded = {
                call
                for node in ast.walk(tree)
                if isinstance(node, ast.Try) and any("ValidationError" in ast.dump(one) for one in node.handlers)
                for call in _validations(node)
            }
            calls = _validations(tree)
            found += len(calls)
            unworded += [f"{path.relative_to(ROOT)}:{call.lineno}" for call in calls if call not in worded]
    assert unworded == []
    assert found >= 7


def _validations(tree: ast.AST) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in VALIDATING
    ]


def test_unknown_name_inside_an_entry_is_answered_with_the_nearest() -> None:
    said = words_of(Settings, {"prices": {"rules": [{"source": "x", "date": "2026-01", "per_card_our": 1}]}})
    assert said is not None
    assert "prices.rules.0.per_card_our=1: unknown name; did you mean 'per_card_hour'?" in said


def test_a_message_is_one_line_whatever_a_field_is_called() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Settings).validate_python({"cluster": {"a\nb\x1b[31m": "x\ny"}})
    said = fault_words(caught.value, Settings)
    assert said.isprintable()
    assert said.startswith("cluster.a\\nb\\x1b[31m='x\\ny': unknown name")


def test_broken_json_is_said_in_our_words() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(list[SentNews]).validate_json(b"[{")
    assert fault_words(caught.value).startswith("not JSON: ")


def test_many_faults_are_counted_and_not_listed() -> None:
    said = words_of(tuple[int, ...], ["x"] * (FAULTS_MAX + 3))
    assert said is not None
    assert said.endswith("; and 3 more")
    assert said.count("expected a whole number") == FAULTS_MAX


def test_value_of_a_secret_field_is_not_shown() -> None:
    with pytest.raises(ValidationError) as caught:
        Entry.model_validate({"token": "ci", "token_sha256": "hunter2", "role": "viewer"})
    said = fault_words(caught.value, Entry, secret={"token_sha256"})
    assert "token_sha256: expected text that matches" in said
    assert "hunter2" not in said


def test_value_that_is_missing_is_named_without_the_whole_entry() -> None:
    said = words_of(PriceRule, {"per_card_hour": 1, "date": "2026-01"})
    assert said == "source: is missing"


def test_list_with_a_wrong_entry_is_not_called_too_short_as_well() -> None:
    for entries, words in (
        ([0.2, "many"], "1='many': expected a number"),
        (["many"], "0='many': expected a number; expected at least 2 entries"),
        ([0.2], "expected at least 2 entries"),
    ):
        with pytest.raises(ValidationError) as caught:
            TypeAdapter(Annotated[tuple[float, ...], Field(min_length=2)]).validate_python(entries)
        assert fault_words(caught.value) == words
