"""`plan make --what-if`: settings or cards as they are not, and what would follow, beside the plan as things are.

The grammar, one assumption per option:

- `NAME=VALUE` a setting, such as `risk.preset=low`;
- `cards.MODEL=OTHER` every card of a model were one of another;
- `cards+MODEL=N` there were N cards of a model more;
- `cards-MODEL=N` there were N fewer;
- `nodes-NAME` a node were gone, with its cards.

A model is written as the driver prints it, with hyphens for blanks if you like. What comes of it is no plan: it has no
id and a schema of its own, nothing keeps it, and no file of it is taken for one. Called by `gputide.verbs.plan.make`.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from dashboards.words.advice import refusal_words
from fleet.catalogue import CardModel, catalogue, find_model
from fleet.decisions import Plan, Refusal
from fleet.documents import document
from fleet.errors import Misconfigured
from fleet.inventory import Card, CardId, Inventory
from fleet.money.prices import Prices
from fleet.units import Money, format_count, format_money_short, format_percent
from fleet.words import Language
from gputide.answers.plan import plan_answer, saving_text
from gputide.output import Answer, Listing
from recommender.hypothetical_cards import AddedCards, CardChange, Hypothesis, RemovedCards, RemovedNode, SwappedModel

WHAT_IF_SCHEMA = "gputide.what_if/v1"
CARDS_MAX = 100_000
"""Most cards that one assumption may add or take away."""
_CARDS = "cards"
_NODES = "nodes-"
_NAME_LENGTH_MAX = 253
_SHOWN_MAX = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """What were otherwise.

    Attributes:
        changes: changes of the cards, in their order.
    """

    texts: tuple[str, ...]
    settings: tuple[str, ...]
    changes: tuple[CardChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A plan, and the cards that it was made for.

    Attributes:
        known: cards by id, also those that were taken away while a pod holds them.
    """

    plan: Plan
    cards: tuple[Card, ...]
    known: dict[CardId, Card]
    prices: Prices


def assumptions(texts: Sequence[str], inventory: Callable[[], Inventory]) -> Assumptions:
    """Reads what stands behind `--what-if`.

    Args:
        inventory: the cluster, asked for only where a node is named.

    Raises:
        Misconfigured: no such grammar, card model or node.
    """
    settings: list[str] = []
    changes: list[CardChange] = []
    for text in texts:
        if text.startswith(_NODES):
            changes.append(_node_change(text, inventory()))
        elif text[: len(_CARDS)] == _CARDS and text[len(_CARDS) : len(_CARDS) + 1] in {".", "+", "-"}:
            changes.append(_card_change(text))
        else:
            settings.append(text)
    return Assumptions(texts=tuple(texts), settings=tuple(settings), changes=tuple(changes))


def _card_change(text: str) -> CardChange:
    sign = text[len(_CARDS)]
    name, equals, value = text[len(_CARDS) + 1 :].partition("=")
    if not equals or not name.strip() or not value.strip():
        raise Misconfigured(
            f"cannot use --what-if {_shown(text)}: expected cards.MODEL=OTHER, cards+MODEL=N, cards-MODEL=N, "
            "nodes-NAME, or a setting as NAME=VALUE"
        )
    model = _model(name, text)
    if sign == ".":
        return SwappedModel(source=model, target=_model(value, text))
    count = value.strip()
    if not (count.isascii() and count.isdecimal() and len(count) <= len(str(CARDS_MAX))) or not (
        1 <= int(count) <= CARDS_MAX
    ):
        raise Misconfigured(
            f"cannot use --what-if {_shown(text)}: {_shown(count)} is no number of cards from 1 to {CARDS_MAX}"
        )
    return (AddedCards if sign == "+" else RemovedCards)(model=model, count=int(count))


