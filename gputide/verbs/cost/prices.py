"""`gputide cost prices`: what a card hour costs, by model, node, contract and time, with its source and date."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from fleet.catalogue import catalogue, find_model
from fleet.data_folder import writing
from fleet.durable import write_durably
from fleet.errors import Misconfigured
from fleet.money.amortisation import card_hour_cost, formula_of
from fleet.money.prices import PriceBook
from fleet.settings.faults import fault_words
from fleet.settings.money import PriceBasis, PriceRule
from fleet.settings.price_book import (
    CSV_COLUMNS,
    book_path,
    parse_price_book,
    parse_price_csv,
    read_book,
    with_price_book,
    with_prices,
)
from fleet.settings.settings import Settings
from fleet.units import parse_decimal, parse_money
from gputide.options import answering
from gputide.output import Answer, Format, Listing
from gputide.session import Session, session_of

app = typer.Typer(no_args_is_help=True, help="Prices of card hours. Example: gputide cost prices list")

_COLUMNS = ("card_model", "applies_to", "price_per_card_hour", "currency", "basis", "source", "date")


@app.command("list", epilog="Example: gputide cost prices list --format csv")
@answering
def list_prices(session: Session, form: Format) -> Answer:
    """List prices per card hour in the order in which they count: your rules, your overrides, public list prices."""
    settings = with_price_book(session.settings, session.data_path)
    book = PriceBook(settings)
    rows = [*_rule_rows(book), *_override_rows(settings), *_catalogue_rows(book)]
    machines = [(rule.source, rule.on_premises) for rule in settings.prices.rules if rule.on_premises is not None]
    columns = CSV_COLUMNS if form in (Format.CSV, Format.TSV, Format.EXCEL) else _COLUMNS
    return Answer(
        document=[{name: _plain(row.get(name)) for name in (*_COLUMNS, *CSV_COLUMNS)} for row in rows],
        listings=(
            Listing(
                title="Price per card hour; the first that fits a card counts",
                columns=columns,
                rows=[[row.get(name) for name in columns] for row in rows],
            ),
        ),
        footnotes=(
            *(f"{source}: {formula_of(machine)}" for source, machine in machines),
            f"price book: {book_path(settings, session.data_path)}",
            "add to it with `gputide cost prices set MODEL PRICE` or `gputide cost prices import FILE`",
        ),
    )


@app.command("set", epilog="Example: gputide cost prices set 'NVIDIA A10' '0.90 USD' --node-label pool=reserved")
def set_price(  # noqa: PLR0913, PLR0917 - one option per field of a price
    context: typer.Context,
    card_model: Annotated[str, typer.Argument(help="Card model, or `any`.")],
    price: Annotated[str, typer.Argument(help="Price of a card hour, such as 0.90 or '6.5 CNY'.")],
    node_label: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Only on nodes with this label; may be repeated.")
    ] = None,
    node: Annotated[str | None, typer.Option(help="Only on this node.")] = None,
    cluster: Annotated[str | None, typer.Option(help="Only in this cluster.")] = None,
    since: Annotated[str | None, typer.Option(metavar="DAY", help="First day (UTC) on which it holds.")] = None,
    until: Annotated[str | None, typer.Option(metavar="DAY", help="First day on which it no longer holds.")] = None,
    basis: Annotated[PriceBasis | None, typer.Option(help="What kind of price it is.")] = None,
    marginal: Annotated[str | None, typer.Option(help="What a free card saves per hour, in the same currency.")] = None,
    contract: Annotated[str, typer.Option(help="Contract or invoice that it stands in.")] = "",
    source: Annotated[str, typer.Option(help="Where it comes from.")] = "set by hand",
    date: Annotated[str | None, typer.Option(metavar="DAY", help="Date of the source; today unless given.")] = None,
) -> None:
    """Put a price into the price book, before all others; one for the very same cards and time is replaced."""
    session = session_of(context)
    amount, currency = _amount(price)
    fields: dict[str, Any] = {
        "card_model": None if card_model == "any" else card_model,
        "node_labels": dict(_label(text) for text in node_label or ()),
        "node": node,
        "cluster": cluster,
        "since": since,
        "until": until,
        "per_card_hour": amount,
        "marginal_per_card_hour": None if marginal is None else parse_decimal(marginal),
        "currency": currency if currency is not None else session.settings.prices.currency,
        "basis": basis,
        "contract": contract,
        "source": source,
        "date": date if date is not None else f"{_today(session):%Y-%m-%d}",
    }
    try:
        rule = PriceRule.model_validate(fields)
    except ValidationError as exc:
        raise Misconfigured(f"cannot set a price: {fault_words(exc, PriceRule)}") from exc
    path = _add(session, (rule,), replace_all=False)
    if card_model != "any" and find_model(card_model) is None:
        typer.echo(
            f"note: the catalogue knows no card model {card_model!r}; the price holds for that very name", err=True
        )
    typer.echo(f"{path}: {rule.per_card_hour} {rule.currency} per card hour of {card_model}, {_where(rule)}")


@app.command("import", epilog="Example: gputide cost prices import prices.csv")
def import_prices(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="CSV with a heading (card_model, price_per_card_hour …), or TOML.")],
    replace_all: Annotated[bool, typer.Option("--replace", help="Drop every price that the book holds now.")] = False,
) -> None:
    """Put the prices of a file into the price book, before those that it holds; nothing is changed if one is wrong."""
    session = session_of(context)
    text = read_book(file)
    if file.suffix.lower() == ".toml":
        entries = parse_price_book(text, name=str(file))
        if entries.rates or entries.budgets:
            raise Misconfigured(
                f"cannot import {file}: it holds rates or budgets; set prices.book={file} to use it as the book"
            )
        rules, without = entries.prices, 0
    else:
        imported = parse_price_csv(
            text, name=str(file), today=_today(session).date(), currency=session.settings.prices.currency
        )
        rules, without = imported.rules, imported.without_price
    if not rules:
        raise Misconfigured(f"cannot import {file}: it holds no price")
    path = _add(session, rules, replace_all=replace_all)
    left = f", {without} rows without a price left out" if without else ""
    typer.echo(f"{path}: {len(rules)} prices from {file}{left}")


def _add(session: Session, rules: Sequence[PriceRule], *, replace_all: bool) -> Path:
    folder = session.folder(create=True)
    path = book_path(session.settings, session.data_path)
    with writing(folder):
        text = read_book(path) if path.exists() else ""
        changed = with_prices(text, rules, replace_all=replace_all, name=str(path))
        parse_price_book(changed, name=str(path))
        write_durably(path, changed.encode())
    return path


def _rule_rows(book: PriceBook) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for rule in book.settings.rules:
        machine = rule.on_premises
        currency = rule.currency or book.currency
        where = _where(rule)
        if book.rate(currency) is None:
            where += f"; cannot be used: no rate from {currency} into {book.currency}"
        basis = rule.basis.value if rule.basis is not None else ("owned" if machine is not None else None)
        rows.append(
            {
                **rule.model_dump(mode="json", include=set(CSV_COLUMNS)),
                "node_labels": ";".join(f"{key}={value}" for key, value in rule.node_labels.items()) or None,
                "card_model": rule.card_model or "any",
                "applies_to": where,
                "price_per_card_hour": rule.per_card_hour if machine is None else card_hour_cost(machine).total,
                "marginal_per_card_hour": rule.marginal_per_card_hour,
                "currency": currency,
                "basis": basis,
                "contract": rule.contract or None,
            }
        )
    return rows


def _override_rows(settings: Settings) -> list[dict[str, Any]]:
    return [
        {
            "card_model": name,
            "applies_to": "every card",
            "price_per_card_hour": price,
            "currency": settings.prices.currency,
            "source": "setting prices.overrides",
        }
        for name, price in settings.prices.overrides.items()
    ]


def _catalogue_rows(book: PriceBook) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for model in catalogue():
        if model.price is None:
            rows.append({"card_model": model.name, "applies_to": "unknown, not free: set one"})
            continue
        price = model.price.per_card_hour
        where = "every card without another price"
        if book.rate(price.currency) is None:
            where = f"nothing: no rate from {price.currency} into {book.currency}"
        rows.append(
            {
                "card_model": model.name,
                "applies_to": where,
                "price_per_card_hour": price.amount,
                "currency": price.currency,
                "source": f"{model.price.basis}, {model.price.source}",
                "date": model.price.date,
            }
        )
    return rows


def _where(rule: PriceRule) -> str:
    """Which cards a rule holds for, in words."""
    parts = [
        *(f"{key}={value}" for key, value in rule.node_labels.items()),
        *([f"node {rule.node}"] if rule.node else []),
        *([f"cluster {rule.cluster}"] if rule.cluster else []),
        *([f"from {rule.since}"] if rule.since else []),
        *([f"before {rule.until}"] if rule.until else []),
    ]
    return ", ".join(parts) or "every card"


def _plain(value: object) -> object:
    """An amount as the number that JSON and YAML have."""
    return float(value) if isinstance(value, Decimal) else value


def _amount(text: str) -> tuple[Decimal, str | None]:
    """A price with or without its currency."""
    if any(letter.isalpha() for letter in text):
        money = parse_money(text)
        return money.amount, money.currency
    return parse_decimal(text), None


def _label(text: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not sign or not key:
        raise Misconfigured(f"cannot use --node-label {text!r}: expected KEY=VALUE, such as pool=reserved")
    return key, value


def _today(session: Session) -> datetime:
    return session.now_override if session.now_override is not None else datetime.now(UTC)
