"""The same figures under the names, labels and units of dcgm-exporter and of HAMi's two exporters.

For dashboards and alerts that are there already. Names and factors are those of the alias table that the receiver reads
by, taken backwards (`exporter.compat.names`), and of `exporter.compat.figures` for what the receiver does not keep; a
name whose figure we don't have is not shown. Called by `exporter.exposition.rendering` where `--compat` asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

import numpy as np

from exporter.collector import Snapshot
from exporter.compat.figures import SHOWN_FIGURES
from exporter.compat.labels import CompatLabels, Subjects
from exporter.compat.names import ForeignName, NameSource, names_of
from exporter.families import Family, FamilyKind
from exporter.reader import Float64
from fleet.inventory import Grant
from fleet.series import Subject
from fleet.usage import CardKey, SliceKey


class Compat(StrEnum):
    """Whose names are shown beside ours; the value is the word of `--compat`."""

    DCGM = "dcgm"
    HAMI = "hami"


_SOURCES: Mapping[Compat, tuple[NameSource, ...]] = {
    Compat.DCGM: (NameSource.DCGM,),
    Compat.HAMI: (NameSource.HAMI, NameSource.HAMI_LEGACY),
}
_TITLES: Mapping[NameSource, str] = {
    NameSource.DCGM: "dcgm-exporter",
    NameSource.HAMI: "HAMi's exporters",
    NameSource.HAMI_LEGACY: "HAMi's exporters before v2.9",
}
_CARD_PARTS = ("node", "card", "card_model")
_SLICE_PARTS = ("namespace", "pod", "container", "card")
_GRANT_PARTS = ("namespace", "pod", "container", "node", "card")
_DECIMALS = 9
"""Digits after the point of a converted value: 0.29 × 100 is 29, not 28.999999999999996."""
_FACTS: Mapping[str, Callable[[Grant], float]] = {
    "framebuffer_granted_bytes": lambda grant: float(grant.framebuffer_granted_bytes),
    "compute_granted_ratio": lambda grant: grant.compute_granted_ratio,
}


class CompatFamilies:
    """Makes the families of one `--compat` word from the snapshots of one collector.

    Args:
        compat: whose names.
    """

    def __init__(self, compat: Compat) -> None:
        self._sources = tuple(_SourceFamilies(source) for source in _SOURCES[compat])

    def of(self, snapshot: Snapshot) -> tuple[Family, ...]:
        """The families of a snapshot under the other exporter's names.

        A card's series names a tenant under dcgm-exporter's names only where the card has exactly one: a series per
        tenant with the whole card's value would count the card several times.

        Args:
            snapshot: the snapshot.
        """
        return tuple(family for source in self._sources for family in source.of(snapshot))


class _SourceFamilies:
    def __init__(self, source: NameSource) -> None:
        self._source = source
        self._names = names_of(source)
        self._shown = tuple(figure for figure in SHOWN_FIGURES if figure.source is source)
        self._labels = CompatLabels(source)
        self._rows: dict[tuple[str, ...], tuple[tuple[object, ...], Subjects]] = {}

    def of(self, snapshot: Snapshot) -> list[Family]:
        self._labels.see(snapshot)
        found = []
        for name in self._names:
            subjects, values = self._stored(name, snapshot)
            if values is not None:
                found.append(self._family(name.name, subjects, values / name.factor))
        families = {family.name: family for family in snapshot.families}
        for figure in self._shown:
            family = families.get(figure.family)
            if family is not None:
                parts = _CARD_PARTS if "card_model" in family.label_names else _SLICE_PARTS
                found.append(self._family(figure.name, self._told(parts, family), family.values / figure.factor))
        return found

    def _stored(self, name: ForeignName, snapshot: Snapshot) -> tuple[Subjects, Float64 | None]:
        """Whom a name of the alias table speaks of here, and its values in our unit; None where we have none."""
        reading = snapshot.reading
        if name.measure is not None and name.subject is Subject.CARD:
            return self._subjects(_CARD_PARTS, reading.cards), reading.card_values.get(name.measure)
        if name.measure is not None:
            return self._subjects(_SLICE_PARTS, reading.slices), reading.slice_values.get(name.measure)
        fact = _FACTS.get(name.fact or "")
        granted = self._subjects(_GRANT_PARTS, snapshot.grants)
        if name.subject is not Subject.GRANT or fact is None or not snapshot.grants:
            return granted, None
        return granted, np.array([fact(grant) for grant in snapshot.grants], np.float64)

    def _subjects(
        self, parts: tuple[str, ...], things: tuple[CardKey, ...] | tuple[SliceKey, ...] | tuple[Grant, ...]
    ) -> Subjects:
        known = self._rows.get(parts)
        if known is not None and (known[0] is things or known[0] == things):
            return known[1]
        rows = tuple(tuple(str(getattr(thing, part)) for part in parts) for thing in things)
        subjects = Subjects(parts=parts, rows=rows)
        self._rows[parts] = things, subjects
        return subjects

    def _told(self, parts: tuple[str, ...], family: Family) -> Subjects:
        key = (family.name,)
        known = self._rows.get(key)
        if known is not None and known[0] is family.labels:
            return known[1]
        places = [family.label_names.index(part) for part in parts]
        rows = tuple(tuple(labels[place] for place in places) for labels in family.labels)
        subjects = Subjects(parts=parts, rows=rows)
        self._rows[key] = family.labels, subjects
        return subjects

    def _family(self, name: str, subjects: Subjects, values: Float64) -> Family:
        return Family(
            name=name,
            # In OpenMetrics a counter's name ends in `_total`, which these do not.
            kind=FamilyKind.GAUGE,
            help_text=f"As {_TITLES[self._source]} shows it, from gputide's reading.",
            label_names=self._labels.names(subjects),
            labels=self._labels.of(subjects),
            values=np.round(values, _DECIMALS),
        )
