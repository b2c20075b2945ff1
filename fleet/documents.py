"""Profiles, plans and outcomes as the JSON documents of the contracts, and back.

A plan is sealed: its id is the whole SHA-256 of its content, so a plan that was edited is found out when it is read,
and nobody makes a second one of an id. People see the start of it (`fleet.units.format_plan_id`). Keys are the records'
field names; absent is null, or left out where a field came later; times are ISO 8601 in UTC; money is a number in the
document's currency. Called by the plan store, the command line and the faces.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any, TypeVar

from pydantic import ConfigDict, RootModel, ValidationError

from fleet.decisions import Plan
from fleet.errors import Corrupt, Refused
from fleet.json_text import json_value
from fleet.outcomes import Outcome
from fleet.profiles import Profiles
from fleet.settings.faults import fault_words

Record = TypeVar("Record")

PLAN_SCHEMA = "gputide.plan/v1"
PROFILES_SCHEMA = "gputide.profiles/v1"
OUTCOME_SCHEMA = "gputide.outcome/v1"

PLAN_ID_DIGITS = 64
"""Hex digits of a plan's id."""
_EARLIER_ID_DIGITS = 12
"""Those of an id that was given earlier: such a plan is read, and is neither approved nor applied any more."""

_PAIRS = frozenset({"settings", "numbers", "values"})
"""Fields that hold name-value pairs and are objects in JSON."""
_LEFT_OUT = frozenset(
    {
        "freed_nodes",
        "kept_ratio",
        "memory_scaling",
        "node_release",
        "node_switch",
        "policies",
        "relief_moves_per_pod_day",
        "shift_ratio",
        "shifted_violation_ratio",
        "unrelieved_violation_ratio",
    }
)
"""Fields that came later and are left out where they say nothing, so that such a plan keeps its bytes and its id."""
_RENAMED = {"start": "from", "end": "until"}
"""Field names of a schedule that are reserved words or clash in Python."""


class _Plan(RootModel[Plan]):
    """A plan, every number of which can be written again."""

    model_config = ConfigDict(allow_inf_nan=False, defer_build=True)


class _Outcome(RootModel[Outcome]):
    """As `_Plan`."""

    model_config = ConfigDict(allow_inf_nan=False, defer_build=True)


def document(record: object) -> Any:
    """A record as plain JSON values.

    Args:
        record: a dataclass, enum, time, number, text, None, or a tuple of them.

    Returns:
        dict, list, str, int, float, bool or None.
    """
    if is_dataclass(record) and not isinstance(record, type):
        names = _RENAMED if type(record).__name__ == "ScheduledReplicas" else {}
        return {
            names.get(field.name, field.name): _pairs(getattr(record, field.name))
            if field.name in _PAIRS
            else document(getattr(record, field.name))
            for field in fields(record)
            if field.name not in _LEFT_OUT or getattr(record, field.name) not in (None, ())
        }
    if isinstance(record, Enum):
        return record.value
    if isinstance(record, datetime):
        return iso(record)
    if isinstance(record, Decimal):
        return float(record)
    if isinstance(record, tuple | list):
        return [document(item) for item in record]
    if isinstance(record, Mapping):
        return {str(key): document(value) for key, value in record.items()}
    return record


def iso(moment: datetime) -> str:
    """A moment in UTC, ISO 8601 with `Z`, seconds unless it has a fraction."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def profiles_document(profiles: Profiles) -> dict[str, Any]:
    """The document of `workloads` (`gputide.profiles/v1`)."""
    return {"schema": PROFILES_SCHEMA, **document(profiles)}


def outcome_document(outcome: Outcome) -> dict[str, Any]:
    """The document of `verify` (`gputide.outcome/v1`)."""
    return {"schema": OUTCOME_SCHEMA, **document(outcome)}


def outcome_of(content: object, *, name: str) -> Outcome:
    """Read an outcome back.

    Raises:
        Corrupt: the document is not one, with the first place that does not fit.
    """
    return _record(_Outcome, content, OUTCOME_SCHEMA, name)


def plan_document(plan: Plan) -> dict[str, Any]:
    """The document of `plan make` (`gputide.plan/v1`)."""
    return {"schema": PLAN_SCHEMA, **document(plan)}


def seal_plan(plan: Plan) -> Plan:
    """The plan with its id, made from its content."""
    return replace(plan, plan_id=_content_id(plan_document(plan)))


def plan_to_json(plan: Plan) -> bytes:
    """A sealed plan as indented JSON, the same bytes for the same plan."""
    return (json.dumps(plan_document(plan), indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def plan_from_json(content: bytes, *, name: str = "plan") -> Plan:
    """Read a plan and check that nobody edited it.

    Args:
        name: where it came from, for messages.

    Raises:
        Corrupt: not JSON, another schema, a missing or wrong field.
        Refused: the content does not fit the plan's id.
    """
    try:
        raw = json_value(content)
    except ValueError as exc:
        raise Corrupt(f"cannot read {name}: not JSON: {exc}") from exc
    plan = _record(_Plan, raw, PLAN_SCHEMA, name)
    expected = _content_id(raw)
    if plan.plan_id not in (expected, expected[:_EARLIER_ID_DIGITS]):
        raise Refused(
            f"cannot use {name}: it was edited after it was made: plan_id={plan.plan_id[:80]!r} but its content is "
            f"{expected!r}; make a new plan with `gputide plan make`"
        )
    return plan


def _content_id(raw: Mapping[str, Any]) -> str:
    content = {key: value for key, value in raw.items() if key != "plan_id"}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def _record(shape: type[RootModel[Record]], raw: object, schema: str, name: str) -> Record:
    if not isinstance(raw, Mapping):
        raise Corrupt(f"cannot read {name}: expected an object with schema={schema!r}")
    if raw.get("schema") != schema:
        raise Corrupt(f"cannot read {name}: schema is {str(raw.get('schema'))[:80]!r}, expected {schema!r}")
    try:
        return shape.model_validate(_restored(raw)).root
    except ValidationError as exc:
        raise Corrupt(f"cannot read {name}: {fault_words(exc)}") from exc
    except RecursionError as exc:
        raise Corrupt(f"cannot read {name}: it is nested too deeply") from exc


def _pairs(pairs: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
    return {key: document(value) for key, value in pairs}


def _restored(value: Any, key: str = "") -> Any:
    """Undo `_PAIRS` and `_RENAMED` on the way in."""
    if isinstance(value, dict):
        if key in _PAIRS:
            return tuple((str(name), item) for name, item in value.items())
        if key == "schedule":
            back = {new: old for old, new in _RENAMED.items()}
            return {back.get(name, name): item for name, item in value.items()}
        return {name: _restored(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [_restored(item, key) for item in value]
    return value
