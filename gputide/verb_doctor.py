"""`gputide doctor`: what is missing, and what that disables."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

import typer

from fleet.capabilities import CAPABILITIES
from fleet.documents import document
from fleet.errors import EXIT_FINDINGS, GputideError, Misconfigured
from fleet.inventory import Inventory
from fleet.schema import Measure
from fleet.usage import History
from gputide.data_folder import DataFolder
from gputide.node_backends import read_node_backends
from gputide.options import FormatOption, OutputOption
from gputide.output import Answer, Format, Listing, print_answer
from gputide.price_shelf import with_price_book
from gputide.session import Session, session_of
from gputide.wiring import journal, load_history
from gputide.wiring_cluster import is_known, open_cluster
from recommender.prices import price_book

app = typer.Typer()

DISK_BYTES_MIN = 2 * 2**30
COVERAGE_MIN = 0.9
_EXTRAS = {"dash": ("dashboards", "the web app")}
_MEASURES = {
    Measure.SM_ACTIVE: "duty cycle is used instead: an upper bound, so less is advised (enable DCGM_FI_PROF_SM_ACTIVE)",
    Measure.KV_CACHE_USAGE: "what servers that pre-allocate really need stays unknown (scrape vLLM's metrics)",
    Measure.ENCODER: "a transcoder can't be told from an idle pod (enable DCGM_FI_DEV_ENC_UTIL)",
    Measure.POWER: "energy of idle cards is not reported (enable DCGM_FI_DEV_POWER_USAGE)",
    Measure.REQUEST_RATE: "latency-critical services are told by their labels only",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """One thing that was looked at.

    Attributes:
        what: what was looked at.
        is_well: False where something is missing.
        found: what was found.
        disables: what is not possible without it, and how to mend it; empty where all is well.
    """

    what: str
    is_well: bool
    found: str
    disables: str = ""


@app.command(epilog="Example: gputide doctor --format json")
def doctor(context: typer.Context, form: FormatOption = Format.TABLE, output: OutputOption = None) -> None:
    """Look at the installation, the data folder and the history; exit status 1 where something is missing."""
    session = session_of(context)
    found = [*_installation(session), *_data(session)]
    answer = Answer(
        document=document(tuple(found)),
        listings=(
            Listing(
                title="Doctor",
                columns=("what", "", "found", "disables"),
                rows=[(item.what, "ok" if item.is_well else "MISSING", item.found, item.disables) for item in found],
            ),
        ),
    )
    print_answer(answer, form=form, target=output)
    if not all(item.is_well for item in found):
        raise typer.Exit(EXIT_FINDINGS)


def _installation(session: Session) -> Iterator[Diagnosis]:
    yield Diagnosis(what="python", is_well=True, found=sys.version.split()[0])
    for module, (extra, purpose) in _EXTRAS.items():
        is_there = find_spec(module) is not None
        yield Diagnosis(
            what=f"extra {extra}",
            is_well=is_there,
            found="installed" if is_there else "not installed",
            disables="" if is_there else f"{purpose}; install gputide[{extra}]",
        )
    backend = session.settings.enforcer.backend
    known = {record.backend for record in CAPABILITIES}
    yield Diagnosis(
        what="backend",
        is_well=backend in known,
        found=backend,
        disables="" if backend in known else f"planning and applying; set enforcer.backend to one of {sorted(known)}",
    )


def _data(session: Session) -> Iterator[Diagnosis]:
    try:
        folder = session.folder()
        free = shutil.disk_usage(folder.path).free
        yield Diagnosis(what="data folder", is_well=True, found=str(folder.path))
        yield Diagnosis(
            what="disk",
            is_well=free >= DISK_BYTES_MIN,
            found=f"{free / 2**30:.1f} GiB free",
            disables="" if free >= DISK_BYTES_MIN else "new samples once it is full; free some space",
        )
        yield _ledger(folder)
        if is_known(folder, session.settings):
            yield _nodes(folder, session)
        history = load_history(folder, session.settings, session.now())
    except GputideError as exc:
        yield Diagnosis(what="history", is_well=False, found=str(exc), disables="every analysis")
        return
    yield from _history(history, session)


def _nodes(folder: DataFolder, session: Session) -> Diagnosis:
    try:
        with open_cluster(folder, session.settings) as cluster:
            found = read_node_backends(cluster, session.settings.enforcer.backend)
    except GputideError as exc:
        return Diagnosis(what="backends of nodes", is_well=False, found=str(exc), disables="apply and undo")
    return Diagnosis(
        what="backends of nodes", is_well=found.trouble is None, found=found.found, disables=found.trouble or ""
    )


def _ledger(folder: DataFolder) -> Diagnosis:
    try:
        runs = journal(folder).runs()
    except GputideError as exc:
        return Diagnosis(what="ledger", is_well=False, found=str(exc), disables="apply and undo")
    still_open = [run.plan_id for run in runs if run.is_open]
    return Diagnosis(
        what="ledger",
        is_well=not still_open,
        found=f"{len(runs)} runs, chain holds",
        disables=f"other plans until `gputide apply --plan {still_open[0]} --yes` has ended" if still_open else "",
    )


def _history(history: History, session: Session) -> Iterator[Diagnosis]:
    grid = history.slices
    days = grid.steps * grid.step_seconds / 86400
    yield Diagnosis(
        what="history",
        is_well=days >= 1,
        found=f"{days:.1f} days, step {grid.step_seconds} s, {len(grid.keys)} slices",
        disables="" if days >= 1 else "advice; one day is the least",
    )
    for measure, loss in _MEASURES.items():
        is_there = measure in grid.mean
        yield Diagnosis(
            what=f"measure {measure.value}",
            is_well=is_there,
            found="collected" if is_there else "not collected",
            disables="" if is_there else loss,
        )
    yield _prices(session, history.inventory)


def _prices(session: Session, inventory: Inventory) -> Diagnosis:
    models = {card.card_model for card in inventory.cards}
    try:
        settings = with_price_book(session.settings, session.data_path)
        book = price_book(settings, inventory.nodes, at=session.now())
        unpriced = sorted({card.card_model for card in inventory.cards if book.price_of(card).amortised is None})
    except Misconfigured as exc:
        return Diagnosis(what="prices", is_well=False, found=str(exc), disables="every amount of money")
    return Diagnosis(
        what="prices",
        is_well=not unpriced,
        found=f"{len(models) - len(unpriced)} of {len(models)} card models have a price",
        disables=f"money for {', '.join(unpriced[:5])}; set them with `gputide prices set`" if unpriced else "",
    )
