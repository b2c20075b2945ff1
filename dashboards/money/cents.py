"""Amounts rounded for people so that what is shown sums to the sum that is shown.

Called by whoever prints a chargeback.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_FLOOR, ROUND_HALF_EVEN, Decimal

CENT = Decimal("0.01")


def in_cents(amounts: Sequence[Decimal | None], *, quantum: Decimal = CENT) -> list[Decimal | None]:
    """Amounts in cents whose sum is their exact sum in cents, by the largest remainder.

    Args:
        amounts: exact amounts of 0 or more; None stays None and adds nothing.
        quantum: what to round to.
    """
    known = [amount for amount in amounts if amount is not None]
    total = sum(known, Decimal(0)).quantize(quantum, ROUND_HALF_EVEN)
    floors = [None if amount is None else amount.quantize(quantum, ROUND_FLOOR) for amount in amounts]
    left = int((total - sum((floor for floor in floors if floor is not None), Decimal(0))) / quantum)
    cut = sorted(
        (number for number, amount in enumerate(amounts) if amount is not None),
        key=lambda number: (floors[number] or 0) - (amounts[number] or 0),
    )
    for number in cut[:left]:
        floors[number] = (floors[number] or Decimal(0)) + quantum
    return floors
