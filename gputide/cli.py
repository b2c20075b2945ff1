"""The command line: options of the whole program, the verbs in the order of the data flow, and the exit status.

`gputide VERB --help` shows each verb with an example. Exit status: 0 fine, 1 findings over a threshold that was asked
for, 2 wrong use or settings, 3 not enough data, 4 refused by a guard, 5 a service could not be reached, 6 given or
stored data can't be read or storage is full, 70 a bug of ours.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import FrameType, TracebackType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from fleet.errors import EXIT_BUG, GputideError, Misconfigured
from fleet.logs import LogFormat, set_up_logs
from fleet.settings.settings import load_settings
from fleet.units import parse_time
from gputide.price_shelf import PRICED_VERBS, with_price_book
from gputide.session import Session, default_data_path

VERBS = (
    "demo",
    "scan",
    "export",
    "receive",
    "rollup",
    "warehouse",
    "backup",
    "replay",
    "analyze",
    "recommend",
    "explain",
    "backtest",
    "simulate",
    "plan",
    "apply",
    "undo",
    "verify",
    "tide",
    "relief",
    "admission",
    "agent",
    "probe",
    "report",
    "notify",
    "grafana",
    "dashboard",
    "access",
    "doctor",
    "cost",
    "prices",
    "engines",
)
"""Every verb, in the order in which `--help` lists them; verb X lives in `gputide.verbs.X` as a Typer `app`."""


_FIRST_PROCESS = 1
"""Process id of what a container runs."""


class _Verbs(TyperGroup):
    """Loads a verb's module only when it is asked for, so that `gputide export` never loads DuckDB or Dash."""

    _is_completing = False

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        # A shell waits for the names of verbs, and needs nothing of what they load.
        self._is_completing = True
        try:
            return super().shell_complete(ctx, incomplete)
        finally:
            self._is_completing = False

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        if self._is_completing:
            return TyperCommand(name=cmd_name)
        command = typer.main.get_command(import_module(f"gputide.verbs.{cmd_name}").app)
        command.name = cmd_name
        return command


app = typer.Typer(
    name="gputide",
    cls=_Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Shows where GPUs idle, says what to do about it in cards and money, applies it, proves it, undoes it.",
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"gputide {version('gputide')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _program(
    context: typer.Context,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder that holds all state.", envvar="GPUTIDE_DATA_DIR", show_default=False)
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with settings.", envvar="GPUTIDE_CONFIG")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="One setting; may be repeated.")
    ] = None,
    now: Annotated[str | None, typer.Option(help="Take this moment as now (ISO 8601, UTC).")] = None,
    quiet: Annotated[bool, typer.Option(help="No progress.")] = False,
    check: Annotated[bool, typer.Option(help="Validate the settings and exit.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
    log_format: Annotated[LogFormat, typer.Option(help="How events are written to stderr.")] = LogFormat.AUTO,
) -> None:
    set_up_logs(level=log_level, log_format=log_format)
    settings = load_settings(config, dict(_assignments(setting or [])), os.environ)
    data_path = data_dir if data_dir is not None else default_data_path()
    bare = settings if context.invoked_subcommand in PRICED_VERBS else None
    if bare is not None:
        settings = with_price_book(bare, data_path)
    context.obj = Session(
        data_path=data_path,
        settings=settings,
        now_override=parse_time(now) if now is not None else None,
        is_quiet=quiet,
        bare_settings=bare,
    )
    if check:
        typer.echo("settings are valid")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main() -> None:
    """Entry point of the program `gputide`."""
    sys.excepthook = _report_bug
    if os.getpid() == _FIRST_PROCESS:
        # The kernel spares the first process of a container: told to stop, it would be killed after its time of grace.
        signal.signal(signal.SIGTERM, _end)
    try:
        # Typer's own call would replace the hook above, and a bug would end with status 1.
        typer.main.get_command(app)()
    except GputideError as exc:
        typer.echo(f"gputide: {exc}", err=True)
        sys.exit(exc.exit_status)


def _end(number: int, _frame: FrameType | None) -> None:
    """Ends as the signal would end any other process; what is open is closed on the way. Verbs may know better."""
    sys.exit(128 + number)


def _assignments(texts: list[str]) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign:
            raise Misconfigured(f"cannot use --set {text!r}: expected NAME=VALUE, such as risk.preset=low")
        pairs.append((name.strip(), value))
    return pairs


def _report_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        os._exit(130)
    traceback.print_exception(kind, error, trace)
    typer.echo("gputide: this is a bug of gputide; please report it with the text above and the command", err=True)
    sys.stderr.flush()
    os._exit(EXIT_BUG)


if __name__ == "__main__":
    main()
