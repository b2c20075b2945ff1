"""`kubectl gputide VERB`: what pods and cards use and cost, plans, and what is done with them, by a kubeconfig.

kubectl runs the program `kubectl-gputide` of the PATH for `kubectl gputide`. It asks the API server alone, in the name
of the kubeconfig's user: use and cost by the aggregated API `usage.gputide.io`, plans by their objects. Verbs that
change something are those of `gputide`, with a data folder of their own below the user's cache. Exit status as there.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fleet.logs import LogFormat, set_up_logs
from gputide.cli import asks_for_help, program_class, run_program
from gputide.kubectl.sessions import plugin_session, session_to_change
from gputide.output import show_everything
from gputide.verbs import Verb

_CHANGING = "Change the cluster"
KUBECTL_VERBS = (
    Verb(name="top", summary="Show what pods or cards are granted, use and cost, most waste first.", panel="Look"),
    Verb(name="why", summary="Say why a pod is idle or oversized, and what the newest plan says of it.", panel="Look"),
    Verb(name="cost", summary="Show what namespaces cost over the last seven days.", panel="Look"),
    Verb(name="plan", summary="List plans, or show how the stages of one stand.", panel="Look"),
    Verb(name="watch", summary="Follow a plan that is being applied or taken back.", panel="Look"),
    Verb(name="approve", summary="Approve stages of a plan.", panel=_CHANGING),
    Verb(name="apply", summary="Carry out approved stages; a dry run unless --yes.", panel=_CHANGING),
    Verb(
        name="abort",
        summary="Take back the stage that is under way, and stop; a dry run unless --yes.",
        panel=_CHANGING,
    ),
    Verb(name="undo", summary="Restore what a plan changed; a dry run unless --yes.", panel=_CHANGING),
    Verb(name="freeze", summary="Stop every change in this cluster at once, or lift that.", panel=_CHANGING),
)
_OF_VERBS = {"--namespace": True, "-n": True, "--all-namespaces": False, "-A": False}
_NAMES_A_PLAN = frozenset({"approve", "apply", "abort", "undo"})


app = typer.Typer(
    name="kubectl gputide",
    cls=program_class(KUBECTL_VERBS, program="kubectl gputide", package="gputide.kubectl.verbs", of_verbs=_OF_VERBS),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Shows what GPUs are granted, used and cost, and carries out plans, by your kubeconfig.",
    epilog="The options above stand before or after the verb. Example: kubectl gputide top --context prod -A",
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        from importlib.metadata import version  # a tenth of every start

        typer.echo(f"kubectl gputide {version('gputide')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _program(
    context: typer.Context,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Path of the kubeconfig; $KUBECONFIG or ~/.kube/config unless given.")
    ] = None,
    context_name: Annotated[
        str | None, typer.Option("--context", help="Name of a context of it; the current one unless given.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML file with settings.", envvar="GPUTIDE_CONFIG")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="One setting; may be repeated.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Show every row of a table, not the first ten.")] = False,
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    set_up_logs(level="warning", log_format=LogFormat.AUTO)
    show_everything(everything)
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        return
    if asks_for_help(context):
        return
    session = plugin_session(
        kubeconfig=kubeconfig, context=context_name, config=config, assignments=setting or [], environ=os.environ
    )
    context.obj = session_to_change(session) if context.invoked_subcommand in _NAMES_A_PLAN else session


def main() -> None:
    """Entry point of the program `kubectl-gputide`."""
    run_program(app)
