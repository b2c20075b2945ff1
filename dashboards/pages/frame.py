"""What every page shares: the bar on top, the designed empty and error states, tables, figures, and the grid.

Every sheet with a table or a figure is saved as CSV, JSON or picture (`assets/export.js`). Text of
tenants goes into the page as text nodes alone; nothing here, or in any page, sets HTML.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dash import dcc, html

from dashboards.address import Address, search_text
from dashboards.queries import Freshness
from dashboards.view_models.rows import age_words, percent_words
from dashboards.words.advice import judged_words
from dashboards.words.reading import LANGUAGES, READING, reader_words, say, say_code
from enforcer.record.verdict import Verdict, headline, sentences
from fleet.profiles import Profiles
from fleet.sentences import Sentence
from fleet.words import Language

PAGES = (("/", "page.fleet"), ("/workloads", "page.workloads"), ("/plan", "page.plan"), ("/savings", "page.savings"),
         ("/cost", "page.cost"), ("/tenants", "page.tenants"), ("/health", "page.health"))  # fmt: skip
"""Path and title (a message) of every page, in the order in which people ask."""

RANGE_PAGES = {
    "/workloads": {"24h": "range.day", "7d": "range.week", "28d": "range.days_28", "all": "range.all"},
    "/card": {"24h": "range.day", "7d": "range.week", "28d": "range.days_28", "all": "range.days_91"},
    "/cost": {"7d": "range.week", "28d": "range.days_28", "all": "range.days_91"},
    "/savings": {"24h": "range.weeks_4", "7d": "range.weeks_8", "all": "range.weeks_26"},
}
"""Pages whose figures follow the time range, and what they call it; the others say which history they stand on."""

GRAPH_CONFIG: Any = {"displayModeBar": False, "responsive": True, "scrollZoom": False, "doubleClick": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Who reads a page.

    Attributes:
        role: their highest role.
        can_sign_out: whether there is a session to end.
    """

    name: str
    role: str
    can_sign_out: bool


def top_bar(
    address: Address, clusters: Sequence[str], profiles: Profiles | None, freshness: Freshness | None, reader: Reader
) -> Any:
    """Cluster and time range on the left, coverage and age of data beside them, pages, search, the reader."""
    cluster = profiles.cluster if profiles is not None else (clusters[0] if clusters else say("frame.no_cluster"))
    shade = say("frame.switch_between_light_dark")
    return [
        html.A(say("frame.skip_page"), href="#page", className="skip"),
        dcc.Link([html.Span("◒", className="mark"), "gputide"], href=address.href("/"), className="brand"),
        menu(cluster, *_clusters(address, clusters), title=say("frame.cluster"), id="cluster"),
        _range(address, profiles),
        freshness_badge(freshness) if freshness is not None else None,
        html.Nav([_tab(address, path, say(title)) for path, title in PAGES], **spoken(say("frame.pages"))),
        _search(),
        html.Button("◐", id="theme", className="quiet", title=shade, **spoken(shade)),
        _languages(address),
        _reader(reader) if reader.can_sign_out else None,
    ]


def _tab(address: Address, path: str, title: str) -> Any:
    return dcc.Link(title, href=address.href(path), className="page-tab on" if path == address.path else "page-tab")


def _search() -> Any:
    box = dcc.Input(
        id="search", type="search", placeholder=say("frame.search_card_node_team_workload"), autoComplete="off",
        debounce=False, value="",
    )  # fmt: skip
    named = html.Label([html.Span(say("frame.search"), className="unseen"), box])
    return div("search", named, html.Div(id="search-results", className="results", **LIVE), role="search")


def div(class_name: str, *children: Any, **props: Any) -> Any:
    """A part of the page by its class in the style sheet, with what is in it."""
    return html.Div(list(children), className=class_name, **props)


def span(class_name: str, *children: Any, **props: Any) -> Any:
    """The same within a line."""
    return html.Span(list(children), className=class_name, **props)


