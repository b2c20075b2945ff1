"""`gputide doctor`: what is missing or misleads, what that disables, and what mends it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated

import typer

from fleet.words import Language, Words
from gputide.doctor.answer import codes_answer, doctor_answer, exit_status
from gputide.doctor.checks import Wish, checks_of, is_wanted, run_checks, unused_areas
from gputide.doctor.finding import Area, State
from gputide.options import answering
from gputide.output import Answer, Format
from gputide.session import Session

app = typer.Typer()


@app.command(
    epilog="Example: gputide --set scan.url=http://prometheus:9090 doctor prometheus --format json. Exit status: 0 "
    "fine, 1 findings, 5 a service could not be reached."
)
@answering
def doctor(
    session: Session,
    form: Format,
    areas: Annotated[
        list[Area] | None,
        typer.Argument(
            metavar="[AREA]...", help="What to look at: " + ", ".join(Area) + "; what is used unless given."
        ),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="CODE", help="Only such findings: history-*; may be repeated.")
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ROLE", help="Rights of this role: reader, node, writer, relief or agent; may be repeated."
        ),
    ] = None,
    account: Annotated[
        str | None,
        typer.Option("--as", metavar="ACCOUNT", help="Whose rights: system:serviceaccount:gputide:gputide-writer."),
    ] = None,
    strict: Annotated[bool, typer.Option(help="Notes, and what can't be checked, count as findings.")] = False,
    codes: Annotated[bool, typer.Option(help="List all that may be found, and look at nothing.")] = False,
    language: Annotated[
        Language | None, typer.Option("--lang", help="Language, en or zh; report.language unless given.")
    ] = None,
) -> Answer:
    """Look at what gputide needs, and say what is missing and what mends it; nothing is changed."""
    words = Words(language=Language(language or session.settings.report.language))
    if codes:
        return codes_answer(words)
    wish = Wish(areas=tuple(areas or ()), only=tuple(only or ()), roles=tuple(role or ()), account=account)
    checks = checks_of(session, wish)
    with session.progress("looking") as tick:
        looked = run_checks(checks, tell=tick)
    found = [one for one in looked if one.kind is None or is_wanted(one.kind, wish) or one.kind.is_unreachable]
    found.sort(key=lambda one: list(map(str, Area)).index(one.area))
    if wish.only:
        found = [one for one in found if one.state is not State.OK] or found
    looked_at = tuple(dict.fromkeys(check.area for check in checks))
    unused = [area for area in unused_areas(session.settings) if area not in looked_at] if not wish.only else []
    answer = doctor_answer(
        found, words, at=datetime.now(UTC), looked_at=looked_at, unused=unused, for_people=form is Format.TABLE
    )
    return replace(answer, status=exit_status(found, is_strict=strict))
