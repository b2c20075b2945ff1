"""The command line: options of the whole program, the verbs in the order of the data flow, and the exit status.

`gputide VERB --help` shows each verb with an example. Exit status: 0 fine, 1 findings over a threshold that was asked
for, 2 wrong use or settings, 3 not enough data, 4 refused by a guard, 5 a service could not be reached, 6 given or
stored data can't be read or storage is full, 70 a bug of ours.

Common options may stand anywhere: `gputide plan list --data-dir D` means `gputide --data-dir D plan list`, and `gputide
--format json plan list` means `gputide plan list --format json`. An option that a verb has itself belongs to the verb
wherever it stands behind it.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path
from types import FrameType, TracebackType
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from fleet.errors import EXIT_BUG, GputideError, Misconfigured
from fleet.logs import LogFormat, set_up_logs
from fleet.settings.settings import load_settings
from fleet.units import parse_time
from gputide.output import printable, show_everything
from gputide.session import Session, assigned, default_data_path
from gputide.verbs import VERBS, Verb, nearest_verb, needs_prices

_CLUSTER = "--cluster"
_OF_VERBS = dict.fromkeys(("--format", "-f", "--output", "-o", _CLUSTER), True)
"""Options of verbs that may stand before the verb, and whether they take a value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arranged:
    """A call in the order that Typer parses.

    Attributes:
        words: the words of the verb, such as `("plan", "list")`; as many as are known.
        arguments: options of the program, the words, options and arguments of the verb.
    """

    words: tuple[str, ...]
    arguments: list[str]


def arranged(program: TyperGroup, context: Any, arguments: Sequence[str]) -> Arranged:
    """Options of the program go before the verb, options of the verb behind it.

    `--cluster` of a verb that has no such option is the setting `cluster.name`. What is unknown stays where it is, for
    Typer to refuse.
    """
    ahead: list[str] = []
    behind: list[str] = []
    postponed: list[list[str]] = []
    words: list[str] = []
    verb_ends = 0
    command: Any = program
    of_verbs = getattr(program, "of_verbs", _OF_VERBS)
    left = deque(arguments)
    while left:
        text = left.popleft()
        if text == "--":
            behind += [text, *left]
            break
        if not text.startswith("-") or text == "-":
            inner = command.get_command(context, text) if isinstance(command, TyperGroup) else None
            behind.append(text)
            if inner is not None:
                command, verb_ends = inner, len(behind)
                words.append(text)
            continue
        name = text.partition("=")[0] if text.startswith("--") else text[:2]
        own = None if command is program else _option(command, context, name)
        of_program = _option(program, context, name)
        has_value = of_verbs.get(name, False) if own is None and of_program is None else _takes_value(own or of_program)
        whole = [text, left.popleft()] if has_value and text == name and left else [text]
        if own is None and of_program is not None:
            ahead += whole
        elif own is None and name in of_verbs:
            postponed.append(whole)
        else:
            behind += whole
    for whole in postponed:
        if whole[0].startswith(_CLUSTER) and _option(command, context, _CLUSTER) is None:
            value = whole[1] if len(whole) > 1 else whole[0].partition("=")[2]
            ahead += ["--set", f"cluster.name={value}"]
        else:
            behind[verb_ends:verb_ends] = whole
            verb_ends += len(whole)
    return Arranged(words=tuple(words), arguments=[*ahead, *behind])


def _option(command: Any, context: Any, name: str) -> Any:
    """The option of a command that has a name such as `--now` or `-o`; None where there is none."""
    for param in command.get_params(context):
        if name in (*param.opts, *param.secondary_opts) and name.startswith("-"):
            return param
    return None


def _takes_value(option: Any) -> bool:
    return not option.is_flag and not getattr(option, "count", False)


_GC_THRESHOLD = (50_000, 20, 50)
"""When the cycles of young, older and old objects are looked for (`gc.set_threshold`)."""
_FIRST_PROCESS = 1
"""Process id of what a container runs."""
_WORDS = "gputide.words"
"""Key of the verb's words in what a call keeps."""
_WITHOUT_END = (("run",), ("serve",), ())
"""What goes on until it is stopped, or is no verb: nobody waits for its end, and its parts are traced instead."""
_HELP = "gputide.help"
"""Key of whether it asks for help."""


