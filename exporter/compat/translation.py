"""The same figures under the names, labels and units of dcgm-exporter and of HAMi's two exporters.

For dashboards and alerts that are there already. Names and factors are those of the alias table that the receiver reads
by, taken backwards (`exporter.compat.names`), and of `exporter.compat.figures` for what the receiver does not keep; a
name whose figure we don't have is not shown. Called by `exporter.exposition.rendering` where `--compat` asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from exporter.collector import Snapshot
from exporter.compat.figures import GRANT_SUMS, SHOWN_FIGURES, Of, ShownFigure, are_grants_known
from exporter.compat.labels import CompatLabels, Labels, Subjects
from exporter.compat.names import ForeignName, NameSource, names_of
from exporter.families import Family, FamilyKind
from exporter.reader import Float64
from fleet.inventory import Card, Grant
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
_PARTS: Mapping[Of, tuple[str, ...]] = {
    Of.CARD: _CARD_PARTS,
    Of.MIG: (*_CARD_PARTS, "mig_profile", "gpu_instance"),
    Of.SLICE: _SLICE_PARTS,
    Of.SLICE_MIG: (*_SLICE_PARTS, "mig", "mig_profile", "gpu_instance", "compute_instance"),
    Of.CONTAINER: ("namespace", "pod", "container"),
}
_DECIMALS = 9
"""Digits after the point of a converted value: 0.29 × 100 is 29, not 28.999999999999996."""
_FACTS: Mapping[str, Callable[[Grant], float]] = {
    "framebuffer_granted_bytes": lambda grant: float(grant.framebuffer_granted_bytes),
    "compute_granted_ratio": lambda grant: grant.compute_granted_ratio,
}


class CompatFamilies:
    """Makes the families of one `--compat` word from the snapshots of one collector."""

    def __init__(self, compat: Compat) -> None:
        self._sources = tuple(_SourceFamilies(source) for source in _SOURCES[compat])

    def of(self, snapshot: Snapshot) -> tuple[Family, ...]:
        """The families of a snapshot under the other exporter's names.

        A card's series names a tenant under dcgm-exporter's names only where the card has exactly one: a series per
        tenant with the whole card's value would count the card several times.
        """
        return tuple(family for source in self._sources for family in source.of(snapshot))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """Whom the series of one of our families speak of, in parts that another exporter has labels for.

    Attributes:
        subjects: whom, each once.
        rows: the first series of each among the family's; None where that is all of them.
    """

    subjects: Subjects
    rows: NDArray[np.intp] | None


class _SourceFamilies:
    def __init__(self, source: NameSource) -> None:
        self._source = source
        self._names = names_of(source)
        self._shown = tuple(figure for figure in SHOWN_FIGURES if figure.source is source)
        self._labels = CompatLabels(source)
        self._rows: dict[tuple[str, ...], tuple[tuple[object, ...], Subjects]] = {}
        self._told: dict[tuple[str, Of], tuple[tuple[Labels, ...], _Told]] = {}

    def of(self, snapshot: Snapshot) -> list[Family]:
        self._labels.see(snapshot)
        found = []
        for name in self._names:
            subjects, values = self._stored(name, snapshot)
            if values is not None:
                found.append(self._family(name.name, subjects, values / name.factor))
        families = {family.name: family for family in snapshot.families}
        for figure in self._shown:
            shown = self._shown_as(figure, snapshot, families.get(figure.family))
            if shown is not None:
                found.append(shown)
        if self._source in GRANT_SUMS and are_grants_known(families):
            cards = self._subjects(_CARD_PARTS, tuple(snapshot.cards))
            found += [
                self._family(one.name, cards, one.of(snapshot.cards, snapshot.grants))
                for one in GRANT_SUMS[self._source]
            ]
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

    def _shown_as(self, figure: ShownFigure, snapshot: Snapshot, family: Family | None) -> Family | None:
        """A name that is not of the alias table; None where we have no such figure."""
        if figure.measure is not None:
            values = snapshot.reading.slice_values.get(figure.measure)
            subjects = self._subjects(_SLICE_PARTS, snapshot.reading.slices)
            return None if values is None else self._family(figure.name, subjects, values / figure.factor)
        if family is None:
            return None
        told = self._subjects_told(figure.of, family)
        values = family.values if told.rows is None else family.values[told.rows]
        subjects = replace(told.subjects, constant=figure.constant)
        return self._family(figure.name, subjects, values / figure.factor, is_counter=figure.is_counter)

    def _subjects(
        self, parts: Labels, things: tuple[CardKey, ...] | tuple[SliceKey, ...] | tuple[Grant, ...] | tuple[Card, ...]
    ) -> Subjects:
        key = (*parts, type(things[0]).__name__ if things else "")
        known = self._rows.get(key)
        if known is not None and (known[0] is things or known[0] == things):
            return known[1]
        rows = tuple(tuple(str(getattr(thing, part)) for part in parts) for thing in things)
        subjects = Subjects(parts=parts, rows=rows)
        self._rows[key] = things, subjects
        return subjects

    def _subjects_told(self, of: Of, family: Family) -> _Told:
        key = (family.name, of)
        known = self._told.get(key)
        if known is not None and known[0] is family.labels:
            return known[1]
        # An older name may have no label for a part that ours distinguish.
        parts = tuple(part for part in _PARTS[of] if self._labels.has(part))
        places = [family.label_names.index(part) for part in parts]
        first: dict[Labels, int] = {}
        for number, labels in enumerate(family.labels):
            first.setdefault(tuple(labels[place] for place in places), number)
        is_whole = len(first) == len(family.labels)
        rows = tuple(first)
        # Most families are of the same cards; their labels are made once for all of them.
        rows = next((one.subjects.rows for _, one in self._told.values() if one.subjects.rows == rows), rows)
        told = _Told(
            subjects=Subjects(parts=parts, rows=rows),
            rows=None if is_whole else np.fromiter(first.values(), np.intp, len(first)),
        )
        self._told[key] = family.labels, told
        return told

    def _family(self, name: str, subjects: Subjects, values: Float64, *, is_counter: bool = False) -> Family:
        kind = FamilyKind.GAUGE
        if is_counter:
            kind = FamilyKind.COUNTER if name.endswith("_total") else FamilyKind.FOREIGN_COUNTER
        return Family(
            name=name,
            kind=kind,
            help_text=f"As {_TITLES[self._source]} shows it, from gputide's reading.",
            label_names=self._labels.names(subjects),
            labels=self._labels.of(subjects),
            values=np.round(values, _DECIMALS),
        )
