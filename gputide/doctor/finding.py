"""The words of the doctor: areas, findings as the catalogue has them, and what a check says of one thing.

Pure. Called by all others of this folder.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

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
        area: where it is looked for.
        severity: how much it disables.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What a check says of one thing.

    Attributes:
        area: where it was looked.
        check: which look.
        state: how it ended.
        subject: what it is about: a setting, a node, a metric; empty where `check` says it.
        said: what was found.
        kind: the finding; None where there is none.
        mend: what mends it here.
    """

    area: Area
    check: str
    state: State
    said: Sentence | str
    subject: Sentence | str = ""
    kind: FindingKind | None = None
    mend: str = ""

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
        area: where it looks.
        name: what it looks at, two words at most.
        look: gives what it found.
        seconds_max: longest time that is waited for it.
        codes: findings that it may make, so that only what is asked for is looked at.
        needs: name of a check of the same area without whose success this one can't be made; None for none.
    """

    area: Area
    name: str
    look: Look
    codes: tuple[str, ...]
    seconds_max: float = 20.0
    needs: str | None = None


def well(area: Area, check: str, found: Sentence | str, subject: Sentence | str = "") -> Diagnosis:
    """A look that found nothing wrong."""
    return Diagnosis(area=area, check=check, state=State.OK, said=found, subject=subject)


def unchecked(area: Area, check: str, why: Sentence | str, subject: Sentence | str = "") -> Diagnosis:
    """A look that could not be made."""
    return Diagnosis(area=area, check=check, state=State.UNCHECKED, said=why, subject=subject)


def finding(
    kind: FindingKind, check: str, found: Sentence | str, *, subject: Sentence | str = "", **values: str
) -> Diagnosis:
    """A look that found something.

    Args:
        check: which look.
        found: what was seen, with its numbers.
        subject: what it is about.
        values: what the words in braces of `kind.mend` stand for; each is quoted for a shell where it must be, as names
            may come from tenants.
    """
    filled = kind.mend
    for name, value in values.items():
        filled = filled.replace("{" + name + "}", shlex.quote(shown(value)[:_VALUE_LENGTH_MAX]))
    return Diagnosis(
        area=kind.area,
        check=check,
        state=State.FINDING,
        said=found,
        subject=subject,
        kind=kind,
        mend=filled,
    )


def shown(text: str) -> str:
    """A text on one line, printable and cut: it may come from anybody who writes labels."""
    cleaned = " ".join(_UNPRINTABLE.sub(" ", text).split())
    return cleaned if len(cleaned) <= _TEXT_LENGTH_MAX else cleaned[: _TEXT_LENGTH_MAX - 1] + "…"


def some(names: Iterable[str], most: int = NAMES_MAX) -> Sentence | str:
    """The first of several names, and how many more there are."""
    found = sorted(set(names))
    return listed(found, most) if found else ""
