"""The words of the doctor: areas, the catalogue of findings, and what a check says of one thing.

Called by all others of this folder.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib import resources
from types import MappingProxyType

from fleet.sentences import Sentence, listed, sentence
from fleet.words import Words

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]+")
_TEXT_LENGTH_MAX = 500
_VALUE_LENGTH_MAX = 253
NAMES_MAX = 5
"""Names that a sentence lists before it counts the rest."""


class Area(StrEnum):
    """What is looked at, in the order of the data flow."""

    INSTALLATION = "installation"
    NODE = "node"
    CLUSTER = "cluster"
    PROMETHEUS = "prometheus"
    RECEIVER = "receiver"
    KAFKA = "kafka"
    FLINK = "flink"
    HIVE = "hive"
    DATA = "data"
    HISTORY = "history"
    RELIEF = "relief"
    DASHBOARD = "dashboard"
    NOTIFY = "notify"


class Severity(StrEnum):
    """How much a finding disables; the gravest first."""

    ERROR = "error"
    """Something that is wanted does not work at all, or numbers are wrong."""
    WARNING = "warning"
    """There is less advice, or it is less sure."""
    NOTE = "note"
    """Worth knowing; gputide reckons with it, and the exit status does not report it."""


class State(StrEnum):
    """How one look ended."""

    OK = "ok"
    FINDING = "finding"
    UNCHECKED = "unchecked"
    """It could not be looked at: neither well nor ill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingKind:
    """One finding that the doctor may make.

    Attributes:
        code: what programs go by; never changes its meaning.
        mend: the one command or value that mends it; words in braces are filled in.
        sign: how it is seen, and where the fact stands.
        is_unreachable: a service did not answer, which has an exit status of its own.
    """

    code: str
    area: Area
    severity: Severity
    mend: str
    sign: str
    is_unreachable: bool = False

    @property
    def says(self) -> Sentence:
        """What is wrong, one sentence."""
        return sentence(f"doctor.{self.code}.says")

    @property
    def disables(self) -> Sentence:
        """Which advice or action it disables or makes less sure."""
        return sentence(f"doctor.{self.code}.disables")


@cache
def catalogue() -> Mapping[str, FindingKind]:
    """Everything that the doctor may find, from `findings.toml`, by code and in the order of areas."""
    text = resources.files("gputide.doctor").joinpath("findings.toml").read_text(encoding="utf-8")
    kinds = [
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
    return MappingProxyType({kind.code: kind for kind in sorted(kinds, key=lambda kind: order.index(kind.area))})


def codes_of(area: Area) -> tuple[str, ...]:
    """The codes of an area."""
    return tuple(kind.code for kind in catalogue().values() if kind.area is area)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What a look says of one thing.

    Attributes:
        subject: what it is about: a setting, a node, a metric; empty where the check says it.
        area: where it was looked; of a finding its own area, else that of the check, which `diagnosed` fills in.
        check: which check; filled in likewise unless a check that looks at several things names them.
        is_fallback: holds only where the look found nothing before it.
    """

    state: State
    said: Sentence | str
    subject: Sentence | str = ""
    kind: FindingKind | None = None
    mend: str = ""
    area: str = ""
    check: str = ""
    is_fallback: bool = False

    def found_in(self, words: Words) -> str:
        """What was found, in a language, on one printable line."""
        return shown(words.said(self.said))

    def subject_in(self, words: Words) -> str:
        """What it is about, likewise."""
        return shown(words.said(self.subject))


Look = Callable[[], Iterable[Diagnosis]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One look at one thing; several may run beside each other.

    Attributes:
        name: what it looks at, two words at most.
        codes: findings that it may make, so that only what is asked for is looked at.
        needs: name of a check of the same area without whose success this one can't be made; None for none.
    """

    area: Area
    name: str
    look: Look
    codes: tuple[str, ...]
    seconds_max: float = 20.0
    needs: str | None = None


def a_check(
    area: Area, name: str, look: Look, codes: str, *, seconds_max: float = 20.0, needs: str | None = None
) -> Check:
    """A check whose codes are words of one text."""
    return Check(area=area, name=name, look=look, codes=tuple(codes.split()), seconds_max=seconds_max, needs=needs)


def diagnosed(check: Check) -> tuple[Diagnosis, ...]:
    """Look, and say of everything found where it was looked."""
    found: list[Diagnosis] = []
    for one in check.look():
        if not (one.is_fallback and found):
            found.append(replace(one, area=one.area or check.area.value, check=one.check or check.name))
    return tuple(found)


def well(said: Sentence | str, subject: Sentence | str = "", *, check: str = "") -> Diagnosis:
    """Something that is as it should be."""
    return Diagnosis(state=State.OK, said=said, subject=subject, check=check)


def otherwise(said: Sentence | str, subject: Sentence | str = "") -> Diagnosis:
    """The last word of a look: all is well, unless the look has found something before."""
    return Diagnosis(state=State.OK, said=said, subject=subject, is_fallback=True)


def unchecked(why: Sentence | str, subject: Sentence | str = "", *, check: str = "") -> Diagnosis:
    """Something that could not be looked at."""
    return Diagnosis(state=State.UNCHECKED, said=why, subject=subject, check=check)


def finding(
    code: str, said: Sentence | str, *, subject: Sentence | str = "", check: str = "", **values: str
) -> Diagnosis:
    """A finding of the catalogue.

    Args:
        values: what the words in braces of `FindingKind.mend` stand for; each is quoted for a shell where it must be,
            as names may come from tenants.
    """
    kind = catalogue()[code]
    mend = kind.mend
    for name, value in values.items():
        mend = mend.replace("{" + name + "}", shlex.quote(shown(value)[:_VALUE_LENGTH_MAX]))
    return Diagnosis(
        state=State.FINDING, said=said, subject=subject, kind=kind, mend=mend, area=kind.area.value, check=check
    )


def shown(text: str) -> str:
    """A text on one line, printable and cut: it may come from anybody who writes labels."""
    cleaned = " ".join(_UNPRINTABLE.sub(" ", text).split())
    return cleaned if len(cleaned) <= _TEXT_LENGTH_MAX else cleaned[: _TEXT_LENGTH_MAX - 1] + "…"


def some(names: Iterable[str], most: int = NAMES_MAX) -> Sentence | str:
    """The first of several names, and how many more there are."""
    found = sorted(set(names))
    return listed(found, most) if found else ""
