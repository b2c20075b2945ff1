"""What a dashboard is made of: panels with their questions to Prometheus, in rows of 24 columns.

Plain records, so that the list of a dashboard's panels reads like its page; `drawn` turns them into Grafana's JSON.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

GRID_COLUMNS = 24
"""Columns of Grafana's grid."""


class Draw(StrEnum):
    """How a panel shows its series."""

    STAT = "stat"
    LINES = "lines"
    STACK = "stack"
    BARS = "bars"
    TABLE = "table"


class Unit(StrEnum):
    """Grafana's ids of units (grafana/grafana:packages/grafana-data/src/valueFormats/categories.ts)."""

    COUNT = "short"
    RATIO = "percentunit"
    BYTES = "bytes"
    WATTS = "watt"
    CELSIUS = "celsius"
    SECONDS = "s"
    PER_SECOND = "cps"
    MONEY = "none"
    """Its currency stands in the legend: one dashboard may show several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One question.

    Attributes:
        expression: PromQL with the dashboard's variables.
        legend: how a series is called, a template of Grafana; empty for its labels.
    """

    expression: str
    legend: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One panel.

    Attributes:
        title: a few words.
        draw: how it is shown.
        queries: what it asks.
        unit: unit of its values.
        empty: what it says where there are no rows: who would give them, and how.
        about: one sentence for the reader who asks what it means.
        width: columns of 24.
        height: rows of Grafana's grid.
        columns: of a table, label → heading, in order; the value comes last.
        value_heading: heading of the value in a table.
        links: of a table, label → address of another dashboard with `${__value.text}` for the value.
        has_state_colours: True where series are called by a card's state.
    """

    title: str
    draw: Draw
    queries: tuple[Query, ...]
    unit: Unit = Unit.COUNT
    empty: str
    about: str
    width: int = 12
    height: int = 8
    columns: tuple[tuple[str, str], ...] = ()
    value_heading: str = "value"
    links: tuple[tuple[str, str], ...] = ()
    has_state_colours: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """One choice at the top of a dashboard.

    Attributes:
        name: how expressions name it.
        label: how people read it.
        series: selector whose labels are offered.
        of: the label.
        is_many: several may be chosen, and all of them is the default.
    """

    name: str
    label: str
    series: str
    of: str
    is_many: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """One dashboard.

    Attributes:
        uid: fixed id, so that links and updates find it.
        title: its name.
        about: what question it answers.
        variables: choices, in order; the data source comes before them.
        panels: from top left to bottom right.
        hours: time range at the start.
    """

    uid: str
    title: str
    about: str
    variables: tuple[Variable, ...]
    panels: tuple[Panel, ...]
    hours: int = 24
    tags: tuple[str, ...] = field(default=("gputide", "gpu"))


CLUSTER = Variable(name="cluster", label="Cluster", series="gputide:card:activity_ratio", of="cluster")
NAMESPACE = Variable(
    name="namespace", label="Namespace", series='gputide:slice:granted{cluster=~"$cluster"}', of="namespace"
)
MODEL = Variable(
    name="model", label="Card model", series='gputide:card:activity_ratio{cluster=~"$cluster"}', of="card_model"
)
CARD_FILTER = 'cluster=~"$cluster", card_model=~"$model"'
"""Selector of cards by the choices above."""
SLICE_FILTER = 'cluster=~"$cluster", namespace=~"$namespace"'
"""Selector of slices by the choices above."""
NO_CARDS = (
    "No card is known: load gputide's recording rules into Prometheus and let it scrape dcgm-exporter, HAMi or "
    "gputide run export node"
)
NO_SLICES = (
    "Nobody says which pod holds which card: start gputide run export node on the nodes, HAMi's monitor, or "
    "dcgm-exporter with DCGM_EXPORTER_KUBERNETES=true"
)
NO_SAVINGS = "No series of plans: let Prometheus scrape gputide run export savings"
