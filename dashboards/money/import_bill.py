"""Files of a provider's bill in, what they say of known nodes out: per node, day and kind of charge, exact.

One import takes all files of its billing periods: it replaces what was kept of the same scopes and periods
(`dashboards.money.kept_bill`). Called by `gputide cost bill import`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from hashlib import blake2b
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dashboards.money.focus_rows import FocusRows, read_rows
from fleet.errors import Corrupt
from fleet.money.bill import EXACT, BilledDay, BilledNames, BillPart, BillScope, ChargeKind, NodeName

DAY_SECONDS_MAX = 90_000
"""The longest charge period that counts as one day: 25 hours, when clocks go back."""
PARTS_MAX = 10_000
"""Scopes and billing periods of one import."""
INVOICES_MAX = 1_000
"""Invoices of one of them."""
_DAY = timedelta(days=1)
_SORTED_ARRAYS_MAX = 16
_PART_COLUMNS = ["issuer", "BillingAccountId", "SubAccountId", "BillingPeriodStart", "BillingCurrency"]


class SameRows(StrEnum):
    """What to do with rows about known nodes that equal another in every column."""

    REFUSE = "refuse"
    DROP = "drop"
    KEEP = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBill:
    """What files say.

    Attributes:
        rows: rows of the files.
        node_rows: those about known nodes.
        same_rows: those of them that equal another in every column and cost something.
    """

    parts: tuple[BillPart, ...]
    rows: int
    node_rows: int
    same_rows: int


@dataclass(slots=True, kw_only=True)
class _Draft:
    """A part that grows; mutable: row by row."""

    currency: str
    used: set[date] = field(default_factory=set)
    first: datetime | None = None
    last: datetime | None = None
    invoices: set[str] = field(default_factory=set)
    sums: dict[tuple[NodeName, date, ChargeKind], tuple[Decimal, Decimal]] = field(default_factory=dict)


_PartKey = tuple[BillScope, date]


def import_files(paths: Sequence[Path], names: BilledNames, *, same_rows: SameRows = SameRows.REFUSE) -> ReadBill:
    """Read files of a bill.

    Raises:
        Corrupt: a file or a row can't be read; see `read_rows`. Also where usage of a node is billed by more than a
            day, where one scope is billed in two currencies, or where rows are the same and that is refused.
    """
    drafts: dict[_PartKey, _Draft] = {}
    seen = _SeenRows()
    rows = node_rows = same = 0
    for path in paths:
        for found in read_rows(path):
            rows += found.texts.num_rows
            texts = _with_issuer(found.texts)
            _cover(found, texts, drafts)
            own = _NodeRows.of(found, texts, names)
            node_rows += len(own.nodes)
            is_same = seen.add(own.digests())
            costs = np.array([billed != "0" or effective != "0" for billed, effective in own.amounts()], bool)
            again = np.flatnonzero(is_same & costs)
            same += len(again)
            if len(again) and same_rows is SameRows.REFUSE:
                row = found.first_row + int(own.places[again[0]])
                resource = str(own.rows[int(again[0])]["ResourceId"])[:80]
                raise Corrupt(
                    f"cannot import {found.file}: row {row}: ResourceId={resource!r}: the "
                    "same as an earlier row in every column; --same-rows drop counts such rows once, keep counts each"
                )
            _add(found, own, drafts, is_same & costs if same_rows is SameRows.DROP else np.zeros(len(is_same), bool))
    return ReadBill(parts=tuple(_parts(drafts)), rows=rows, node_rows=node_rows, same_rows=same)


def _with_issuer(texts: pa.Table) -> pa.Table:
    issuer, provider = texts.column("InvoiceIssuerName"), texts.column("ProviderName")
    return texts.append_column("issuer", pc.if_else(pc.not_equal(issuer, ""), issuer, provider))


def _cover(found: FocusRows, texts: pa.Table, drafts: dict[_PartKey, _Draft]) -> None:
    """Note what scopes and days the rows speak of, whatever node they are about."""
    start, end = texts.column("ChargePeriodStart"), texts.column("ChargePeriodEnd")
    is_used = pc.and_(
        pc.equal(texts.column("ChargeCategory"), "Usage"),
        pc.less_equal(pc.cast(pc.subtract(end, start), pa.int64()), DAY_SECONDS_MAX),
    )
    none = pa.scalar(None, start.type)
    table = texts.select([*_PART_COLUMNS, "InvoiceId"])
    table = table.append_column("start", pc.if_else(is_used, start, none))
    table = table.append_column("end", pc.if_else(is_used, end, none))
    table = table.append_column("day", pc.cast(table.column("start"), pa.date32()))
    grouped = table.group_by(_PART_COLUMNS).aggregate(
        [("start", "min"), ("end", "max"), ("day", "distinct"), ("InvoiceId", "distinct")]
    )
    for row in grouped.to_pylist():
        key = _part_key(row)
        draft = drafts.setdefault(key, _Draft(currency=row["BillingCurrency"]))
        if draft.currency != row["BillingCurrency"]:
            is_other = pc.and_(
                pc.equal(texts.column("BillingCurrency"), row["BillingCurrency"]),
                pc.equal(texts.column("BillingAccountId"), key[0].account),
            )
            raise Corrupt(
                f"cannot import {found.file}: row {found.first_row + pc.index(is_other, True).as_py()}: "
                f"BillingCurrency={row['BillingCurrency']!r}: account {key[0].account[:80]!r} is billed in "
                f"{draft.currency} in the period from {key[1]}; a bill has one currency"
            )
        draft.used |= {day for day in row["day_distinct"] if day is not None}
        draft.first = min((moment for moment in (draft.first, row["start_min"]) if moment is not None), default=None)
        draft.last = max((moment for moment in (draft.last, row["end_max"]) if moment is not None), default=None)
        draft.invoices |= {invoice for invoice in row["InvoiceId_distinct"] if invoice}
        if len(draft.invoices) > INVOICES_MAX:
            raise Corrupt(f"cannot import {found.file}: more than {INVOICES_MAX} invoices of one account and period")
        if len(drafts) > PARTS_MAX:
            raise Corrupt(f"cannot import {found.file}: more than {PARTS_MAX} accounts and billing periods at once")


def _part_key(row: dict[str, object]) -> _PartKey:
    scope = BillScope(str(row["issuer"]), str(row["BillingAccountId"]), str(row["SubAccountId"]))
    start = row["BillingPeriodStart"]
    assert isinstance(start, datetime)
    return scope, start.date()


@dataclass(frozen=True, slots=True, kw_only=True)
class _NodeRows:
    """Rows of a batch that are about known nodes.

    Attributes:
        places: place of each in the batch.
        rows: what counts of each, by column.
        whole: all columns of them.
    """

    places: NDArray[np.int64]
    nodes: list[NodeName]
    rows: list[dict[str, object]]
    whole: pa.Table

    @staticmethod
    def of(found: FocusRows, texts: pa.Table, names: BilledNames) -> _NodeRows:
        """Those of a batch."""
        pairs = texts.select(["ResourceId", "ResourceName"]).group_by(["ResourceId", "ResourceName"]).aggregate([])
        known: dict[tuple[str, str], NodeName] = {}
        for resource_id, resource_name in zip(*(pairs.column(at).to_pylist() for at in range(2)), strict=True):
            node = names.node_of(resource_id, resource_name)
            if node is not None:
                known[resource_id, resource_name] = node
        if not known:
            return _NodeRows(places=np.empty(0, np.int64), nodes=[], rows=[], whole=found.whole.slice(0, 0))
        ids, named = texts.column("ResourceId").to_pylist(), texts.column("ResourceName").to_pylist()
        nodes = [known.get(pair) for pair in zip(ids, named, strict=True)]
        places = np.array([place for place, node in enumerate(nodes) if node is not None], np.int64)
        return _NodeRows(
            places=places,
            nodes=[node for node in nodes if node is not None],
            rows=texts.take(places).to_pylist(),
            whole=found.whole.take(places),
        )

    def digests(self) -> NDArray[np.uint64]:
        """64 bits of each row's whole text: two of ten million rows that differ agree once in 300,000 bills."""
        return np.array(
            [
                int.from_bytes(blake2b(repr(row).encode(), digest_size=8).digest(), "little")
                for row in zip(*(column.to_pylist() for column in self.whole.columns), strict=True)
            ],
            np.uint64,
        )

    def amounts(self) -> Iterator[tuple[str, str]]:
        """Billed and effective cost of each, "0" for nothing."""
        for row in self.rows:
            billed, effective = (str(row[name]) for name in ("BilledCost", "EffectiveCost"))
            yield "0" if not Decimal(billed) else billed, "0" if not Decimal(effective) else effective