def menu(words: str, *children: Any, title: str | None = None, class_name: str = "menu", **props: Any) -> Any:
    """Words that open a part below them."""
    head = html.Summary([words, html.Span(" ▾", className="soft")], title=title)
    return html.Details([head, div("drop", *children)], className=class_name, **props)


def page(name: str, title: str, *children: Any) -> Any:
    """A whole page; who hears it is told its title, which who sees reads in the bar on top."""
    return div(f"page {name}", html.H1(title, className="unseen"), *children)


def spoken(words: str) -> Any:
    """What a screen reader says of a part that has no text of its own."""
    return {"aria-label": words}


LIVE: Any = {"aria-live": "polite"}
"""A part that changes by itself, and is then read out."""


def shown(said: Sentence | str) -> Any:
    """A sentence in the reader's language; a text is English, and marked so for a screen reader to read it right."""
    words = reader_words()
    text = words.in_english("recorded.", said) if isinstance(said, str) else words.said(said)
    is_foreign = text == said and text and words.language is not Language.EN
    return html.Span(text, lang=Language.EN.value) if is_foreign else text


def scrolled(*children: Any, name: str, class_name: str = "") -> Any:
    """A part with more in it than its height shows; the keyboard reaches it to scroll.

    Args:
        name: what a screen reader calls it.
    """
    return html.Div(
        list(children), className=f"scroll {class_name}".strip(), tabIndex="0", role="region", **spoken(name)
    )


def _languages(address: Address) -> Any:
    """The other languages, each by its own name; the page is asked for anew, so that all of it speaks it."""
    others = [(tag, name) for tag, name in LANGUAGES.items() if tag != READING.get()]
    return html.Div(
        [html.A(name, href=address.href(lang=tag), className="language", lang=tag) for tag, name in others],
        id="languages",
    )


def _reader(reader: Reader) -> Any:
    leave = html.Form(html.Button(say("frame.sign_out"), className="quiet"), action="/sign-out", method="POST")
    role = say_code("role", reader.role)
    return menu(reader.name, html.P(role, className="soft"), leave, title=role, class_name="menu reader", id="reader")


def freshness_badge(freshness: Freshness) -> Any:
    """Coverage and age of the data; amber, with a sign, where they are doubtful."""
    age = say("frame.no_data")
    if freshness.age_seconds is not None:
        age = say("frame.age_old", age=age_words(freshness.age_seconds))
    text = f"{say('frame.coverage_ratio', ratio=percent_words(freshness.coverage_ratio, 1))} · {age}"
    if freshness.is_doubtful:
        return span("badge warn", "▲ ", text, id="freshness", title=say("frame.amber_under_90_coverage_or_over"))
    return span("badge", "● ", text, id="freshness", title=say("frame.windows_with_row_windows_expected_over"))


def verdict_banner(verdict: Verdict | None, address: Address, shown_plan: str | None = None) -> Any:
    """The first line of Plan and Savings: what became of the applied plan, in the words of the report.

    Args:
        verdict: the one that leads; nothing is shown without any.
        shown_plan: plan that the page shows; any other is linked.
    """
    if verdict is None:
        return None
    language, lead = READING.get(), headline(verdict)
    href = address.href("/plan", plan=verdict.plan_id, stages=None)
    review = dcc.Link(say("plan.review_plan_plan", plan=verdict.plan_id), href=href)
    return div(
        "message failed" if verdict.needs_hands else "message",
        html.B(judged_words(lead, language)),
        " ",
        html.Span(judged_words(sentences(verdict)[len(lead) :], language)),
        *((" ", review) if verdict.plan_id != shown_plan else ()),
        id="verdict",
        role="alert" if verdict.needs_hands else "status",
    )


def _notice(mark: str, title: str, *parts: Any, is_failed: bool = False, **props: Any) -> Any:
    what = div("missing-mark", mark), html.H2(title)
    return div("missing failed" if is_failed else "missing", *what, *parts, **props)