def _model(name: str, text: str) -> CardModel:
    found = find_model(name)
    if found is not None:
        return found
    raise Misconfigured(
        f"cannot use --what-if {_shown(text)}: no card model {_shown(name.strip())} is known; did you mean "
        f"{' or '.join(repr(near.replace(' ', '-')) for near in _near(name))}?"
    )


def _near(name: str) -> list[str]:
    """Card models that somebody may have meant: those that have the words in their name, else the most alike."""
    spelled = {_plain(spelling): model.name for model in catalogue() for spelling in (model.name, *model.aliases)}
    wanted = _plain(name[:_NAME_LENGTH_MAX])
    holding = dict.fromkeys(model for spelling, model in spelled.items() if wanted and wanted in spelling)
    alike = [spelled[near] for near in difflib.get_close_matches(wanted, spelled, n=1, cutoff=0.0)]
    return list(holding)[:_SHOWN_MAX] or alike


def _plain(name: str) -> str:
    return name.casefold().replace("-", " ").strip()


def _node_change(text: str, inventory: Inventory) -> RemovedNode:
    name = text.removeprefix(_NODES)
    names = sorted({card.node for card in inventory.cards} | {node.node for node in inventory.nodes})
    if name in names:
        return RemovedNode(node=name)
    nearest = difflib.get_close_matches(name[:_NAME_LENGTH_MAX], names, n=1, cutoff=0.0)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise Misconfigured(
        f"cannot use --what-if {_shown(text)}: cluster {inventory.cluster} has no node {_shown(name)}{hint}"
    )


def _shown(text: str) -> str:
    """Text of the user for a message: short, and without characters that a terminal acts on."""
    return repr(text if len(text) <= _NAME_LENGTH_MAX else text[:_NAME_LENGTH_MAX] + "…")


def what_if_answer(
    assumed: Assumptions, present: Side, supposed: Side, hypothesis: Hypothesis | None, notes: Sequence[str]
) -> Answer:
    """Both plans side by side.

    Args:
        hypothesis: the cards that were otherwise; None where only settings were.
        notes: further notes, first below.
    """
    told = plan_answer(supposed.plan, notes)
    refused = () if hypothesis is None else hypothesis.refused
    models = _by_model(present, supposed)
    content: dict[str, Any] = {
        "schema": WHAT_IF_SCHEMA,
        "is_hypothetical": True,
        "what_if": list(assumed.texts),
        "compared": {"present": _figures(present), "what_if": _figures(supposed)},
        "card_models": models,
        "stays_on_its_cards": document(refused),
        **{key: value for key, value in told.document.items() if key not in {"schema", "plan_id", "expires_at"}},
    }
    short = sum(-row["what_if_free"] for row in models if row["what_if_free"] < 0)
    text = f"{format_count(short)} cards too few even after the plan: the pods on them would have no card"
    too_few = (text,) if short else ()
    return Answer(
        document=content,
        headline=(
            f"Hypothetical, nothing was kept: what if {' and '.join(assumed.texts)}",
            *_said(hypothesis),
            *too_few,
        ),
        listings=(
            Listing(
                title="As it is, and what if",
                columns=("", "as it is", "what if"),
                rows=_rows(present, supposed),
                caption="A cost counts the cards whose price is known.",
            ),
            Listing(
                title="Card models",
                columns=("model", "there", "needed after the plan", "what if: there", "needed after the plan", "free"),
                rows=[tuple(row.values()) for row in models],
            ),
            *([_staying(refused)] if refused else []),
            *told.listings,
        ),
        footnotes=(
            *(note for note in told.footnotes if not note.startswith("next:")),
            "this is no plan: it can't be approved or applied; `gputide plan make` makes one of the cards as they are",
        ),
    )


def _said(hypothesis: Hypothesis | None) -> tuple[str, ...]:
    if hypothesis is None:
        return ()
    said = []
    if hypothesis.swapped:
        said.append(f"{format_count(len(hypothesis.swapped))} cards became another model")
    if hypothesis.added:
        said.append(f"{format_count(len(hypothesis.added))} cards came")
    if hypothesis.gone:
        said.append(f"{format_count(len(hypothesis.gone))} cards are gone")
    if hypothesis.refused:
        said.append(f"would not fit and keep their cards: {format_count(len(hypothesis.refused))} of the workloads")
    return ("; ".join(said),) if said else ()


