"""`gputide admin access`: who may see and do what in the web app: the file of rights, checked, and tokens for it."""

from __future__ import annotations

import hashlib
import json
import secrets
from datetime import UTC, datetime, timedelta
from typing import Annotated

import typer

from dashboards.access.people import Role
from dashboards.access.roster import Roster
from fleet.errors import Misconfigured
from fleet.units import format_time
from gputide.options import answering
from gputide.output import Answer, Listing
from gputide.session import Session

app = typer.Typer(no_args_is_help=True, help="Rights in the web app and its API. Example: gputide admin access check")


@app.command(
    "new-token", epilog="Example: gputide admin access new-token ci --role viewer --namespace search --days 90"
)
def new_token(
    name: Annotated[str, typer.Argument(help="Name of the token, as the ledger shows it.")],
    role: Annotated[Role, typer.Option(help="What its holder is.")] = Role.VIEWER,
    cluster: Annotated[list[str] | None, typer.Option(help="Cluster; may be repeated, all without it.")] = None,
    namespace: Annotated[list[str] | None, typer.Option(help="Namespace; may be repeated, all without it.")] = None,
    days: Annotated[int | None, typer.Option(min=1, max=3650, help="Days until it expires; never without it.")] = None,
) -> None:
    """Make a token: its text goes to the person who is to hold it, the table below it into dashboard.rights_file."""
    token = secrets.token_urlsafe(32)
    # JSON text is TOML text: one quotes the other's letters.
    lines = [
        "[[right]]",
        f"token = {json.dumps(name)}",
        f'token_sha256 = "{hashlib.sha256(token.encode()).hexdigest()}"',
        f'role = "{role.value}"',
    ]
    if cluster:
        lines.append(f"clusters = {json.dumps(cluster)}")
    if namespace:
        lines.append(f"namespaces = {json.dumps(namespace)}")
    if days is not None:
        lines.append(f"expires = {format_time((datetime.now(UTC) + timedelta(days=days)).replace(microsecond=0))}")
    typer.echo("the token, shown once:", err=True)
    typer.echo(token)
    typer.echo("\nfor dashboard.rights_file, which keeps only its hash:", err=True)
    typer.echo("\n".join(lines))


@app.command("check", epilog="Example: gputide admin access check")
@answering
def check(session: Session) -> Answer:
    """Read the file of rights and list them; exit status 2 where it can't be read."""
    settings = session.settings.dashboard
    if settings.rights_file is None:
        raise Misconfigured(
            "cannot list rights: dashboard.rights_file=none; with dashboard.access=none everyone on this machine may "
            "do everything"
        )
    rows = [
        {
            "who": entry.who,
            "role": entry.right.role.value,
            "clusters": None if entry.right.clusters is None else sorted(entry.right.clusters),
            "namespaces": None if entry.right.namespaces is None else sorted(entry.right.namespaces),
            "expires": None if entry.expires is None else format_time(entry.expires.astimezone(UTC)),
        }
        for entry in Roster(settings.rights_file).entries()
    ]
    absent = {"clusters": "all", "namespaces": "all", "expires": "never"}
    columns = ("who", "role", *absent)
    cells = [[_cell(row[name], absent.get(name)) for name in columns] for row in rows]
    return Answer(
        document=rows,
        headline=(f"{len(rows)} rights; people are known by {settings.access.value}",),
        listings=(Listing(title="Rights", columns=columns, rows=cells),),
    )


def _cell(value: str | list[str] | None, absent: str | None) -> str | None:
    return absent if value is None else value if isinstance(value, str) else ", ".join(value)