def missing(title: str, why: str, command: str) -> Any:
    """An empty state: what is missing, why, and the one command that mends it."""
    copy = dcc.Clipboard(content=command, title=say("frame.copy"), className="copy")
    return _notice("◌", title, html.P(why), div("command", html.Code(command), copy))


def failure(message: Sentence | str) -> Any:
    """An error state: the message as the house words it, and where to look."""
    where = div("command", html.Code("gputide doctor"))
    title = say("frame.could_not_be_shown")
    return _notice("▲", title, html.P(shown(message)), where, is_failed=True, role="alert")


def not_made_yet(message: Sentence | str) -> Any:
    """What is being made for the first time, on a page that comes again by itself."""
    soon = html.P(say("frame.comes_by_itself"))
    return _notice("◌", say("frame.one_moment"), html.P(shown(message)), soon, role="status")


def not_allowed(message: Sentence | str, reader: Reader) -> Any:
    """A page that is not for this reader: why, and who can change that."""
    who = say("frame.you_name_role_whoever_keeps_file", name=reader.name, role=say_code("role", reader.role))
    return _notice("◌", say("frame.not_for_you"), html.P(shown(message)), html.P(who), role="alert")


def figure_number(number: Any, words: str, *, note: str = "", tone: str = "") -> Any:
    """One headline number with its unit and window."""
    return div("number", html.B(number, className=tone), html.Span(words), html.Small(note) if note else None)


def card(
    title: str, *children: Any, note: Any = None, class_name: str = "", export: str = "", has_figure: bool = False
) -> Any:
    """A sheet with a heading.

    Args:
        note: stands right of the heading.
        export: name of the files that its tables and figures can be taken along as; empty where there are none.
        has_figure: whether one of these files is a picture.
    """
    head = [
        html.H2(title),
        html.Span(note, className="note") if note is not None else None,
        _exports(title, export, has_figure) if export else None,
    ]
    return html.Section([html.Header(head), *children], className=f"card {class_name}".strip())


def _exports(title: str, name: str, has_figure: bool) -> Any:
    kinds = ("csv", "json", "png") if has_figure else ("csv", "json")
    marks: list[Any] = [{"data-export": kind, "data-name": name} for kind in kinds]
    buttons = [html.Button(mark["data-export"].upper(), className="quiet", **mark) for mark in marks]
    what = say("frame.save_title_as_file", title=title)
    head = html.Summary("⤓", title=what, **spoken(what))
    return html.Details([head, div("drop", *buttons)], className="menu exports")


def graph(figure: dict[str, Any], *, name: str = "", **props: Any) -> Any:
    """A figure as tall as it says and as wide as its place.

    Args:
        name: what a screen reader calls it.
    """
    language = READING.get().value
    dates = {"dictionary": {}, "format": reader_words().names_of_days()}
    config: Any = {**GRAPH_CONFIG, "locale": language, "locales": {language: dates}}
    height = f"{figure['layout'].get('height', 240)}px"
    return html.Figure(dcc.Graph(figure=figure, config=config, style={"height": height}, **props), **spoken(name))


def drawn(drawing: dict[str, Any], *, name: str, **props: Any) -> Any:
    """A figure that the page draws without a charting library (`assets/drawn.js`).

    Args:
        drawing: squares (`card_map_drawing`) or areas (`hours_drawing`); its `chosen` is the store of what is opened.
        name: what a screen reader calls it.
    """
    data: Any = {"data-figure": json.dumps({"name": name, **drawing})}
    return html.Figure(className="drawn", **data, **spoken(name), **props)


