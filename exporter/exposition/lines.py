"""The parts of a line of text exposition: heads of families, names with labels, values.

Formats: prometheus/docs:content/docs/instrumenting/exposition_formats.md,
prometheus/OpenMetrics:specification/OpenMetrics.md (1.0.0). Called by `exporter.exposition.block`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from exporter.families import CataloguedFamily, Family, FamilyKind

_UNITS = ("ratio", "bytes", "seconds", "watts", "joules", "celsius", "hertz", "volts")
"""Units that a family's name may end in, as OpenMetrics' `# UNIT` names them."""

_OWN_PREFIX = "gputide_"
"""Names of other exporters say nothing about their unit: HAMi's `_ratio` is a percentage."""

_PLAIN_KINDS = {FamilyKind.INFO: FamilyKind.GAUGE, FamilyKind.FOREIGN_COUNTER: FamilyKind.COUNTER}
"""What the older format, which knows no infos and asks for no suffix, calls them."""

_INTEGER_MAX = 2.0**53
"""Up to here a float64 that is an integer is exactly that integer."""


def formatted(values: NDArray[np.float64]) -> Iterator[tuple[NDArray[np.intp], list[bytes]]]:
    """The shortest decimal texts that read back as exactly these values.

    Args:
        values: finite, shape `(samples,)`.

    Yields:
        Rows of `values` and their texts: first the whole numbers, which have neither point nor exponent below 2**53,
        then the rest.
    """
    is_whole = (values == np.rint(values)) & (np.abs(values) < _INTEGER_MAX)
    for rows, numbers in (
        (np.flatnonzero(is_whole), values[is_whole].astype(np.int64)),
        (np.flatnonzero(~is_whole), values[~is_whole]),
    ):
        if len(rows):
            # A list's text is made in one call, which halves the cost of a call per value.
            yield rows, repr(numbers.tolist())[1:-1].encode().split(b", ")


def head(family: Family | CataloguedFamily, *, is_openmetrics: bool) -> bytes:
    """The lines before the samples, a line feed before each: help, type, and in OpenMetrics the unit.

    OpenMetrics names a family without the suffix of counters and infos; the older format doesn't know infos.
    """
    help_text = family.help_text.replace("\\", "\\\\").replace("\n", "\\n")
    if not is_openmetrics:
        kind = _PLAIN_KINDS.get(family.kind, family.kind)
        return f"\n# HELP {family.name} {help_text}\n# TYPE {family.name} {kind.value}".encode()
    name = family.name
    if family.kind is FamilyKind.COUNTER:
        name = name.removesuffix("_total")
    elif family.kind is FamilyKind.INFO:
        name = name.removesuffix("_info")
    escaped_help = help_text.replace('"', '\\"')
    lines = f"\n# HELP {name} {escaped_help}\n# TYPE {name} {family.kind.value}"
    unit = name.rpartition("_")[2]
    if name.startswith(_OWN_PREFIX) and unit in _UNITS and not name.endswith(f"_per_{unit}"):
        lines += f"\n# UNIT {name} {unit}"
    return lines.encode()


def prefix(name: str, label_names: tuple[str, ...], labels: tuple[str, ...]) -> bytes:
    """What stands before the value: line feed, name, labels without the empty ones, space.

    Args:
        labels: their values; text that can't be encoded, such as bytes that weren't UTF-8, costs itself and not the
            whole scrape.
    """
    pairs = ",".join(f'{label}="{_escaped(value)}"' for label, value in zip(label_names, labels, strict=True) if value)
    return (f"\n{name}{{{pairs}}} " if pairs else f"\n{name} ").encode("utf-8", "replace")


def _escaped(value: str) -> str:
    """A label value as it stands between quotes: backslash, line feed and quote are escaped."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
