"""What an hour of a card that was bought costs: purchase, interest, power, rack and staff, spread over its life.

Called by `book`. The formula is in `fleet.settings.money.OnPremises` and in `docs/money.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal

from fleet.settings.money import HOURS_PER_MONTH, HOURS_PER_YEAR, OnPremises

PRICE_QUANTUM = Decimal("0.000000001")
"""Prices per card hour are rounded to this, so that a price times a millionth of a card hour is exact."""
_SHOWN = Decimal("0.0001")


@dataclass(frozen=True, slots=True, kw_only=True)
class CardHourCost:
    """Parts of the price of one card hour, each in the rule's currency.

    Attributes:
        purchase: write-off and interest.
        power: electricity on average.
        running: rack, cooling, staff.
    """

    purchase: Decimal
    power: Decimal
    running: Decimal

    @property
    def total(self) -> Decimal:
        """The price of the card hour, rounded to `PRICE_QUANTUM`."""
        return (self.purchase + self.power + self.running).quantize(PRICE_QUANTUM, ROUND_HALF_EVEN)


def card_hour_cost(machine: OnPremises) -> CardHourCost:
    """The parts of the amortised price of one card hour."""
    cards = Decimal(machine.cards)
    hours = _exact(machine.life_years) * HOURS_PER_YEAR * _exact(machine.availability_ratio)
    per_kwh = machine.per_kwh if machine.per_kwh is not None else Decimal(0)
    monthly = machine.hosting_per_month + machine.operations_per_month
    return CardHourCost(
        purchase=machine.purchase * (1 + _exact(machine.capital_cost_ratio)) / hours / cards,
        power=_exact(machine.watts) / 1000 * _exact(machine.pue) * per_kwh / cards,
        running=monthly / HOURS_PER_MONTH / cards,
    )


def formula_of(machine: OnPremises) -> str:
    """The calculation with its numbers, for people: what was divided by what, and what each part comes to."""
    cost = card_hour_cost(machine)
    monthly = machine.hosting_per_month + machine.operations_per_month
    return (
        f"({machine.purchase} × {1 + _exact(machine.capital_cost_ratio)} / ({_exact(machine.life_years)} y × "
        f"{HOURS_PER_YEAR} h × {_exact(machine.availability_ratio)})"
        f" + {_exact(machine.watts) / 1000} kW × {_exact(machine.pue)} × {machine.per_kwh or 0}/kWh"
        f" + {monthly} / {HOURS_PER_MONTH} h) / {machine.cards} cards"
        f" = {_shown(cost.purchase)} + {_shown(cost.power)} + {_shown(cost.running)} = {_shown(cost.total)}"
    )


def _exact(value: float) -> Decimal:
    """The number that a person wrote, not its nearest float."""
    return Decimal(str(value))


def _shown(amount: Decimal) -> Decimal:
    return amount.quantize(_SHOWN, ROUND_HALF_EVEN)
