"""Options that several verbs share, so that they read and mean the same everywhere, and verbs that return an answer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from fleet.units import parse_time
from gputide.output import ENDINGS, Answer, Format, form_for, print_answer
from gputide.session import session_of


def fit_format(context: typer.Context, target: Path | None) -> Path | None:
    """Settle the format of a verb by the ending of its output file, before anything is computed."""
    is_given = context.get_parameter_source("form").name != "DEFAULT"  # type: ignore[union-attr]
    form = form_for(target, context.params["form"] if is_given else None, ENDINGS)
    if form is not None:
        context.params["form"] = form
    return target


FormatOption = Annotated[
    Format, typer.Option("--format", "-f", is_eager=True, help="How to print: table, json, csv, tsv, xlsx or yaml.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        callback=fit_format,
        show_default=False,
        help="Write to this file, in the format of its ending.",
    ),
]


def answering(verb: Callable[..., Answer]) -> Callable[..., None]:
    """Make a verb of a function that returns an answer: it gets `--format` and `-o`, and ends with the answer's status.

    A parameter `session` gets the session of the call; a parameter `form` the format that was chosen.
    """
    signature = inspect.signature(verb, eval_str=True)
    own = signature.parameters
    context = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, default, annotation in (("form", Format.TABLE, FormatOption), ("output", None, OutputOption))
    ]

    @wraps(verb)
    def printed(context: typer.Context, *, form: Format, output: Path | None, **given: Any) -> None:
        known = {"context": context, "session": session_of(context), "form": form}
        answer = verb(**given, **{name: value for name, value in known.items() if name in own})
        print_answer(answer, form=form, target=output)
        if answer.status:
            raise typer.Exit(answer.status)

    parameters = [context, *(own[name] for name in own if name not in ("context", "session", "form")), *shared]
    # Typer reads both.
    printed.__signature__ = signature.replace(parameters=parameters, return_annotation=None)  # type: ignore[attr-defined]
    printed.__annotations__ = {one.name: one.annotation for one in parameters}
    return printed


PlanOption = Annotated[str | None, typer.Option("--plan", metavar="ID", help="A plan; the newest unless given.")]
ClusterOption = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME", help="Of this cluster; cluster.name, or the only one, unless given."),
]
AnyClusterOption = Annotated[
    str | None, typer.Option("--cluster", metavar="NAME", help="Of this cluster alone; of any unless given.")
]
StageOption = Annotated[
    list[int] | None, typer.Option("--stage", metavar="N", help="A stage; may be repeated; all unless given.")
]
YesOption = Annotated[bool, typer.Option("--yes", help="Really do it; without it only what would happen is shown.")]
ByOption = Annotated[str | None, typer.Option("--by", help="Who says so; the login name unless given.")]
RiskOption = Annotated[
    str | None, typer.Option("--risk", help="Harm preset: low (0.1 %), medium (0.5 %) or high (2 %).")
]
SinceOption = Annotated[
    datetime | None,
    typer.Option(
        "--since", parser=parse_time, metavar="TIME", help="Start (ISO 8601, UTC); a week before the end unless given."
    ),
]
UntilOption = Annotated[
    datetime | None, typer.Option("--until", parser=parse_time, metavar="TIME", help="End; now unless given.")
]
