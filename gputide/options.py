"""Options that several verbs share, so that they read and mean the same everywhere."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from fleet.units import parse_time
from gputide.output import ENDINGS, Format, form_for


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
