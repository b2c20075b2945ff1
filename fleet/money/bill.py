"""What a provider billed for nodes, day by day: records, and which row of a bill speaks of which node.

`dashboards.money` reads them from files in FOCUS and keeps them; `enforcer.record.billed` holds them against plans.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Context, Decimal, Inexact, InvalidOperation
from enum import StrEnum
from typing import NamedTuple

EXACT = Context(prec=140, traps=[Inexact, InvalidOperation])
"""Sums of billed amounts: what it can't hold to the last digit raises. An amount has at most 13 digits before the point
and 79 after it (`dashboards.money.focus_rows`), so sums of 10^18 of them fit."""


class ChargeKind(StrEnum):
    """What becomes of a charge when its node goes."""

    RUNNING = "running"
    """It ends: usage of a day or less, and what is charged or credited over the same hours."""
    COMMITTED = "committed"
    """It is paid to the end of a commitment: purchases, and usage that a commitment discount covers."""
    OTHER = "other"
    """Taxes, credits and adjustments over more than a day, which belong to no day."""


class NodeName(NamedTuple):
    """One node of one cluster."""

    cluster: str
    node: str


class BillScope(NamedTuple):
    """Who bills whom: a corrected bill replaces that of the same scope and billing period.

    The invoice is no part of it: an open period has none yet, and must be replaced by the one that is invoiced.
    """

    issuer: str
    account: str
    sub_account: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledDay:
    """What one node cost on one day, exactly.

    Attributes:
        day: UTC day in which the charge periods begin.
        billed: `BilledCost`, what is invoiced.
        effective: `EffectiveCost`, with what was paid ahead spread over what it covers.
    """

    node: NodeName
    day: date
    kind: ChargeKind
    billed: Decimal
    effective: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class BillPart:
    """What one scope was billed in one billing period, as far as it concerns known nodes.

    Attributes:
        period: first day of the billing period, UTC.
        currency: `BillingCurrency`, three letters.
        covered: days on which anything was used, from start to end: of other days nothing is known.
        invoices: `InvoiceId` of its rows, sorted; none while the period is open.
    """

    scope: BillScope
    period: date
    currency: str
    covered: frozenset[date]
    invoices: tuple[str, ...]
    days: tuple[BilledDay, ...]


_GOOGLE = re.compile(r"projects/([^/]+)/zones/([^/]+)/instances/([^/]+)$")
_NAMED_BY_PROVIDER = ("gce://",)


def resource_key(resource_id: str) -> str:
    """A `ResourceId` in the form in which resources are compared.

    An EC2 instance is its id, with or without its ARN; a machine of Compute Engine is project/zone/name; Azure's paths
    differ in case between services. Anything else is its own text in lower case.
    """
    text = resource_id.strip().lower()
    if text.startswith("arn:"):
        return text.rpartition("/")[2]
    found = _GOOGLE.search(text)
    return "/".join(found.groups()) if found is not None else text


def provider_key(provider_id: str) -> str:
    """The same of a node's `spec.providerID`, as cloud controllers write it.

    `aws:///ZONE/ID` (kubernetes/cloud-provider-aws:pkg/providers/v1/instances.go), `gce://PROJECT/ZONE/NAME`
    (kubernetes/cloud-provider-gcp:providers/gce/gce_util.go), `azure:///subscriptions/…`
    (kubernetes-sigs/cloud-provider-azure:pkg/provider/azure_wrap.go); of others the part after the last slash counts.
    """
    scheme, _, rest = provider_id.strip().lower().partition("://")
    return rest if scheme in ("gce", "azure") else (rest or scheme).rpartition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class BilledNames:
    """By which names a bill may speak of known nodes.

    Attributes:
        by_id: node by `resource_key` of its `ResourceId`.
        by_name: node by `ResourceName` in lower case.
        ambiguous: names that two nodes have, so that they stand for neither, sorted.
    """

    by_id: Mapping[str, NodeName]
    by_name: Mapping[str, NodeName]
    ambiguous: tuple[str, ...] = ()

    def node_of(self, resource_id: str | None, resource_name: str | None) -> NodeName | None:
        """The node that a row is about; None where it is about none that is known."""
        found = self.by_id.get(resource_key(resource_id)) if resource_id else None
        if found is None and resource_name:
            found = self.by_name.get(resource_name.strip().lower().rpartition("/")[2])
        return found


def billed_names(
    provider_ids: Mapping[NodeName, Iterable[str]], mapped: Iterable[tuple[NodeName, str]] = ()
) -> BilledNames:
    """Names of nodes on a bill.

    A node without a provider's id is known by its name alone, and so are machines of Compute Engine, whose bill may
    number projects and machines instead of naming them.

    Args:
        provider_ids: ids that each known node had.
        mapped: nodes with a `ResourceId` that somebody named.
    """
    ids: dict[str, set[NodeName]] = {}
    names: dict[str, set[NodeName]] = {}
    for node, own in provider_ids.items():
        known = list(own)
        for provider_id in known:
            ids.setdefault(provider_key(provider_id), set()).add(node)
        if not known or any(one.startswith(_NAMED_BY_PROVIDER) for one in known):
            names.setdefault(node.node.lower(), set()).add(node)
    for node, resource_id in mapped:
        ids[resource_key(resource_id)] = {node}
    return BilledNames(
        by_id={key: next(iter(nodes)) for key, nodes in ids.items() if len(nodes) == 1},
        by_name={key: next(iter(nodes)) for key, nodes in names.items() if len(nodes) == 1},
        ambiguous=tuple(sorted(key for found in (ids, names) for key, nodes in found.items() if len(nodes) > 1)),
    )
