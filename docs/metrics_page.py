"""The pages about metrics: every family that the exporters show, whose names are understood, what the receiver reports.

Called by `docs/generate.py`. All of it is made from the code: the families' own records, the alias table, the columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

from dashboards.notify.sending import NotifyMetrics
from dashboards.request_hooks import WebMetrics
from dashboards.view_models.savings_series import SAVINGS_FAMILIES
from docs.metrics_catalogue import CATALOGUE
from docs.peer_names import peer_names
from enforcer.agent.loop import AgentMetrics
from enforcer.controller import ControllerMetrics
from enforcer.kubernetes.admission_server import AdmissionMetrics
from enforcer.policy_follower import FollowerMetrics
from enforcer.relief.runner import ReliefMetrics
from enforcer.router.shared_card import RouterMetrics
from enforcer.tide.runner import TideMetrics
from exporter.compat.figures import GRANT_SUMS, SHOWN_FIGURES, Of
from exporter.compat.names import NameSource, names_of
from exporter.cross_checks.checks import OutcomeWindow
from exporter.cross_checks.columns import On
from exporter.families import CataloguedFamily
from fleet.schema import MEASURES, Measure
from fleet.series import Subject, card_series, known_names, slice_series
from pipeline.bus.bridge_kafka import BridgeMetrics
from pipeline.receiver.counts import OWN_METRICS, PREFIX
from pipeline.rollup.rollup import RollupMetrics
from wire.own_metrics import OwnMetrics

OTHERS: tuple[tuple[str, str, Callable[[OwnMetrics], object]], ...] = (
    ("run receive --from-kafka TOPIC", "bridge", BridgeMetrics),
    ("run rollup", "rollup", RollupMetrics),
    ("run agent", "agent", AgentMetrics),
    ("run admission", "admission", AdmissionMetrics),
    ("run controller", "controller", ControllerMetrics),
    ("run planner", "planner", FollowerMetrics),
    ("run relief run", "relief", ReliefMetrics),
    ("run router", "router", RouterMetrics),
    ("run tide run", "tide", TideMetrics),
    ("admin notify run", "notify", NotifyMetrics),
)
"""Command, process and metrics of all that show theirs at `exporter.own_listen`."""

_SOURCE_WORDS = {
    NameSource.DCGM: "`--compat dcgm`",
    NameSource.HAMI: "`--compat hami`",
    NameSource.HAMI_LEGACY: "`--compat hami`, names before v2.9",
}


def metrics_pages() -> dict[str, str]:
    """`metrics.md` with the measures, and a page for each kind of names: path to Markdown."""
    kinds: tuple[tuple[str, Iterable[str]], ...] = (
        *((section.title, _families(section.text, section.families)) for section in CATALOGUE),
        ("Plans and savings", _families("From the data folder, by `gputide run export savings`.", SAVINGS_FAMILIES)),
        ("Checks", _checks()),
        ("Names of other exporters", (*_compat(), *_peers())),
        ("Understood on the way in", _understood()),
        ("Processes of gputide", (*_receiver(), *_web(), *_others())),
    )
    index = [*_measures(), ""]
    pages = {}
    for title, lines in kinds:
        name = f"metrics/{re.sub('[^a-z]+', '-', title.lower())}.md"
        index.append(f"- [{title}]({name})")
        pages[name] = "\n".join((f"# Metrics: {title[0].lower() + title[1:]}\n", *lines)).rstrip() + "\n"
    return {"metrics.md": "\n".join(index) + "\n", **pages}


def _measures() -> Iterator[str]:
    yield "# Metrics\n"
    yield "Names of gputide's own series are `gputide_card_MEASURE` and `gputide_slice_MEASURE`. Values are in base"
    yield "units; what is not measured has no series: missing is not zero.\n"
    yield "| measure | range | of cards | of slices |"
    yield "|---|---|---|---|"
    for column in MEASURES:
        span = f"{column.value_min:g} to {column.value_max:g}"
        cells = ("yes" if held else "" for held in (column.of_card, column.of_slice))
        yield f"| `{column.measure.value}` | {span} | {' | '.join(cells)} |"


def _families(text: str, families: Iterable[CataloguedFamily]) -> Iterator[str]:
    yield f"{text}\n"
    yield "| metric | type | labels | meaning |"
    yield "|---|---|---|---|"
    yield from map(_family_row, families)


def _family_row(family: CataloguedFamily) -> str:
    labels = ", ".join(f"`{label}`" for label in family.label_names)
    return f"| `{family.name}` | {family.kind.value} | {labels} | {_cell(family.help_text)} |"


def _checks() -> Iterator[str]:
    yield "What the label `check` may say. A remark does not distrust the number: it says that the work is odd.\n"
    yield "| check | of | counter | kind | fails where |"
    yield "|---|---|---|---|---|"
    rows: dict[tuple[str, str, str], tuple[list[str], list[str]]] = {}
    for on in On:
        for check in OutcomeWindow(on).checks:
            kind = "distrust" if check.distrusts else "remark"
            of, counters = rows.setdefault((check.name, kind, check.meaning), ([], []))
            of += [on.value] * (on.value not in of)
            counters += [check.counter.value] * (check.counter.value not in counters)
    for (name, kind, meaning), (of, counters) in rows.items():
        shown = ", ".join(f"`{counter}`" for counter in counters)
        yield f"| `{name}` | {', '.join(of)} | {shown} | {kind} | {_cell(meaning)} |"


def _compat() -> Iterator[str]:
    yield "## Shown under other exporters' names\n"
    yield "Where we have the figure, and with `run export node --compat` only.\n"
    yield "| name | with | gputide's |"
    yield "|---|---|---|"
    for source in NameSource:
        for name in names_of(source):
            ours = _ours(name.subject, name.measure, name.fact)
            if ours is not None:
                yield f"| `{name.name}` | {_SOURCE_WORDS[source]} | {ours} |"
        for figure in SHOWN_FIGURES:
            if figure.source is source:
                of = " (of a MIG instance, with `GPU_I_ID` and `GPU_I_PROFILE`)" if figure.of is Of.MIG else ""
                yield f"| `{figure.name}`{of} | {_SOURCE_WORDS[source]} | `{figure.family}` |"
        for grant_sum in GRANT_SUMS.get(source, ()):
            yield f"| `{grant_sum.name}` | {_SOURCE_WORDS[source]} | {grant_sum.meaning} |"


def _peers() -> Iterator[str]:
    yield "\n## What others show, and where it is here\n"
    yield "Every name of dcgm-exporter's default and profiling lists (commented lines included), of HAMi's two"
    yield "exporters (old names too), of KAI's and of nvitop's. *same name*: `--compat` shows it under that name too.\n"
    yield "| exporter | name | here | |"
    yield "|---|---|---|---|"
    for told in peer_names():
        here = ", ".join(f"`{family}`" for family in told.families) or "–"
        remark = "same name" if told.is_shown else told.remark
        yield f"| {told.peer.value} | `{told.name}` | {here} | {_cell(remark)} |"


def _ours(subject: Subject, measure: Measure | None, fact: str | None) -> str | None:
    """What stands behind a name; None where no exporter of ours has the figure."""
    if measure is not None:
        return f"`{card_series(measure) if subject is Subject.CARD else slice_series(measure)}`"
    return f"`{fact}` of the grant" if subject is Subject.GRANT else None


def _understood() -> Iterator[str]:
    yield "By the receiver, with unit conversion:\n"
    yield from (f"- `{name}`" for name in sorted(known_names()))


def _receiver() -> Iterator[str]:
    yield "## The receiver itself\n"
    yield "At its `/metrics`, all of its processes together:\n"
    yield "| metric | kind | by | meaning |"
    yield "|---|---|---|---|"
    for metric in OWN_METRICS:
        yield f"| `{PREFIX}{metric.name}` | {metric.kind.value} | {metric.per} | {metric.meaning} |"


def _web() -> Iterator[str]:
    yield "\n## The web app itself\n"
    yield "At its `/metrics`, behind `dashboard.access`: a scraper shows a token of `dashboard.rights_file`, of any"
    yield "role. Beside these, `process_…` of its CPU, memory and open files (Linux).\n"
    own = OwnMetrics("web")
    WebMetrics(own)
    yield from _own(own)


def _others() -> Iterator[str]:
    yield "\n## The other processes themselves\n"
    yield "At `/metrics` of `exporter.own_listen`, with TLS and tokens of the section `exporter`; `/healthz` answers"
    yield "while the process runs. Beside these, `process_…` of its CPU, memory and open files (Linux). `error` is the"
    yield "kind of error: unavailable, refused, corrupt, misconfigured, and finer ones such as conflict.\n"
    for command, process, register in OTHERS:
        own = OwnMetrics(process)
        register(own)
        yield f"### `gputide {command}`\n"
        yield from _own(own)
        yield ""


def _own(own: OwnMetrics) -> Iterator[str]:
    yield "| metric | kind | by | meaning |"
    yield "|---|---|---|---|"
    for metric in own.listed:
        yield f"| `{metric.name}` | {metric.kind} | {', '.join(metric.labels)} | {metric.meaning} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
