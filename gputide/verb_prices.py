"""`gputide prices`: what a card hour costs, by model, with its source and date."""

from __future__ import annotations

import typer

from fleet.catalogue import catalogue
from gputide.options import FormatOption, OutputOption
from gputide.output import Answer, Format, Listing, print_answer
from gputide.session import session_of

app = typer.Typer(no_args_is_help=True, help="Prices of card hours. Example: gputide prices list")


@app.callback()
def _prices() -> None:
    """Prices of card hours."""


@app.command("list", epilog="Example: gputide prices list --format csv")
def list_prices(context: typer.Context, form: FormatOption = Format.TABLE, output: OutputOption = None) -> None:
    """List the price per card hour of every known card model, yours before the catalogue's."""
    settings = session_of(context).settings.prices
    rows: list[tuple[str, float | None, str, str, str]] = []
    for model in catalogue():
        own = settings.overrides.get(model.name)
        if own is not None:
            rows.append((model.name, float(own), settings.currency, "setting prices.overrides", ""))
        elif model.price is not None:
            price, source = model.price.per_card_hour, f"{model.price.basis}, {model.price.source}"
            rows.append((model.name, float(price.amount), price.currency, source, model.price.date))
        else:
            rows.append((model.name, None, "", "none that can be trusted: set prices.overrides", ""))
    columns = ("card_model", "price_per_card_hour", "currency", "source", "date")
    answer = Answer(
        document=[dict(zip(columns, row, strict=True)) for row in rows],
        listings=(Listing(title="Price per card hour", columns=columns, rows=rows),),
        footnotes=("set yours: --set 'prices.overrides={\"NVIDIA A10\": 0.9}' or [prices.overrides] in the TOML file",),
    )
    print_answer(answer, form=form, target=output)
