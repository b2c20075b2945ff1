"""Label sets as the two versions of remote write carry them, and the rules that they must satisfy.

Called by `series_table`, once per series never seen. Rules: prometheus.io/docs/specs/prw/remote_write_spec_2_0
("Labels"); version 1.0 senders that don't sort are let through, as Prometheus itself does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fleet.errors import Corrupt
from pipeline.remote_write.protobuf_fields import read_field

_LENGTH = 2
"""Wire type of fields with a length: all fields of labels."""
Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelLimits:
    """What one series may cost.

    Attributes:
        labels_max: most labels (`receiver.labels_max`).
        label_bytes_max: longest name or value (`receiver.label_bytes_max`).
    """

    labels_max: int
    label_bytes_max: int

    def hold(self, pairs: Pairs) -> bool:
        """Whether a label set stays within them."""
        return len(pairs) <= self.labels_max and all(
            len(text.encode()) <= self.label_bytes_max for pair in pairs for text in pair
        )


def pairs_of_region(region: bytes) -> Pairs:
    """The label pairs of version 1's label fields (`Label` messages one after another).

    Raises:
        Corrupt: the bytes are no label fields, or no UTF-8.
    """
    pairs = []
    at = 0
    while at < len(region):
        tag, inner, at = read_field(region, at)
        if tag & 7 != _LENGTH:
            raise Corrupt(f"cannot read labels: field {tag >> 3} has wire type {tag & 7} instead of {_LENGTH}")
        name = value = b""
        while inner < at:
            tag, start, inner = read_field(region, inner, at)
            if tag & 7 != _LENGTH:
                raise Corrupt(f"cannot read labels: field {tag >> 3} has wire type {tag & 7} instead of {_LENGTH}")
            if tag >> 3 == 1:
                name = region[start:inner]
            elif tag >> 3 == 2:
                value = region[start:inner]
        pairs.append((_utf8(name), _utf8(value)))
    return tuple(pairs)


def pairs_of_symbols(symbols: Sequence[bytes]) -> Pairs:
    """The label pairs of version 2: names and values in turn.

    Raises:
        Corrupt: an odd number of references, or a symbol that is no UTF-8.
    """
    if len(symbols) % 2:
        raise Corrupt(f"cannot read labels: {len(symbols)} references, an odd number")
    texts = [_utf8(symbol) for symbol in symbols]
    return tuple(zip(texts[::2], texts[1::2], strict=True))


def fault_of(pairs: Pairs, *, must_be_sorted: bool) -> str | None:
    """Which rule a label set breaks, in words; None where it breaks none."""
    names = [name for name, _ in pairs]
    if not pairs:
        return "a series has no labels"
    if "" in names:
        return "a series has a label without a name"
    if not dict(pairs).get("__name__"):
        return "a series has no __name__"
    if len(set(names)) != len(names):
        return f"a series repeats label {next(name for name in names if names.count(name) > 1)!r}"
    if must_be_sorted and any(left > right for left, right in pairwise(name.encode() for name in names)):
        return f"the labels of series {dict(pairs)['__name__']!r} are not sorted by name"
    return None


def _utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        raise Corrupt(f"cannot read labels: {data[:64]!r} is not UTF-8") from exc
