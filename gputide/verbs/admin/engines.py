"""`gputide admin engines`: Kafka, Flink and Hive on this machine, for development and tests."""

from __future__ import annotations

import signal
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from platformdirs import user_state_path

from fleet.documents import document
from fleet.errors import EXIT_FINDINGS
from gputide.operate.engine_answers import check_drivers
from gputide.operate.engine_cache import default_cache_path
from gputide.operate.engine_parts import Engine
from gputide.operate.engine_tools import Tell
from gputide.operate.engines import KINDS, PartState, State, environments, fetch, states, up
from gputide.operate.engines import down as stop
from gputide.options import FormatOption, OutputOption
from gputide.output import Answer, Format, Listing, print_answer
from gputide.session import session_of

app = typer.Typer(
    no_args_is_help=True,
    help="Start and stop Kafka, Flink and Hive here, for development. Example: gputide admin engines up kafka",
)

EnginesArgument = Annotated[list[Engine] | None, typer.Argument(help="Which engines; all unless given.")]
FolderOption = Annotated[
    Path | None, typer.Option("--dir", help="Folder with their data, logs and register.", show_default=False)
]
CacheOption = Annotated[
    Path | None, typer.Option("--cache", help="Folder for what is fetched.", show_default=False)
]  # fmt: skip
PortOption = Annotated[int | None, typer.Option(min=1, max=65535, help="A free one unless given.", show_default=False)]


@app.command("up", epilog="Example: gputide admin engines up kafka hive --kafka-port 9092")
def engines_up(
    context: typer.Context,
    engines: EnginesArgument = None,
    folder: FolderOption = None,
    cache: CacheOption = None,
    kafka_port: PortOption = None,
    metastore_port: PortOption = None,
    hive_port: PortOption = None,
    flink_cluster: Annotated[bool, typer.Option(help="Also start a Flink cluster; jobs need none.")] = False,
    flink_port: PortOption = None,
    form: FormatOption = Format.TABLE,
) -> None:
    """Fetch what is missing, start what does not run, wait until each answers; on 127.0.0.1 alone."""
    chosen, place = engines or list(KINDS), cache or default_cache_path()
    wanted = {
        Engine.KAFKA: {"port": kafka_port},
        Engine.HIVE: {"metastore_port": metastore_port, "server_port": hive_port},
        Engine.FLINK: {"rest_port": flink_port},
    }
    ports = {
        engine: {name: port for name, port in named.items() if port is not None} for engine, named in wanted.items()
    }
    tell = _teller(context)
    signal.signal(signal.SIGTERM, _end)
    check_drivers(chosen)  # before minutes of fetching
    fetch(chosen, cache=place, tell=tell)
    started = [engine for engine in chosen if engine is not Engine.FLINK or flink_cluster]
    running = up(folder or default_run_path(), started, cache=place, ports=ports, tell=tell)
    _print(running + environments(chosen, cache=place), form, None)


@app.command("down", epilog="Example: gputide admin engines down hive")
def engines_down(context: typer.Context, engines: EnginesArgument = None, folder: FolderOption = None) -> None:
    """Stop what `up` started; data and logs stay."""
    tell = _teller(context)
    if stop(folder or default_run_path(), engines or list(KINDS), tell=tell) == 0:
        tell("nothing runs")


@app.command("status", epilog="Example: gputide admin engines status --format json")
def engines_status(
    engines: EnginesArgument = None,
    folder: FolderOption = None,
    cache: CacheOption = None,
    form: FormatOption = Format.TABLE,
    output: OutputOption = None,
) -> None:
    """Ask every process that `up` started; exit status 1 where one is dead or does not answer."""
    chosen = engines or list(KINDS)
    found = states(folder or default_run_path(), chosen)
    _print(found + environments(chosen, cache=cache or default_cache_path()), form, output)
    if any(part.state is not State.ANSWERS for part in found):
        raise typer.Exit(EXIT_FINDINGS)


@app.command("fetch", epilog="Example: gputide admin engines fetch kafka flink")
def engines_fetch(context: typer.Context, engines: EnginesArgument = None, cache: CacheOption = None) -> None:
    """Only fetch what they are made of, for a machine that will have no network."""
    fetch(engines or list(KINDS), cache=cache or default_cache_path(), tell=_teller(context))


def default_run_path() -> Path:
    """Where engines run unless `--dir` says otherwise."""
    return user_state_path("gputide") / "engines"


def _print(found: tuple[PartState, ...], form: Format, output: Path | None) -> None:
    columns = ("engine", "part", "state", "address", "pid", "log")
    rows = [
        (part.engine.value, part.part, part.state.value, part.address, part.pid and str(part.pid), part.log)
        for part in found
    ]
    listing = Listing(title="Engines", columns=columns, rows=rows)
    answer = Answer(document=document(found), listings=(listing,) if found else ())
    if not found:
        answer = Answer(document=[], headline=("no engine was started here",))
    print_answer(answer, form=form, target=output)


def _teller(context: typer.Context) -> Tell:
    is_quiet = session_of(context).is_quiet

    def tell(sentence: str) -> None:
        if not is_quiet:
            typer.echo(sentence, err=True)

    return tell


def _end(_: int, __: FrameType | None) -> NoReturn:
    """Take a request to end as Ctrl-C: what was started has to be stopped first."""
    raise KeyboardInterrupt
