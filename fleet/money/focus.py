"""The rows of the FOCUS export: every card hour with a price, split into tenants, unallocated and stranded rest.

A card's charge over a charge period is the origin charge; its allocated charges replace it and sum to it exactly in
cost and quantity. A card without a price has no cost, and FOCUS allows no null there: it is left out. Called by
`dashboards.report.focus_file`, which writes the rows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fleet.inventory import Grant, Node
from fleet.money.budgets import month_of
from fleet.money.charged_day import ChargedDay, ServedUnit
from fleet.money.focus_columns import focus_schema
from fleet.money.prices import CardPrice
from fleet.money.split import MILLION
from fleet.money.tenancies import Tenancies, slots_of, team_of
from fleet.profiles import HourMeasure
from fleet.settings.money import PriceBasis

UNIT = "GPU-Hours"
_PROVIDER = "gputide"
_REGION_LABEL = "topology.kubernetes.io/region"
_ZONE_LABEL = "topology.kubernetes.io/zone"
_CATEGORY = {
    PriceBasis.RENTED: "Standard",
    PriceBasis.COMMITTED: "Committed",
    PriceBasis.OWNED: "Other",
    None: "Standard",
}


_SERVED_COLUMNS = {
    ServedUnit.REQUESTS: "x_Requests",
    ServedUnit.TOKENS: "x_Tokens",
    ServedUnit.GENERATED_TOKENS: "x_GeneratedTokens",
}


class ChargePeriod(StrEnum):
    """How long one row of the export is."""

    HOUR = "hour"
    DAY = "day"


class Basis(StrEnum):
    """By what cost is split."""

    ALLOCATION = "allocation"
    USE = "use"
    BLENDED = "blended"


@dataclass(frozen=True, slots=True, kw_only=True)
class FocusContext:
    """What the rows need beside the days.

    Attributes:
        who: cards and grants that the days count by place.
        team_labels: pod labels that name the team.
        advice: id of the recommendation per workload.
    """

    who: Tenancies
    nodes: Mapping[str, Node]
    cluster: str
    currency: str
    team_labels: Sequence[str]
    basis: Basis = Basis.ALLOCATION
    period: ChargePeriod = ChargePeriod.DAY
    advice: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entries:
    """Sums per row of the export; arrays of one length. Places of grants are -1 for unallocated and stranded parts."""

    kind: NDArray[np.int64]
    card: NDArray[np.int64]
    grant: NDArray[np.int64]
    bucket: NDArray[np.int64]
    units: NDArray[np.int64]
    measures: Mapping[HourMeasure, NDArray[np.int64]]
    allocated: NDArray[np.int64]
    measured: NDArray[np.int64]
    compute: NDArray[np.float64]
    framebuffer: NDArray[np.float64]
    origin: NDArray[np.int64]
    served: Mapping[ServedUnit, NDArray[np.float64]]


_TENANT, _UNALLOCATED, _STRANDED = 0, 1, 2
_KINDS = ("tenant", "unallocated", "stranded")


def focus_table(day: ChargedDay, context: FocusContext) -> pa.Table:
    """The rows of one day, in the export's schema.

    Args:
        context: what the rows need beside it.
    """
    entries = _entries(day, context)
    rows = len(entries.kind)
    prices = [day.prices[number] for number in day.price_of[entries.card].tolist()]
    quantity = [Decimal(units).scaleb(-6) for units in entries.units.tolist()]
    cost = [
        price.amortised * share for price, share in zip(prices, quantity, strict=True) if price.amortised is not None
    ]
    listed = [_list_price(price) for price in prices]
    starts = [_period_start(day, context, bucket) for bucket in range(_buckets(day, context))]
    ends = [min(start + _length(context), day.start + timedelta(hours=day.hours)) for start in starts]
    months = [month_of(start) for start in starts]
    bucket = entries.bucket.tolist()
    values: dict[str, Any] = {
        "AllocatedMethodDetails": _method_details(entries),
        "BilledCost": cost,
        "BillingAccountId": [price.contract or context.cluster for price in prices],
        "BillingAccountName": [price.contract or context.cluster for price in prices],
        "BillingAccountType": ["Contract" if price.contract else "Cluster" for price in prices],
        "BillingPeriodEnd": [months[number][1] for number in bucket],
        "BillingPeriodStart": [months[number][0] for number in bucket],
        "ChargePeriodEnd": [ends[number] for number in bucket],
        "ChargePeriodStart": [starts[number] for number in bucket],
        "ConsumedQuantity": quantity,
        "ContractedCost": cost,
        "ContractedUnitPrice": [price.amortised for price in prices],
        "EffectiveCost": cost,
        "InvoiceIssuerName": [price.contract or _PROVIDER for price in prices],
        "ListCost": [price * share for price, share in zip(listed, quantity, strict=True)],
        "ListUnitPrice": listed,
        "PricingCategory": [_CATEGORY[price.basis] for price in prices],
        "PricingQuantity": quantity,
        "x_AllocationKind": [_KINDS[kind] for kind in entries.kind.tolist()],
        "x_PriceSource": [price.source or None for price in prices],
        **_of_cards(entries, prices, context),
        **_of_grants(entries, context),
        **_hours_by_use(entries),
        **_served(entries),
    }
    constants = {
        "AllocatedMethodId": f"gputide-{context.basis.value}-1",
        "BillingCurrency": context.currency,
        "ChargeCategory": "Usage",
        "ChargeClass": None,
        "ChargeDescription": f"GPU card hours, split by {context.basis.value}",
        "ChargeFrequency": "Usage-Based",
        "ConsumedUnit": UNIT,
        "HostProviderName": _PROVIDER,
        "PricingCurrency": context.currency,
        "PricingUnit": UNIT,
        "ProviderName": _PROVIDER,
        "PublisherName": _PROVIDER,
        "ResourceType": "GPU",
        "ServiceCategory": "Compute",
        "ServiceName": "Kubernetes GPU cards",
        "ServiceProviderName": _PROVIDER,
        "ServiceSubcategory": "Containers",
        "SkuMeter": "GPU card hours",
        "SkuPriceDetails": '{"GpuCount": 1}',
        "SubAccountId": context.cluster,
        "SubAccountName": context.cluster,
        "SubAccountType": "Cluster",
        "x_AllocationBasis": context.basis.value,
    }
    schema = focus_schema()
    arrays = [
        pa.repeat(pa.scalar(constants[field.name], field.type), rows)
        if field.name in constants
        else pa.array(values[field.name], field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _entries(day: ChargedDay, context: FocusContext) -> _Entries:
    """Rows of the export: parts of a day summed per charge period, card and container."""
    parts = getattr(day.split, context.basis.value)
    hours, count = day.columns.count, len(day.grant)
    hour = np.concatenate([day.columns.card_hour, np.arange(hours), np.arange(hours)])
    kind = np.repeat([_TENANT, _UNALLOCATED, _STRANDED], [count, hours, hours])
    slot = np.concatenate([slots_of(context.who)[day.grant], np.zeros(2 * hours, np.int64)])
    grant = np.concatenate([day.grant, np.full(2 * hours, -1)])
    card = day.card[hour]
    bucket = day.hour[hour] if context.period is ChargePeriod.HOUR else np.zeros(len(hour), np.int64)
    units = np.concatenate([parts.rows, parts.idle, parts.stranded])
    allocated = day.split.allocation.rows
    nothing = np.zeros(2 * hours, np.int64)
    is_measured = ~np.isnan(day.columns.compute_used) & ~np.isnan(day.columns.framebuffer_used)
    served = {unit: np.concatenate([part, np.full(2 * hours, np.nan)]) for unit, part in day.served.items()}
    # By use a pod that served may have used nothing of the card that its requests stand on.
    has_served = np.nansum(list(served.values()), axis=0) > 0
    keep = ((units > 0) | has_served) & ~day.is_unpriced[card]
    keys = np.stack([bucket, card, kind, slot])[:, keep]
    distinct, first, place = np.unique(keys, axis=1, return_index=True, return_inverse=True)
    place = place.reshape(-1)
    length = distinct.shape[1]

    def summed(values: NDArray[Any]) -> NDArray[np.float64]:
        return np.bincount(place, weights=values[keep], minlength=length).astype(np.float64)

    all_hours = np.zeros((_buckets(day, context), len(context.who.cards)), np.int64)
    np.add.at(all_hours, (bucket[count : count + hours], day.card), 1)
    empty = np.zeros(2 * hours)
    return _Entries(
        bucket=distinct[0],
        card=distinct[1],
        kind=distinct[2],
        grant=grant[keep][first],
        units=summed(units).astype(np.int64),
        measures={
            measure: summed(np.concatenate([part, nothing])).astype(np.int64) for measure, part in day.measures.items()
        },
        allocated=summed(np.concatenate([allocated, nothing])).astype(np.int64),
        measured=summed(np.concatenate([np.where(is_measured, allocated, 0), nothing])).astype(np.int64),
        compute=summed(np.concatenate([day.columns.compute_granted, empty])),
        framebuffer=summed(np.concatenate([day.columns.framebuffer_granted, empty])),
        origin=all_hours[distinct[0], distinct[1]],
        served={
            unit: np.where(summed(~np.isnan(part)) > 0, summed(np.nan_to_num(part)), np.nan)
            for unit, part in served.items()
        },
    )


def _method_details(entries: _Entries) -> list[str]:
    return [
        f'{{"Elements": [{{"AllocatedRatio": {units / (origin * MILLION):.12g}, "UsageUnit": "{UNIT}", '
        f'"UsageQuantity": {Decimal(units).scaleb(-6)}}}]}}'
        for units, origin in zip(entries.units.tolist(), entries.origin.tolist(), strict=True)
    ]


def _of_cards(entries: _Entries, prices: Sequence[CardPrice], context: FocusContext) -> dict[str, list[str | None]]:
    cards = [context.who.cards[number] for number in entries.card.tolist()]
    labels = {name: dict(node.labels) for name, node in context.nodes.items()}
    regions = [labels.get(card.node, {}).get(_REGION_LABEL) for card in cards]
    tags = {
        card.node: json.dumps({"gputide/cluster": card.cluster, "gputide/node": card.node}, ensure_ascii=False)
        for card in context.who.cards
    }
    return {
        "AvailabilityZone": [labels.get(card.node, {}).get(_ZONE_LABEL) for card in cards],
        "RegionId": regions,
        "RegionName": regions,
        "ResourceId": [str(card.card) for card in cards],
        "ResourceName": [f"{card.node}/{card.card}" for card in cards],
        "SkuId": [str(card.card_model) for card in cards],
        "SkuPriceId": [
            f"{card.card_model}/{price.basis.value if price.basis is not None else 'unknown'}"
            for card, price in zip(cards, prices, strict=True)
        ],
        "Tags": [tags[card.node] for card in cards],
        "x_GpuModel": [str(card.card_model) for card in cards],
    }


def _of_grants(entries: _Entries, context: FocusContext) -> dict[str, list[str | None]]:
    tenants = {number: _tenant(context.who.grants[number], context) for number in set(entries.grant.tolist()) - {-1}}
    nobody: dict[str, str | None] = dict.fromkeys(_TENANT_COLUMNS)
    rows = [tenants.get(number, nobody) for number in entries.grant.tolist()]
    return {name: [row[name] for row in rows] for name in _TENANT_COLUMNS}


_TENANT_COLUMNS = (
    "AllocatedResourceId", "AllocatedResourceName", "AllocatedTags", "x_Container", "x_MigProfile", "x_Namespace",
    "x_Pod", "x_RecommendationId", "x_Team", "x_Workload",
)  # fmt: skip


def _tenant(grant: Grant, context: FocusContext) -> dict[str, str | None]:
    team = team_of(grant, context.team_labels)
    tags = {
        "gputide/namespace": grant.namespace,
        "gputide/workload": grant.workload_id,
        "gputide/team": team,
        **{f"kubernetes/{key}": value for key, value in grant.labels},
    }
    return {
        "AllocatedResourceId": f"{grant.namespace}/{grant.pod}/{grant.container}",
        "AllocatedResourceName": grant.pod,
        "AllocatedTags": json.dumps(tags, ensure_ascii=False),
        "x_Container": grant.container,
        "x_MigProfile": grant.mig_profile,
        "x_Namespace": grant.namespace,
        "x_Pod": grant.pod,
        "x_RecommendationId": (context.advice or {}).get(grant.workload_id),
        "x_Team": team,
        "x_Workload": grant.workload_id,
    }


def _hours_by_use(entries: _Entries) -> dict[str, list[Decimal | None]]:
    """Hours and shares of a row, exact to a millionth."""

    def hours(units: NDArray[np.int64]) -> list[Decimal | None]:
        return [Decimal(count).scaleb(-6) for count in units.tolist()]

    is_tenant = entries.kind == _TENANT
    granted = np.maximum(1, entries.origin)
    shares = {
        "x_Coverage": entries.measured / np.maximum(1, entries.allocated),
        "x_GpuShareCore": entries.compute / granted,
        "x_GpuShareMem": entries.framebuffer / granted,
    }
    return {
        "x_UsedGpuHours": hours(entries.measures[HourMeasure.USED]),
        "x_UnusedGpuHours": hours(entries.measures[HourMeasure.UNUSED]),
        "x_IdleGpuHours": hours(entries.measures[HourMeasure.IDLE]),
        "x_IdleHeldGpuHours": hours(entries.measures[HourMeasure.IDLE_HELD]),
        "x_UnallocatedGpuHours": hours(np.where(entries.kind == _UNALLOCATED, entries.units, 0)),
        "x_StrandedGpuHours": hours(np.where(entries.kind == _STRANDED, entries.units, 0)),
        **{
            name: [
                Decimal(f"{share:.6f}") if known else None
                for share, known in zip(values.tolist(), is_tenant.tolist(), strict=True)
            ]
            for name, values in shares.items()
        },
    }


def _served(entries: _Entries) -> dict[str, list[Decimal | None]]:
    """What the pod's servers served; a pod of several cards has all of it on one of them, and none on the others."""
    return {
        column: [None if np.isnan(count) else Decimal(f"{count:.6f}") for count in entries.served[unit].tolist()]
        for unit, column in _SERVED_COLUMNS.items()
    }


def _list_price(price: CardPrice) -> Decimal:
    """The public price; the own price where there is none, as FOCUS wants one."""
    if price.list_price is not None:
        return price.list_price
    return price.amortised if price.amortised is not None else Decimal(0)


def _buckets(day: ChargedDay, context: FocusContext) -> int:
    return day.hours if context.period is ChargePeriod.HOUR else 1


def _period_start(day: ChargedDay, context: FocusContext, bucket: int) -> datetime:
    return day.start + timedelta(hours=bucket if context.period is ChargePeriod.HOUR else 0)


def _length(context: FocusContext) -> timedelta:
    return timedelta(hours=1 if context.period is ChargePeriod.HOUR else 24)
