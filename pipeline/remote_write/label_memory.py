"""What was read of labels a short while ago: new series come in families, whose labels are mostly those just read.

Kept by `series_table` beside what it knows of series, within bytes: what fills it up empties it, and it is read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

from pipeline.remote_write.intern_table import InternTable
from pipeline.remote_write.label_sets import pairs_of_region

BYTES_MAX = 8 << 20
_ENTRY_BYTES = 256
"""What an entry takes beside its bytes."""

_Value = TypeVar("_Value")
_Name = TypeVar("_Name")
_Target = TypeVar("_Target")


class LabelMemory(Generic[_Name, _Target]):
    """Four dictionaries with one bound; mutable: filled as labels are read.

    Attributes:
        names: what metrics' names mean.
        targets: what labels without the name speak of.
        texts: texts of symbols, by number.
        labels: pairs, by their bytes.
    """

    def __init__(self, bytes_max: int = BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self.names: dict[bytes, _Name | None] = {}
        self.targets: dict[tuple[Any, ...], _Target] = {}
        self.texts: dict[int, str] = {}
        self.labels: dict[bytes, tuple[str, str]] = {}

    def put(self, memory: dict[Any, _Value], key: Any, value: _Value, size: int) -> _Value:
        """Remembers one value of `size` bytes, key included; gives it back."""
        if self._bytes + size + _ENTRY_BYTES > self._bytes_max:
            self.clear()
        self._bytes += size + _ENTRY_BYTES
        memory[key] = value
        return value

    def plain_pairs(self, key: NDArray[Any], symbols: InternTable | None) -> Iterator[tuple[str, str]]:
        """The pairs of labels that are plain (`plain_labels`).

        Args:
            key: version 1's label fields, or numbers of version 2's symbols.
            symbols: version 2's symbols; None for version 1.
        """
        if symbols is None:
            region, at = key.tobytes(), 0
            while at < len(region):
                size, head = region[at + 1], 2
                if size > 127:
                    size, head = size & 127 | region[at + 2] << 7, 3
                label = region[at : at + head + size]
                at += head + size
                pair = self.labels.get(label)
                yield pair or self.put(self.labels, label, pairs_of_region(label)[0], 2 * len(label))
            return
        texts = []
        for symbol in key.tolist():
            text = self.texts.get(symbol)
            if text is None:
                text = symbols.bytes_of(symbol).decode()
                self.put(self.texts, symbol, text, len(text))
            texts.append(text)
        yield from zip(texts[::2], texts[1::2], strict=True)

    def clear(self) -> None:
        """Forgets everything."""
        for memory in (self.names, self.targets, self.texts, self.labels):
            memory.clear()
        self._bytes = 0
