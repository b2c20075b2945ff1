"""A node's view as one line of JSON: what an agent reports to relief, and how relief reads it.

Format `gputide.node-view/v1`: an object with `schema`, `node`, `at_seconds`, `trouble` (a digest of the cards that are
in trouble), `cards` (the fields of `CardView`) and `slices` (the fields of `SliceView`). What nobody knows is null. An
answer from an agent's address is believed only as far as this goes: sizes, names and ratios are checked, and every deed
is held against the API server first.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from enforcer.agent.node_view import CardView, Moment, Name, NodeView, SliceView, at_most
from fleet.errors import Corrupt
from fleet.settings.faults import fault_words

VIEW_BYTES_MAX = 4 << 20
"""Longest view that is read; a node of 16 cards and 1,000 slices has less than half a MiB."""
CARDS_MAX = 64
SLICES_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldView:
    """What one agent reported.

    Attributes:
        trouble: digest of the cards that it calls troubled.
    """

    node: str
    view: NodeView
    trouble: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Document:
    schema: Literal["gputide.node-view/v1"] = "gputide.node-view/v1"
    node: Name
    at_seconds: Moment
    trouble: Annotated[str, Field(max_length=64)]
    cards: Annotated[tuple[CardView, ...], AfterValidator(at_most(CARDS_MAX))]
    slices: Annotated[tuple[SliceView, ...], AfterValidator(at_most(SLICES_MAX))]


_DOCUMENT = TypeAdapter(_Document)


def view_text(told: ToldView) -> bytes:
    """A view as the format says."""
    view = told.view
    content = _Document(
        node=told.node, at_seconds=round(view.at_seconds, 3), trouble=told.trouble, cards=view.cards,
        slices=view.slices,
    )  # fmt: skip
    return json.dumps(asdict(content), separators=(",", ":")).encode()


def parse_view(text: bytes) -> ToldView:
    """Read a view.

    Raises:
        Corrupt: not the format; the message names the field and what was expected.
    """
    if len(text) > VIEW_BYTES_MAX:
        raise Corrupt(f"cannot read a node's view of {len(text)} bytes: expected at most {VIEW_BYTES_MAX}")
    try:
        found = _DOCUMENT.validate_json(text, strict=True)
    except ValidationError as exc:
        raise Corrupt(f"cannot read a node's view: {fault_words(exc)}") from exc
    view = NodeView(at_seconds=found.at_seconds, cards=found.cards, slices=found.slices)
    return ToldView(node=found.node, trouble=found.trouble, view=view)
