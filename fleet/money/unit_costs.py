"""What a request or a token costs: cost by allocation over what a workload answered meanwhile.

How much it answered is measured (rates of its servers) or asked of a Prometheus (`prices.units`); a workload of which
nobody knows it has no unit cost. Pure; called by `gputide cost show`, the report and the workloads page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from fleet.inventory import WorkloadId
from fleet.money.charges import Charge

MILLION = 1_000_000
_QUANTUM = Decimal("0.000001")


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCount:
    """How many units a workload made in a period.

    Attributes:
        workload: who, `namespace/Kind/name`.
        unit: what is counted, in the plural.
        count: how many; None where it could not be counted, which is not none.
        fault: why it could not be counted; None where it could.
    """

    workload: WorkloadId
    unit: str
    count: float | None
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCost(UnitCount):
    """What a workload's units cost over a period.

    Attributes:
        cost: cost by allocation of the time in which they were counted; None where no card of it has a price.
        is_partly_priced: some of its card hours have no price: the cost is too low.
    """

    cost: Decimal | None
    is_partly_priced: bool

    @property
    def per_million(self) -> Decimal | None:
        """Cost of a million units, to a millionth of the currency; None where either is unknown or nothing was made."""
        if self.cost is None or not self.count:
            return None
        return (self.cost * MILLION / Decimal(str(self.count))).quantize(_QUANTUM)


def unit_costs(charges: Iterable[Charge], counts: Sequence[UnitCount] = ()) -> tuple[UnitCost, ...]:
    """Every workload whose units are known or were asked for, the dearest workload first.

    Args:
        charges: cost by workload; what a workload's servers counted stands in it.
        counts: what was asked for beside; of one unit it goes before what the server counted.
    """
    by_workload: Mapping[str, Charge] = {charge.name: charge for charge in charges}
    reported = {
        (name, unit.value): _unit_cost(
            UnitCount(workload=WorkloadId(name), unit=unit.value, count=served.count), charge, served.cost
        )
        for name, charge in by_workload.items()
        for unit, served in charge.served.items()
    }
    asked = {(str(one.workload), one.unit): _asked_cost(one, by_workload.get(one.workload)) for one in counts}
    found = (reported | asked).values()
    return tuple(sorted(found, key=lambda one: (-(one.cost or Decimal(0)), one.workload, one.unit)))


def _asked_cost(one: UnitCount, charge: Charge | None) -> UnitCost:
    return _unit_cost(one, charge, None if charge is None else charge.cost.allocation)


def _unit_cost(one: UnitCount, charge: Charge | None, cost: Decimal | None) -> UnitCost:
    return UnitCost(
        workload=one.workload,
        unit=one.unit,
        count=one.count,
        cost=cost,
        is_partly_priced=charge is not None and charge.unpriced_card_hours > 0,
        fault=one.fault if charge is not None else "it held no card in this time",
    )
