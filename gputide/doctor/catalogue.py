"""Everything that the doctor may find, from `findings.toml`, by codes that stay. Called by all checks and the docs."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType

from gputide.doctor.finding import Area, FindingKind, Severity


@cache
def catalogue() -> Mapping[str, FindingKind]:
    """All findings by code, in the order of areas."""
    text = resources.files("gputide.doctor").joinpath("findings.toml").read_text(encoding="utf-8")
    found = [
        FindingKind(
            code=entry["code"],
            area=Area(entry["area"]),
            severity=Severity(entry["severity"]),
            mend=entry["mend"],
            sign=entry["sign"],
            is_unreachable=entry.get("unreachable", False),
        )
        for entry in tomllib.loads(text)["finding"]
    ]
    order = list(Area)
    return MappingProxyType({kind.code: kind for kind in sorted(found, key=lambda kind: order.index(kind.area))})


def kind_of(code: str) -> FindingKind:
    """A finding by its code.

    Raises:
        KeyError: there is none, which is a bug.
    """
    return catalogue()[code]


def codes_of(area: Area) -> tuple[str, ...]:
    """The codes of an area."""
    return tuple(kind.code for kind in catalogue().values() if kind.area is area)