def _needed(side: Side) -> list[Card]:
    return [side.known[card.card] for card in side.plan.placement if card.card in side.known]


def _cost(cards: Sequence[Card], prices: Prices) -> Decimal | None:
    """Price of a week of cards, as far as prices are known; None where none is."""
    weeks = [week for card in cards if (week := prices.per_week(card)) is not None]
    return sum(weeks, Decimal(0)).quantize(Decimal("0.01")) if weeks or not cards else None


def _figures(side: Side) -> dict[str, Any]:
    totals = side.plan.totals
    return {
        "cards": len(side.cards),
        "cards_held": totals.cards_before,
        "cards_needed": len(_needed(side)),
        "cards_freed": totals.cards_freed,
        "spare_cards": totals.spare_cards,
        "cost_per_week": document(_cost(side.cards, side.prices)),
        "cost_of_needed_per_week": document(_cost(_needed(side), side.prices)),
        "saving_per_week": document(totals.saving_per_week),
        "predicted_violation_ratio": totals.predicted_violation_ratio,
        "low_priority_gpu_hours_per_week": totals.low_priority_gpu_hours_per_week,
        "moves": totals.moves,
        "refused": len({item.workload for item in side.plan.refused}),
        "currency": side.plan.currency,
    }


def _rows(present: Side, supposed: Side) -> list[tuple[str, str, str]]:
    def row(title: str, told: Callable[[Side], str]) -> tuple[str, str, str]:
        return title, told(present), told(supposed)

    return [
        row("cards there", lambda side: format_count(len(side.cards))),
        row("cards that pods hold", lambda side: format_count(side.plan.totals.cards_before)),
        row("cards needed after the plan", lambda side: format_count(len(_needed(side)))),
        row("all cards, a week", lambda side: _money(_cost(side.cards, side.prices), side.plan.currency)),
        row("cards needed, a week", lambda side: _money(_cost(_needed(side), side.prices), side.plan.currency)),
        row("the plan saves, a week", lambda side: saving_text(side.plan.totals.saving_per_week, side.plan.currency)),
        row("predicted violation", lambda side: format_percent(side.plan.totals.predicted_violation_ratio, digits=2)),
        row(
            "low-priority GPU hours, a week",
            lambda side: format_count(round(side.plan.totals.low_priority_gpu_hours_per_week)),
        ),
        row("pods moved", lambda side: format_count(side.plan.totals.moves)),
        row("workloads refused something", lambda side: format_count(len({r.workload for r in side.plan.refused}))),
    ]


def _money(amount: Decimal | None, currency: str) -> str:
    return "no price" if amount is None else format_money_short(Money(amount=amount, currency=currency))


def _by_model(present: Side, supposed: Side) -> list[dict[str, Any]]:
    """Cards there and needed of every model; `what_if_free` below 0 says how many are too few."""
    there, then = (Counter(card.card_model for card in side.cards) for side in (present, supposed))
    needed, needed_then = (Counter(card.card_model for card in _needed(side)) for side in (present, supposed))
    return [
        {
            "card_model": str(model),
            "present": there[model],
            "present_needed": needed[model],
            "what_if": then[model],
            "what_if_needed": needed_then[model],
            "what_if_free": then[model] - needed_then[model],
        }
        for model in sorted({*there, *then, *needed, *needed_then})
    ]


def _staying(refused: Sequence[Refusal]) -> Listing:
    return Listing(
        title="Would not fit, and keep their cards",
        columns=("workload", "reason", "detail"),
        rows=[(item.workload, item.reason, refusal_words(item, Language.EN)) for item in refused],
    )
