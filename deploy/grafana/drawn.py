"""Turns dashboards into Grafana's JSON with the foundation SDK; runs where dashboards are made, not where they're used.

    python -m deploy.grafana.drawn      # after a change of a board: writes dashboards/grafana/boards/*.json

A test fails while a committed file differs from what this writes. The SDK belongs to the development group: the product
ships the JSON.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import bargauge, common, dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as common_models
from grafana_foundation_sdk.models import dashboard as models
from grafana_foundation_sdk.models import prometheus as prometheus_models

from dashboards.tokens import ACCENT, STATE_COLOURS
from deploy.grafana.board_card import BOARD as CARD
from deploy.grafana.board_fleet import BOARD as FLEET
from deploy.grafana.board_pipeline import BOARD as PIPELINE
from deploy.grafana.board_savings import BOARD as SAVINGS
from deploy.grafana.board_tenant import BOARD as TENANT
from deploy.grafana.board_workload import BOARD as WORKLOAD
from deploy.grafana.panel import GRID_COLUMNS, Board, Draw, Panel, Unit, Variable
from fleet.words import Language, Words

BOARDS: tuple[Board, ...] = (FLEET, CARD, WORKLOAD, TENANT, SAVINGS, PIPELINE)
"""Every dashboard, in the order in which people meet them."""

FOLDER = Path(__file__).resolve().parents[2] / "dashboards" / "grafana" / "boards"
"""Where the drawn dashboards lie, as the product ships them."""

_SOURCE = common_models.DataSourceRef(type_val="prometheus", uid="${datasource}")
_Drawing = timeseries.Panel | stat.Panel | table.Panel | bargauge.Panel


def drawn(board: Board) -> dict[str, Any]:
    """A dashboard as Grafana reads it (schema of the SDK's own version), without an id: Grafana gives one."""
    page = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.about)
        .tags(list(board.tags))
        .editable()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .time(f"now-{board.hours}h", "now")
        .timezone("browser")
        .refresh("1m" if board.hours <= 24 else "5m")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus").multi(False))
        .links([_links()])
    )
    for variable in board.variables:
        page = page.with_variable(_variable(variable))
    x = y = row_height = 0
    for number, panel in enumerate(board.panels, start=1):
        if x + panel.width > GRID_COLUMNS:
            x, y, row_height = 0, y + row_height, 0
        place = models.GridPos(h=panel.height, w=panel.width, x=x, y=y)
        page = page.with_panel(_panel(panel).id(number).grid_pos(place))
        x, row_height = x + panel.width, max(row_height, panel.height)
    content: dict[str, Any] = json.loads(json.dumps(page.build(), cls=JSONEncoder))
    return content


def board_text(board: Board) -> str:
    """The text of the committed file."""
    return json.dumps(drawn(board), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _links() -> dashboard.DashboardLink:
    return (
        dashboard.DashboardLink("gputide")
        .type(models.DashboardLinkType.DASHBOARDS)
        .tags(["gputide"])
        .as_dropdown(True)
        .include_vars(True)
        .keep_time(True)
    )


def _variable(variable: Variable) -> dashboard.QueryVariable:
    made = (
        dashboard.QueryVariable(variable.name)
        .label(variable.label)
        .datasource(_SOURCE)
        .query({"query": f"label_values({variable.series}, {variable.of})", "refId": variable.name})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(models.VariableSort.ALPHABETICAL_ASC)
        .multi(variable.is_many)
    )
    # Of all, the series without the label are meant too: one Prometheus of one cluster has no such label.
    return made.include_all(True).all_value(".*") if variable.is_many else made


def _panel(panel: Panel) -> _Drawing:
    drawing = _of_kind(panel).title(panel.title).description(panel.about).datasource(_SOURCE)
    drawing = drawing.unit(panel.unit.value).no_value(panel.empty)
    if panel.unit is Unit.RATIO:
        drawing = drawing.min(0).decimals(1)
    if panel.has_state_colours:
        for state, colour in STATE_COLOURS.items():
            drawing = drawing.override_by_name(
                state.value,
                [
                    models.DynamicConfigValue(id_val="color", value={"mode": "fixed", "fixedColor": colour}),
                    models.DynamicConfigValue(
                        id_val="displayName", value=Words(language=Language.EN).code("state", state)
                    ),
                ],
            )
    is_now = panel.draw in (Draw.STAT, Draw.TABLE, Draw.BARS)
    for letter, query in zip("ABCDEFGH", panel.queries, strict=False):
        target = prometheus.Dataquery().expr(query.expression).ref_id(letter).datasource(_SOURCE)
        target = target.instant() if is_now else target.range()
        if panel.draw is Draw.TABLE:
            target = target.format(prometheus_models.PromQueryFormat.TABLE)
        drawing = drawing.with_target(target.legend_format(query.legend or "__auto"))
    return drawing


def _of_kind(panel: Panel) -> _Drawing:
    match panel.draw:
        case Draw.STAT:
            accent = dashboard.FieldColor().mode(models.FieldColorModeId.FIXED).fixed_color(ACCENT)
            return (
                stat.Panel()
                .graph_mode(common_models.BigValueGraphMode.NONE)
                .color_mode(common_models.BigValueColorMode.VALUE)
                .color_scheme(accent)
            )
        case Draw.TABLE:
            return _table(panel)
        case Draw.BARS:
            return (
                bargauge.Panel()
                .orientation(common_models.VizOrientation.HORIZONTAL)
                .display_mode(common_models.BarGaugeDisplayMode.BASIC)
                .min(0)
            )
        case Draw.LINES | Draw.STACK:
            legend = (
                common.VizLegendOptions()
                .show_legend(True)
                .display_mode(common_models.LegendDisplayMode.LIST)
                .placement(common_models.LegendPlacement.BOTTOM)
            )
            lines = timeseries.Panel().legend(legend).line_width(1).show_points(common_models.VisibilityMode.NEVER)
            if panel.draw is Draw.LINES:
                return lines.fill_opacity(0)
            stacked = common.StackingConfig().mode(common_models.StackingMode.NORMAL)
            return lines.fill_opacity(60).stacking(stacked)


def _table(panel: Panel) -> table.Panel:
    """A table of the named columns, then the value; everything else that Prometheus sends is left out."""
    order = [label for label, _ in panel.columns]
    names = {**dict(panel.columns), "Value": panel.value_heading}
    for letter in "ABCDEFGH"[: len(panel.queries)]:
        names[f"Value #{letter}"] = panel.value_heading
    made = table.Panel()
    if len(panel.queries) > 1:
        made = made.with_transformation(models.DataTransformerConfig(id_val="merge", options={}))
    pattern = "|".join([*order, "Value.*"])
    made = made.with_transformation(
        models.DataTransformerConfig(id_val="filterFieldsByName", options={"include": {"pattern": f"^({pattern})$"}})
    )
    places = {name: place for place, name in enumerate([*order, "Value"])}
    made = made.with_transformation(
        models.DataTransformerConfig(
            id_val="organize", options={"excludeByName": {}, "indexByName": places, "renameByName": names}
        )
    )
    for label, address in panel.links:
        link = {"title": f"open this {label}", "url": address, "targetBlank": False}
        made = made.override_by_name(names.get(label, label), [models.DynamicConfigValue(id_val="links", value=[link])])
    return made


def main() -> None:
    """Write every dashboard into `FOLDER`."""
    FOLDER.mkdir(exist_ok=True)
    for board in BOARDS:
        (FOLDER / f"{board.uid}.json").write_text(board_text(board), encoding="utf-8")


if __name__ == "__main__":
    main()
