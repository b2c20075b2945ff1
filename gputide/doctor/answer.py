"""What the doctor found as an answer: one document, one table, and the exit status."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from fleet.documents import iso
from fleet.errors import EXIT_FINDINGS, EXIT_FINE, Unavailable
from gputide.doctor.catalogue import catalogue
from gputide.doctor.finding import Area, Diagnosis, FindingKind, Severity, State
from gputide.output import Answer, Listing

SCHEMA = "gputide.doctor/v1"
_COLUMNS = ("area", "check", "", "subject", "found", "disables", "mend")
_SIGNS = {Severity.ERROR: "ERROR", Severity.WARNING: "WARNING", Severity.NOTE: "note"}


def doctor_answer(
    diagnoses: Sequence[Diagnosis], *, at: datetime, looked_at: Iterable[Area], unused: Iterable[Area], for_people: bool
) -> Answer:
    """What was found.

    Args:
        diagnoses: in the order in which they are told.
        at: when, UTC.
        looked_at: areas that were looked at.
        unused: areas that were not, as the settings don't use them.
        for_people: commands stand below the table, each on its own line, where they can be copied.
    """
    counts = {state.value: sum(one.state is state for one in diagnoses) for state in State}
    severities = {
        severity.value: sum(one.kind is not None and one.kind.severity is severity for one in diagnoses)
        for severity in Severity
    }
    more = ", ".join(area.value for area in unused)
    headline = (
        f"{severities['error']} errors, {severities['warning']} warnings, {severities['note']} notes; "
        f"{counts['ok']} well, {counts['unchecked']} could not be checked"
    )
    footnotes = [f"Not looked at, as the settings don't use them: {more}. `gputide doctor AREA` does."] if more else []
    columns: tuple[str, ...] = _COLUMNS
    rows = _rows(diagnoses)
    if for_people:
        columns, rows = columns[:-1], [row[:-1] for row in rows]
        mends = dict.fromkeys(f"  {one.kind.code}: {one.mend}" for one in diagnoses if one.kind is not None)
        footnotes = [*(["What mends it:"] if mends else []), *mends, *footnotes]
    return Answer(
        document={
            "schema": SCHEMA,
            "checked_at": iso(at),
            "areas": [area.value for area in looked_at],
            "summary": {**counts, **severities},
            "diagnoses": [_entry(one) for one in diagnoses],
        },
        listings=(Listing(title="Doctor", columns=columns, rows=rows),),
        headline=(headline,),
        footnotes=tuple(footnotes),
    )


def codes_answer() -> Answer:
    """Everything that may be found."""
    kinds = list(catalogue().values())
    return Answer(
        document={"schema": "gputide.doctor-findings/v1", "findings": [_kind_entry(kind) for kind in kinds]},
        listings=(
            Listing(
                title="Findings of the doctor",
                columns=("code", "severity", "says", "disables", "mend"),
                rows=[(kind.code, kind.severity.value, kind.says, kind.disables, kind.mend) for kind in kinds],
            ),
        ),
    )


def exit_status(diagnoses: Iterable[Diagnosis], *, is_strict: bool) -> int:
    """0 where nothing but notes was found, 1 for findings, 5 where a service could not be reached.

    Args:
        diagnoses: what was found.
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


def _rows(diagnoses: Sequence[Diagnosis]) -> list[tuple[str, ...]]:
    """One row each; looks that could not be made for one reason share a row."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for number, one in enumerate(diagnoses):
        is_alone = one.state is not State.UNCHECKED
        key = (
            one.area.value, _sign(one), one.subject, one.found, _advice(one), one.mend, str(number) if is_alone else "",
        )  # fmt: skip
        rows.setdefault(key, []).append(one.check)
    return [(key[0], ", ".join(checks), *key[1:-1]) for key, checks in rows.items()]


def _sign(one: Diagnosis) -> str:
    if one.kind is not None:
        return _SIGNS[one.kind.severity]
    return "ok" if one.state is State.OK else "unchecked"


def _advice(one: Diagnosis) -> str:
    return "" if one.kind is None else f"{one.kind.disables} [{one.kind.code}]"


def _entry(one: Diagnosis) -> dict[str, Any]:
    kind = one.kind
    return {
        "area": one.area.value,
        "check": one.check,
        "state": one.state.value,
        "code": None if kind is None else kind.code,
        "severity": None if kind is None else kind.severity.value,
        "subject": one.subject or None,
        "found": one.found,
        "says": None if kind is None else kind.says,
        "disables": None if kind is None else kind.disables,
        "mend": one.mend or None,
    }


def _kind_entry(kind: FindingKind) -> dict[str, Any]:
    return {
        "code": kind.code,
        "area": kind.area.value,
        "severity": kind.severity.value,
        "says": kind.says,
        "disables": kind.disables,
        "mend": kind.mend,
        "sign": kind.sign,
        "is_unreachable": kind.is_unreachable,
    }