def table(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[Any]], *, class_name: str = "") -> Any:
    """A small table; a column is its heading and `n` for numbers, `t` for text."""
    kinds = [kind for _, kind in columns]
    head = html.Tr([html.Th(name, className=kind, scope="col") for name, kind in columns])
    body = [html.Tr([html.Td(cell, className=kind) for cell, kind in zip(row, kinds, strict=True)]) for row in rows]
    return html.Table([html.Thead(head), html.Tbody(body)], className=f"plain {class_name}".strip())


GRID_PATH = "/rows/"
"""Where grids ask for their rows, by name."""


def grid(
    name: str, title: str, columns: list[dict[str, Any]], *, row_key: str, height_px: int,
    of: Sequence[tuple[str, str | None]], filters: dict[str, str] | None = None,
) -> Any:  # fmt: skip
    """A large table that asks for its rows by the screenful: sort, filter, choose; cells are text, never HTML.

    `assets/grid.js` draws it. What is filtered and sorted by lies in `NAME-asked`, the row that was opened in
    `NAME-chosen` (`key`).

    Args:
        name: its id is `NAME-grid`; `downloads.register_rows` answers it.
        title: what a screen reader calls it.
        columns: of `text_column` and `number_column`.
        row_key: field that names a row.
        of: values of the address that say which rows are meant at all.
        filters: what stands in the fields at first.
    """
    hints = {"filter": "grid.filter", "text": "grid.hint_text", "number": "grid.hint_number", "failed": "grid.failed"}
    spec = {
        "name": name,
        "title": title,
        "columns": columns,
        "key": row_key,
        "address": GRID_PATH + name,
        "search": search_text([(key, value) for key, value in of if value is not None]),
        "words": {key: say(message) for key, message in hints.items()},
    }
    data: Any = {"data-grid": json.dumps(spec), "data-filters": json.dumps(filters or {})}
    return html.Div(
        [
            html.Div(id=f"{name}-grid", className="grid", style={"height": f"{height_px}px"}, **data),
            dcc.Store(id=f"{name}-asked", data={"filters": filters or {}}),
            dcc.Store(id=f"{name}-chosen"),
        ]
    )


def text_column(field: str, title: str, min_px: int, *, is_still: bool = False) -> dict[str, Any]:
    """A column of texts, as wide as there is room.

    Args:
        is_still: nobody sorts or filters by it, and it grows no wider.
    """
    still = {"still": True, "max": min_px} if is_still else {}
    return {"field": field, "title": title, "min": min_px, **still}


def number_column(
    field: str, title: str, digits: int, max_px: int, *, min_px: int = 70, is_ratio: bool = False
) -> dict[str, Any]:
    """A right-aligned column of numbers, an absent one an en dash.

    Args:
        digits: digits after the point.
        is_ratio: numbers of 0-1, shown in percent.
    """
    return {"field": field, "title": title, "min": min_px, "max": max_px, "digits": digits, "percent": is_ratio}


def _clusters(address: Address, clusters: Sequence[str]) -> list[Any]:
    # What else the address names (a plan, a card, a workload) is of the cluster that is left.
    kept = Address(path=address.path, query=tuple(pair for pair in address.query if pair[0] in ("range", "lang")))
    links = [dcc.Link(name, href=kept.href(cluster=name)) for name in clusters]
    return [*links, dcc.Link(say("clusters.all_clusters"), href=address.href("/clusters"))]


def _range(address: Address, profiles: Profiles | None) -> Any:
    if address.path in RANGE_PAGES:
        links = [
            dcc.Link(say(words), href=address.href(range=name), className="on" if name == address.time_range else "")
            for name, words in RANGE_PAGES[address.path].items()
        ]
        return div("segments", *links, id="range")
    if profiles is None:
        return None
    days = f"{(profiles.until - profiles.since).total_seconds() / 86400:.0f}"
    since, until = reader_words().day(profiles.since), reader_words().day(profiles.until, has_year=True)
    text = say("frame.days_d_since_until", days=days, since=since, until=until)
    return html.Span(text, className="soft range", id="range", title=say("frame.history_these_figures_stand_on_utc"))
