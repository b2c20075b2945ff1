"""What the doctor found as an answer: one document, one table, and the exit status."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from fleet.documents import iso
from fleet.errors import EXIT_FINDINGS, EXIT_FINE, Unavailable
from fleet.words import Words
from gputide.doctor.finding import Area, Diagnosis, FindingKind, Severity, State, catalogue
from gputide.output import Answer, Listing

SCHEMA = "gputide.doctor/v1"
_COLUMNS = ("area", "check", "", "subject", "found", "disables", "mend")


def doctor_answer(
    diagnoses: Sequence[Diagnosis],
    words: Words,
    *,
    at: datetime,
    looked_at: Iterable[Area],
    unused: Iterable[Area],
    for_people: bool,
) -> Answer:
    """What was found.

    Args:
        unused: areas that were not, as the settings don't use them.
        for_people: commands stand below the table, each on its own line, where they can be copied.
    """
    counts = {state.value: sum(one.state is state for one in diagnoses) for state in State}
    severities = {
        severity.value: sum(one.kind is not None and one.kind.severity is severity for one in diagnoses)
        for severity in Severity
    }
    headline = words.say(
        "doctor.headline", errors=severities["error"], warnings=severities["warning"], notes=severities["note"],
        well=counts["ok"], unchecked=counts["unchecked"],
    )  # fmt: skip
    more = words.say("mark.list").join(words.code("doctor.area", area) for area in unused)
    footnotes = [words.say("doctor.not_looked_at", areas=more)] if more else []
    columns: tuple[str, ...] = _COLUMNS
    rows = _rows(diagnoses, words)
    if for_people:
        columns = tuple(name and words.say(f"doctor.column.{name}") for name in columns[:-1])
        rows = [row[:-1] for row in rows]
        mends = dict.fromkeys(f"  {one.kind.code}: {one.mend}" for one in diagnoses if one.kind is not None)
        footnotes = [*([words.say("doctor.mends")] if mends else []), *mends, *footnotes]
    return Answer(
        document={
            "schema": SCHEMA,
            "checked_at": iso(at),
            "areas": [area.value for area in looked_at],
            "summary": {**counts, **severities},
            "diagnoses": [_entry(one, words) for one in diagnoses],
        },
        listings=(Listing(title=words.say("doctor.title"), columns=columns, rows=rows),),
        headline=(headline,),
        footnotes=tuple(footnotes),
    )


def codes_answer(words: Words) -> Answer:
    """Everything that may be found, in a language."""
    kinds = list(catalogue().values())
    return Answer(
        document={"schema": "gputide.doctor-findings/v1", "findings": [_kind_entry(kind, words) for kind in kinds]},
        listings=(
            Listing(
                title=words.say("doctor.title_codes"),
                columns=("code", "severity", "says", "disables", "mend"),
                rows=[
                    (kind.code, kind.severity.value, words.said(kind.says), words.said(kind.disables), kind.mend)
                    for kind in kinds
                ],
            ),
        ),
    )


def exit_status(diagnoses: Iterable[Diagnosis], *, is_strict: bool) -> int:
    """0 where nothing but notes was found, 1 for findings, 5 where a service could not be reached.

    Args:
        is_strict: notes, and what could not be checked, count as findings too.
    """
    status = EXIT_FINE
    for one in diagnoses:
        if one.kind is not None and one.kind.is_unreachable:
            return Unavailable.exit_status
        is_finding = one.kind is not None and (is_strict or one.kind.severity is not Severity.NOTE)
        if is_finding or (is_strict and one.state is State.UNCHECKED):
            status = EXIT_FINDINGS
    return status


def _rows(diagnoses: Sequence[Diagnosis], words: Words) -> list[tuple[str, ...]]:
    """One row each; looks that could not be made for one reason share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for number, one in enumerate(diagnoses):
        is_alone = one.state is not State.UNCHECKED
        key = (
            words.code("doctor.area", one.area), words.say(f"doctor.sign.{_sign(one)}"), one.subject_in(words),
            one.found_in(words), _advice(one, words), one.mend, str(number) if is_alone else "",
        )  # fmt: skip
        rows.setdefault(key, []).append(one.check)
    return [(key[0], ", ".join(checks), *key[1:-1]) for key, checks in rows.items()]


def _sign(one: Diagnosis) -> str:
    return one.state.value if one.kind is None else one.kind.severity.value


def _advice(one: Diagnosis, words: Words) -> str:
    return "" if one.kind is None else f"{words.said(one.kind.disables)} [{one.kind.code}]"


def _entry(one: Diagnosis, words: Words) -> dict[str, Any]:
    kind = one.kind
    return {
        "area": one.area,
        "check": one.check,
        "state": one.state.value,
        "code": None if kind is None else kind.code,
        "severity": None if kind is None else kind.severity.value,
        "subject": one.subject_in(words) or None,
        "found": one.found_in(words),
        "says": None if kind is None else words.said(kind.says),
        "disables": None if kind is None else words.said(kind.disables),
        "mend": one.mend or None,
    }


def _kind_entry(kind: FindingKind, words: Words) -> dict[str, Any]:
    return {
        "code": kind.code,
        "area": kind.area.value,
        "severity": kind.severity.value,
        "says": words.said(kind.says),
        "disables": words.said(kind.disables),
        "mend": kind.mend,
        "sign": kind.sign,
        "is_unreachable": kind.is_unreachable,
    }
