"""`gputide admin probe`: measures what a node's GPU sharing really enforces, and keeps what was measured."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from enforcer.probe.cuda_driver import CudaDriver
from enforcer.probe.framebuffer import spill_bytes_left
from enforcer.probe.run import granted_by_environment, probe
from enforcer.probe.stored_results import keep_result, kept_results, read_key, read_result
from fleet.capabilities.register import capabilities_of
from fleet.durable import write_durably
from fleet.errors import EXIT_FINDINGS
from fleet.probe_results import ProbeResult, as_measured, probe_text
from fleet.units import GIB, MIB, format_bytes, format_percent, format_time
from gputide.node_exporter import node_name
from gputide.options import answering
from gputide.output import Answer, Format, Listing, form_for, print_answer
from gputide.session import Session, session_of

app = typer.Typer(no_args_is_help=True, help="Measure what a node's GPU sharing really enforces, and plan with that.")

_ENDINGS = {".json": (Format.JSON,)}


@app.command(epilog="Example: gputide admin probe run -o result.json, in a container that is granted a slice")
def run(
    context: typer.Context,
    output: Annotated[Path, typer.Option("-o", "--output", help="Write the signed result (JSON) to this file.")],
    granted_mib: Annotated[
        int | None, typer.Option(min=1, help="Framebuffer granted, MiB; what the environment says unless given.")
    ] = None,
    granted_percent: Annotated[
        int | None, typer.Option(min=1, max=99, help="Limit on compute; what the environment says unless given.")
    ] = None,
    card_mib: Annotated[
        int | None, typer.Option(min=1, help="Framebuffer of the whole card; beyond it is spill.")
    ] = None,
) -> None:
    """Measure this container's limits for about two minutes; nobody else may use the card meanwhile."""
    form_for(output, Format.JSON, _ENDINGS)
    settings = session_of(context).settings
    key = read_key(settings)
    granted = granted_by_environment(os.environ)
    granted = replace(
        granted,
        framebuffer_bytes=granted.framebuffer_bytes if granted_mib is None else granted_mib * MIB,
        compute_ratio=granted.compute_ratio if granted_percent is None else granted_percent / 100,
        card_bytes=None if card_mib is None else card_mib * MIB,
    )
    library = settings.probe.cuda_library
    asked, left = settings.probe.spill_bytes_max, spill_bytes_left(settings.exporter.proc_folder)
    with closing(CudaDriver(path=None if library is None else str(library))) as gpu:
        result = probe(
            gpu,
            granted,
            backend=capabilities_of(settings.enforcer.backend).backend,
            node=node_name(settings.exporter.node),
            now=datetime.now(UTC),
            seconds=settings.probe.seconds,
            spill_bytes_max=min(asked, left),
        )
    write_durably(output, probe_text(result, key).encode())
    answer = _answer((result,))
    if left < asked:
        short = (
            f"{result.node}: asked for at most {format_bytes(left)} beyond the card instead of "
            f"probe.spill_bytes_max={asked}: half of the host memory that is left here"
        )
        answer = replace(answer, footnotes=(*answer.footnotes, short))
    print_answer(answer, form=Format.TABLE, target=None)
    if _disproves(result):
        raise typer.Exit(EXIT_FINDINGS)


@app.command("keep", epilog="Example: gputide admin probe keep result.json")
def keep(context: typer.Context, file: Annotated[Path, typer.Argument(help="A signed result.")]) -> None:
    """Keep a result: plans go by it from now on instead of by the table."""
    session = session_of(context)
    key = read_key(session.settings)
    result = read_result(file, key)
    keep_result(session.folder(create=True), result, key)
    typer.echo(f"kept: {result.backend} on {result.node}, measured at {format_time(result.measured_at)}")


@app.command("list", epilog="Example: gputide admin probe list")
@answering
def list_results(
    session: Session
) -> Answer:  # fmt: skip
    """Show what was measured, and which claims of the table it disproves."""
    key = read_key(session.settings)
    results = kept_results(session.folder(), key)
    return _answer(results)


def _disproves(result: ProbeResult) -> tuple[str, ...]:
    """Claims of the table that a result does not bear out, in words."""
    record = capabilities_of(result.backend)
    measured = as_measured(record, (result,))
    return tuple(
        f"{name.replace('_', ' ')}: {getattr(record, name).value}, measured {getattr(measured, name).value}"
        for name in ("framebuffer_isolation", "compute_isolation", "oversubscription")
        if getattr(record, name) is not getattr(measured, name)
    )


def _answer(results: tuple[ProbeResult, ...]) -> Answer:
    measured = Listing.of(
        "What was measured",
        results,
        {
            "node": lambda one: one.node,
            "backend": lambda one: one.backend,
            "at": lambda one: format_time(one.measured_at),
            "framebuffer": lambda one: (
                f"{_bytes(one.allocated_framebuffer_bytes)} of {_bytes(one.granted_framebuffer_bytes)}"
            ),
            "compute": lambda one: f"{_percent(one.compute_ratio)} of {_percent(one.granted_compute_ratio)}",
            "by graphs": lambda one: _percent(one.graph_compute_ratio),
            "pause / resume": lambda one: f"{_seconds(one.pause_seconds)} / {_seconds(one.resume_seconds)}",
            "beyond the card": _spill,
        },
    )
    return Answer(
        document=[_document(result) for result in results],
        listings=(measured,),
        footnotes=tuple(
            f"{result.node}: not as the table says: {text}" for result in results for text in _disproves(result)
        ),
    )


def _document(result: ProbeResult) -> dict[str, object]:
    values: dict[str, object] = {name: getattr(result, name) for name in result.__dataclass_fields__}
    return {**values, "measured_at": format_time(result.measured_at), "disproves": list(_disproves(result))}


def _bytes(value: int | None) -> str:
    return "unknown" if value is None else format_bytes(value)


def _percent(value: float | None) -> str:
    return "no limit" if value is None else format_percent(value, digits=0)


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f} s"


def _spill(result: ProbeResult) -> str:
    if not result.spilled_bytes:
        return "none" if result.spilled_bytes == 0 else "unknown"
    speed = result.spill_bytes_per_second
    text = format_bytes(result.spilled_bytes) + ("" if speed is None else f" at {speed / GIB:.1f} GiB/s")
    return text if result.kept_bytes is None else f"{text}, {format_bytes(result.kept_bytes)} stay"
