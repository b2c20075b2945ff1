"""What the security page says is so: each test that it names is there, and each limit is the code's."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

from fleet.settings.settings import Settings
from fleet.units import parse_bytes

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
_LIMIT = re.compile(r"^\| [^|]+ \| ([0-9]+(?: [KM]?i?B)?) \| `([a-z_.A-Z0-9]+)` \|$", re.MULTILINE)
_THREAT = re.compile(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)


def test_every_test_that_covers_a_threat_is_there() -> None:
    named = _TEST.findall(PAGE)
    assert len(named) > 40
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not re.search(rf"^\s*def {name}\b", (ROOT / path).read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert missing == []


def test_every_threat_has_something_that_covers_it() -> None:
    of_threats = PAGE[PAGE.index("## Tenant") : PAGE.index("Not covered:")]
    rows = [row for row in _THREAT.findall(of_threats) if row[0] not in ("what they try", "---")]
    assert len(rows) > 20
    assert [row[0] for row in rows if not re.search(r"`(tests/|make )", row[2])] == []


def test_every_limit_is_the_one_of_the_code() -> None:
    found = _LIMIT.findall(PAGE)
    assert len(found) > 40
    wrong = [f"{where}: {told} is {_value(where)}" for told, where in found if _number(told) != _value(where)]
    assert wrong == []


def _number(told: str) -> float:
    return float(parse_bytes(told)) if told.endswith("B") else float(told)


def _value(where: str) -> float:
    owner, _, name = where.rpartition(".")
    if name.isupper():
        return float(getattr(importlib.import_module(owner), name))
    return float(getattr(getattr(Settings(), owner), name))