class _Group(TyperGroup):
    """A group of verbs; loads a verb's module only when the verb is called."""

    verbs = VERBS
    words: tuple[str, ...] = ()
    program = "gputide"
    package = "gputide.verbs"
    of_verbs: Mapping[str, bool] = _OF_VERBS
    _lists_only = False

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        # A shell waits for the names of verbs.
        with self._listing():
            return super().shell_complete(ctx, incomplete)

    def list_commands(self, ctx: Any) -> list[str]:
        return [verb.name for verb in self.verbs]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        verb = next((one for one in self.verbs if one.name == cmd_name), None)
        if verb is None:
            return None
        if self._lists_only:
            return TyperCommand(name=verb.name, help=verb.summary)
        words = (*self.words, verb.name)
        if verb.verbs:
            group = _Group(name=verb.name, help=verb.summary, no_args_is_help=True, rich_markup_mode=None)
            group.verbs, group.words, group.program, group.package = verb.verbs, words, self.program, self.package
            return group
        try:
            module = import_module(".".join((self.package, *words)))
        except ModuleNotFoundError as exc:
            called = " ".join((self.program, *words))
            raise Misconfigured(
                f"cannot run `{called}` without {exc.name}: pip install 'gputide[all]' brings it"
            ) from exc
        command = typer.main.get_command(module.app)
        command.name = verb.name
        # Completion is installed for the program, not for each verb.
        command.params = [param for param in command.params if not str(param.name).endswith("_completion")]
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        words = (*self.words, args[0])
        if args[0] not in self.list_commands(ctx):
            near = nearest_verb(words) if self.words else nearest_verb(words, self.verbs, self.program)
            program = " ".join((self.program, *self.words))
            advice = f"did you mean `{near}`?" if near else f"`{program} --help` lists all"
            ctx.fail(f"there is no verb {' '.join(words)!r}; {advice}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for panel, verbs in groupby(self.verbs, key=lambda verb: verb.panel):
            with formatter.section(panel):
                formatter.write_dl([(verb.name, verb.summary) for verb in verbs])

    @contextmanager
    def _listing(self) -> Iterator[None]:
        self._lists_only = True
        try:
            yield
        finally:
            self._lists_only = False


class _Program(_Group):
    """A program itself, whose options may stand anywhere."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            call = arranged(self, ctx, args)
            ctx.meta[_WORDS] = call.words
            ctx.meta[_HELP] = not {"-h", "--help"}.isdisjoint(call.arguments)
            args = call.arguments
        with _in_plain_words():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with _in_plain_words():
            return super().invoke(ctx)


def asks_for_help(context: typer.Context) -> bool:
    """Whether a call wants to read about a verb, for which nothing has to be opened or asked."""
    return bool(context.meta.get(_HELP))


def program_class(
    verbs: Sequence[Verb], *, program: str, package: str, of_verbs: Mapping[str, bool]
) -> type[TyperGroup]:
    """What Typer makes a program of whose options may stand anywhere.

    Args:
        verbs: in the order of help.
        program: how the program is called.
        package: where the modules of its verbs lie.
        of_verbs: further options of verbs that may stand before the verb, and whether they take a value.
    """
    known = {"verbs": tuple(verbs), "program": program, "package": package, "of_verbs": {**_OF_VERBS, **of_verbs}}
    return type("_Program", (_Program,), known)


@contextmanager
def _in_plain_words() -> Iterator[None]:
    """Errors of options without what the library that checks them puts before."""
    try:
        yield
    except typer.BadParameter as exc:
        exc.message = exc.message.removeprefix("Value error, ")
        raise


app = typer.Typer(
    name="gputide",
    cls=_Program,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Shows where GPUs are idle, says what to do about it in cards and money, applies it, proves it, undoes it.",
    epilog="The options above stand before or after the verb. So do --format table|json|csv|tsv|xlsx|yaml, -o FILE and "
    "--cluster NAME, where a verb prints data. Example: gputide plan list --data-dir ./data --format json",
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version  # a tenth of every start

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
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Show every row of a table, not the first ten.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Validate the settings and exit.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "warning",
    log_format: Annotated[LogFormat, typer.Option(help="How events are written to stderr.")] = LogFormat.AUTO,
) -> None:
    set_up_logs(level=log_level, log_format=log_format)
    show_everything(everything)
    settings = load_settings(config, assigned(setting or []), os.environ)
    data_path = data_dir if data_dir is not None else default_data_path()
    bare = settings if needs_prices(context.meta.get(_WORDS, ())) else None
    if bare is not None:
        from fleet.settings.price_book import with_price_book

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
    words = context.meta.get(_WORDS, ())
    if settings.telemetry.endpoint is not None and words[:1] not in _WITHOUT_END and not context.meta.get(_HELP):
        from gputide.container.telemetry import traced_verb

        context.with_resource(traced_verb(settings, words))


def main() -> None:
    """Entry point of the program `gputide`."""
    run_program(app)


def run_program(program: typer.Typer) -> None:
    """Run a program of ours to its end: its exit status says how it went."""
    # A start makes hundreds of thousands of objects that stay: looking through them at each 700 is a fifth of it.
    gc.set_threshold(*_GC_THRESHOLD)
    sys.excepthook = _report_bug
    if os.getpid() == _FIRST_PROCESS:
        # The kernel spares the first process of a container: asked to stop, it would be killed after its time of grace.
        signal.signal(signal.SIGTERM, _end)
    try:
        # Typer's own call would replace the hook above, and a bug would end with status 1.
        typer.main.get_command(program)()
    except GputideError as exc:
        typer.echo(f"gputide: {printable(str(exc))}", err=True)
        sys.exit(exc.exit_status)


def _end(number: int, _frame: FrameType | None) -> None:
    """Ends as the signal would end any other process; what is open is closed on the way. Verbs may know better."""
    sys.exit(128 + number)


def _report_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        os._exit(130)
    traceback.print_exception(kind, error, trace)
    typer.echo("gputide: this is a bug of gputide; please report it with the text above and the command", err=True)
    sys.stderr.flush()
    os._exit(EXIT_BUG)


if __name__ == "__main__":
    main()