class _SeenRows:
    """Digests of rows; mutable: it grows by eight bytes a row."""

    def __init__(self) -> None:
        self._sorted: list[NDArray[np.uint64]] = []

    def add(self, digests: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether each was there before, among these too; then they are."""
        order = np.argsort(digests, kind="stable")
        ordered = digests[order]
        is_again = np.zeros(len(digests), bool)
        is_again[order[1:]] = ordered[1:] == ordered[:-1]
        for known in self._sorted:
            at = np.minimum(np.searchsorted(known, digests), len(known) - 1)
            is_again |= known[at] == digests
        if len(digests):
            self._sorted.append(ordered)
        if len(self._sorted) > _SORTED_ARRAYS_MAX:
            self._sorted = [np.sort(np.concatenate(self._sorted))]
        return is_again


def _add(found: FocusRows, own: _NodeRows, drafts: dict[_PartKey, _Draft], is_left_out: NDArray[np.bool_]) -> None:
    for place, node, row, is_out in zip(own.places.tolist(), own.nodes, own.rows, is_left_out.tolist(), strict=True):
        if is_out:
            continue
        start, end = row["ChargePeriodStart"], row["ChargePeriodEnd"]
        assert isinstance(start, datetime)
        assert isinstance(end, datetime)
        seconds = (end - start).total_seconds()
        is_long = seconds > DAY_SECONDS_MAX
        if row["CommitmentDiscountId"] or row["ChargeCategory"] == "Purchase":
            kind = ChargeKind.COMMITTED
        elif is_long and row["ChargeCategory"] == "Usage":
            raise Corrupt(
                f"cannot import {found.file}: row {found.first_row + place}: ChargePeriodEnd={end.isoformat()!r}: "
                f"usage of {seconds / 86400:.0f} days in one row, of at most one; export the bill by hour or day"
            )
        else:
            kind = ChargeKind.OTHER if is_long or row["ChargeCategory"] == "Tax" else ChargeKind.RUNNING
        sums = drafts[_part_key(row)].sums
        key = (node, start.date(), kind)
        billed, effective = sums.get(key, (Decimal(0), Decimal(0)))
        sums[key] = (
            EXACT.add(billed, Decimal(str(row["BilledCost"]))),
            EXACT.add(effective, Decimal(str(row["EffectiveCost"]))),
        )


def _parts(drafts: dict[_PartKey, _Draft]) -> Iterable[BillPart]:
    for (scope, period), draft in sorted(drafts.items(), key=lambda entry: entry[0]):
        yield BillPart(
            scope=scope,
            period=period,
            currency=draft.currency,
            covered=frozenset(day for day in draft.used if _is_whole(day, draft)),
            invoices=tuple(sorted(draft.invoices)),
            days=tuple(
                BilledDay(node=node, day=day, kind=kind, billed=billed, effective=effective)
                for (node, day, kind), (billed, effective) in sorted(draft.sums.items(), key=lambda entry: entry[0])
            ),
        )


def _is_whole(day: date, draft: _Draft) -> bool:
    """Whether usage was billed before the day's end and to it: the last day of an open bill is not over."""
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
    if draft.first is None or draft.last is None:
        return False
    return draft.first.replace(tzinfo=UTC) <= begin and begin + _DAY <= draft.last.replace(tzinfo=UTC)
