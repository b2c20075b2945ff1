"""The columns of the FOCUS export: name, type, whether null is allowed, allowed values; and what each row must satisfy.

FOCUS is the FinOps Open Cost and Usage Specification. Names, types and rules are those of version 1.3, which added the
allocated columns (FinOps-Open-Cost-and-Usage-Spec/FOCUS_Spec:specification/datasets/cost_and_usage/columns and
specification/attributes/data_generator_calculated_split_cost_allocation_handling.md); `ProviderName` and
`PublisherName`, which it deprecates, stay for readers of 1.2. Columns of our own start with `x_`. Called by `focus`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc

FOCUS_VERSION = "1.3"

_DECIMAL = pa.decimal128(38, 15)
_TIME = pa.timestamp("ms", tz="UTC")  # Parquet knows no coarser one


class FocusKind(StrEnum):
    """Type of a column; JSON is text in a file."""

    TEXT = "text"
    JSON = "json"
    DECIMAL = "decimal"
    TIME = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class FocusColumn:
    """One column.

    Attributes:
        is_nullable: True where null is allowed.
        allowed: values that the specification allows; empty for any.
    """

    name: str
    kind: FocusKind
    is_nullable: bool = True
    allowed: tuple[str, ...] = ()


def _column(name: str, kind: FocusKind = FocusKind.TEXT) -> FocusColumn:
    return FocusColumn(name=name, kind=kind)


def _must(name: str, kind: FocusKind = FocusKind.TEXT, *, allowed: tuple[str, ...] = ()) -> FocusColumn:
    return FocusColumn(name=name, kind=kind, is_nullable=False, allowed=allowed)


FOCUS_COLUMNS: tuple[FocusColumn, ...] = (
    _column("AllocatedMethodDetails", FocusKind.JSON),
    _must("AllocatedMethodId"),
    _column("AllocatedResourceId"),
    _column("AllocatedResourceName"),
    _column("AllocatedTags", FocusKind.JSON),
    _column("AvailabilityZone"),
    _must("BilledCost", FocusKind.DECIMAL),
    _must("BillingAccountId"),
    _must("BillingAccountName"),
    _must("BillingAccountType"),
    _must("BillingCurrency"),
    _must("BillingPeriodEnd", FocusKind.TIME),
    _must("BillingPeriodStart", FocusKind.TIME),
    _must("ChargeCategory", allowed=("Usage", "Purchase", "Tax", "Credit", "Adjustment")),
    FocusColumn(name="ChargeClass", kind=FocusKind.TEXT, allowed=("Correction",)),
    _column("ChargeDescription"),
    _must("ChargeFrequency", allowed=("One-Time", "Recurring", "Usage-Based")),
    _must("ChargePeriodEnd", FocusKind.TIME),
    _must("ChargePeriodStart", FocusKind.TIME),
    _must("ConsumedQuantity", FocusKind.DECIMAL),
    _must("ConsumedUnit"),
    _must("ContractedCost", FocusKind.DECIMAL),
    _must("ContractedUnitPrice", FocusKind.DECIMAL),
    _must("EffectiveCost", FocusKind.DECIMAL),
    _must("HostProviderName"),
    _must("InvoiceIssuerName"),
    _must("ListCost", FocusKind.DECIMAL),
    _must("ListUnitPrice", FocusKind.DECIMAL),
    _must("PricingCategory", allowed=("Standard", "Dynamic", "Committed", "Other")),
    _must("PricingCurrency"),
    _must("PricingQuantity", FocusKind.DECIMAL),
    _must("PricingUnit"),
    _must("ProviderName"),
    _must("PublisherName"),
    _column("RegionId"),
    _column("RegionName"),
    _must("ResourceId"),
    _must("ResourceName"),
    _must("ResourceType"),
    _must("ServiceCategory", allowed=("AI and Machine Learning", "Compute")),
    _must("ServiceName"),
    _must("ServiceProviderName"),
    _must("ServiceSubcategory", allowed=("Containers", "Virtual Machines", "Other (Compute)")),
    _must("SkuId"),
    _must("SkuMeter"),
    _column("SkuPriceDetails", FocusKind.JSON),
    _must("SkuPriceId"),
    _must("SubAccountId"),
    _must("SubAccountName"),
    _must("SubAccountType"),
    _column("Tags", FocusKind.JSON),
    _must("x_AllocationBasis", allowed=("allocation", "use", "blended")),
    _must("x_AllocationKind", allowed=("tenant", "unallocated", "stranded")),
    _column("x_Container"),
    _column("x_Coverage", FocusKind.DECIMAL),
    _column("x_GeneratedTokens", FocusKind.DECIMAL),
    _must("x_GpuModel"),
    _column("x_GpuShareCore", FocusKind.DECIMAL),
    _column("x_GpuShareMem", FocusKind.DECIMAL),
    _must("x_IdleGpuHours", FocusKind.DECIMAL),
    _must("x_IdleHeldGpuHours", FocusKind.DECIMAL),
    _column("x_MigProfile"),
    _column("x_Namespace"),
    _column("x_Pod"),
    _column("x_PriceSource"),
    _column("x_RecommendationId"),
    _column("x_Requests", FocusKind.DECIMAL),
    _must("x_StrandedGpuHours", FocusKind.DECIMAL),
    _column("x_Team"),
    _column("x_Tokens", FocusKind.DECIMAL),
    _must("x_UnallocatedGpuHours", FocusKind.DECIMAL),
    _must("x_UnusedGpuHours", FocusKind.DECIMAL),
    _must("x_UsedGpuHours", FocusKind.DECIMAL),
    _column("x_Workload"),
)
"""Every column of the export, in order; null is allowed as the specification says of charges for usage."""

_ARROW = {FocusKind.TEXT: pa.string(), FocusKind.JSON: pa.string(), FocusKind.DECIMAL: _DECIMAL, FocusKind.TIME: _TIME}


def focus_schema() -> pa.Schema:
    """The export's Arrow schema; its metadata names the specification's version."""
    return pa.schema(
        [pa.field(column.name, _ARROW[column.kind], nullable=column.is_nullable) for column in FOCUS_COLUMNS],
        metadata={"focus_version": FOCUS_VERSION, "data_generator": "gputide"},
    )


def focus_faults(table: pa.Table) -> tuple[str, ...]:
    """What a table breaks of the specification; empty where it conforms.

    Checked: columns and types, nulls, allowed values, no negative number, unit price times quantity is the cost,
    charge periods inside billing periods, and which allocated columns go together.
    """
    expected = focus_schema()
    if table.schema.names != expected.names or table.schema.types != expected.types:
        return ("columns or types differ from the schema",)
    return (*_faults_of_columns(table), *_faults_of_rows(table))


def _faults_of_columns(table: pa.Table) -> list[str]:
    faults = []
    for column in FOCUS_COLUMNS:
        values = table.column(column.name)
        if not column.is_nullable and values.null_count:
            faults.append(f"{column.name} is null in {values.null_count} rows")
        if column.allowed and set(values.unique().to_pylist()) - {None, *column.allowed}:
            faults.append(f"{column.name} holds a value that is not allowed")
        if column.kind is FocusKind.DECIMAL and _any(pc.less(values, pa.scalar(0, _DECIMAL))):
            faults.append(f"{column.name} is negative")
    return faults


def _faults_of_rows(table: pa.Table) -> list[str]:
    column = table.column
    is_tenant = pc.equal(column("x_AllocationKind"), "tenant")
    broken = {
        "ListCost is not ListUnitPrice × PricingQuantity": _is_no_product(table, "ListCost", "ListUnitPrice"),
        "ContractedCost is not ContractedUnitPrice × PricingQuantity": _is_no_product(
            table, "ContractedCost", "ContractedUnitPrice"
        ),
        "BilledCost differs from EffectiveCost": pc.not_equal(column("BilledCost"), column("EffectiveCost")),
        "ChargePeriodStart is not before ChargePeriodEnd": pc.greater_equal(
            column("ChargePeriodStart"), column("ChargePeriodEnd")
        ),
        "a charge period lies outside its billing period": pc.or_(
            pc.less(column("ChargePeriodStart"), column("BillingPeriodStart")),
            pc.greater(column("ChargePeriodEnd"), column("BillingPeriodEnd")),
        ),
        "AllocatedResourceId must be set for allocated parts, and only for them": pc.not_equal(
            is_tenant, pc.is_valid(column("AllocatedResourceId"))
        ),
        "AllocatedResourceName must be set where AllocatedResourceId is, and only there": pc.not_equal(
            pc.is_valid(column("AllocatedResourceName")), pc.is_valid(column("AllocatedResourceId"))
        ),
    }
    return [fault for fault, mask in broken.items() if _any(mask)]


def _is_no_product(table: pa.Table, cost: str, price: str) -> pa.ChunkedArray:
    product = pc.multiply(_narrow(table, price, 9), _narrow(table, "PricingQuantity", 6))
    return pc.not_equal(product, table.column(cost).cast(product.type))


def _any(mask: pa.ChunkedArray) -> bool:
    return bool(pc.any(mask).as_py())


def _narrow(table: pa.Table, name: str, scale: int) -> pa.ChunkedArray:
    """A column with fewer digits, so that a product of two fits; digits that are really there are not cut."""
    return table.column(name).cast(pa.decimal128(18, scale))
