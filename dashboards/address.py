"""The address of a page carries all of its state: what is shown can be sent to somebody else, and reloaded.

Called by every page. What stands in an address comes from anybody: it is compared and shown as text, never run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl, quote, urlencode

RANGES: Mapping[str, int | None] = {"24h": 24, "7d": 168, "28d": 672, "all": None}
"""Time ranges that the address may name, hours; None is all there is."""

RANGE_DEFAULT = "7d"
_VALUE_LENGTH_MAX = 512
_FIELDS_MAX = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the reader is.

    Attributes:
        path: path, `/` for the fleet.
        query: pairs in the order of the address.
    """

    path: str
    query: tuple[tuple[str, str], ...]

    def get(self, name: str) -> str | None:
        """A value of the query; None where it is absent or empty."""
        return next((value for key, value in self.query if key == name and value), None)

    @property
    def time_range(self) -> str:
        """A key of `RANGES`."""
        chosen = self.get("range")
        return chosen if chosen is not None and chosen in RANGES else RANGE_DEFAULT

    def href(self, path: str | None = None, **changes: str | None) -> str:
        """The address with some values changed; None takes a value out.

        Another path keeps cluster, time range and language alone: the rest belongs to the page that was left.
        """
        kept = (
            self.query if path in (None, self.path) else [p for p in self.query if p[0] in ("cluster", "range", "lang")]
        )
        pairs = [(key, value) for key, value in kept if key not in changes]
        pairs += [(key, value) for key, value in changes.items() if value is not None]
        return (path or self.path) + search_text(pairs)


def read_address(path: str | None, search: str | None) -> Address:
    """The address from what the browser says; what is too long or too much is left out."""
    pairs = parse_qsl((search or "").removeprefix("?"), max_num_fields=None)[:_FIELDS_MAX]
    return Address(path=path or "/", query=tuple((k, v) for k, v in pairs if len(v) <= _VALUE_LENGTH_MAX))


def search_text(pairs: list[tuple[str, str]] | tuple[tuple[str, str], ...]) -> str:
    """Pairs as the query part of an address, with its question mark; empty for none."""
    return "?" + urlencode(pairs, quote_via=quote, safe="/,", errors="replace") if pairs else ""
