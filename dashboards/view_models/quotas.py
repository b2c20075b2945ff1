"""Who may have how much, holds how much of it, and uses how much of that: quotas of namespaces and queues.

A quota speaks in units of a resource. Only what counts cards can be held against use, for use is measured in cards; of
every other resource (framebuffer, shares of cores) what is held stands alone. Pure; called by the tenants page, the
report and the API.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dashboards.view_models.tenants import Tenant
from fleet.inventory import Quota

_PARTS = re.compile(r"(mem|memory|core|cores|percentage|ratio|framebuffer)\b|/mig-", re.IGNORECASE)
"""Resources that are parts of cards and count none: nvidia.com/gpumem, volcano.sh/vgpu-cores, nvidia.com/mig-1g.10gb …
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """One quota, and what becomes of it.

    Attributes:
        kind: `ResourceQuota`, `volcano`, `kueue`, `kueue_local` or `kai`.
        namespace: namespace; empty for a queue of the whole cluster.
        quota: what is promised, else what is allowed at most, in the resource's unit; None where it has no end.
        granted: what is held, in the resource's unit; None where not said.
        used: of what is held, what was typically in use, in cards; None where it is not measured or counts no cards.
    """

    kind: str
    namespace: str
    name: str
    resource: str
    quota: float | None
    granted: float | None
    used: float | None

    @property
    def left(self) -> float | None:
        """What of the quota nobody holds, 0 or more; None where either is unknown."""
        return None if self.quota is None or self.granted is None else max(0.0, self.quota - self.granted)

    @property
    def used_ratio(self) -> float | None:
        """Used / quota; None where either is unknown."""
        return None if not self.quota or self.used is None else self.used / self.quota

    @property
    def is_underused(self) -> bool:
        """Whether less is held, or less is used, than the quota promises."""
        return bool(self.left) or (self.used_ratio is not None and self.used_ratio < 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamQuota:
    """Cards that the quotas of one namespace allow, and hold.

    Attributes:
        quota: cards; None where no quota limits them.
        granted: cards held under it; None where not said.
    """

    quota: float | None
    granted: float | None


def quota_uses(quotas: Sequence[Quota], tenants: Sequence[Tenant]) -> tuple[QuotaUse, ...]:
    """Every quota, those with most unused cards first, then the others by name.

    Args:
        tenants: what each namespace holds and uses.
    """
    used_of: Mapping[str, Tenant] = {tenant.name: tenant for tenant in tenants}
    found = [_use(quota, used_of.get(quota.namespace)) for quota in quotas]
    return tuple(sorted(found, key=_most_unused_first))


def team_quotas(quotas: Sequence[Quota]) -> dict[str, TeamQuota]:
    """Cards by namespace that its ResourceQuotas allow; of several that name the same resource the tightest counts."""
    tightest: dict[tuple[str, str], Quota] = {}
    for quota in quotas:
        if quota.kind != "ResourceQuota" or not counts_cards(quota.resource) or quota.limit is None:
            continue
        key = (quota.namespace, quota.resource.removeprefix("requests.").removeprefix("limits."))
        if key not in tightest or quota.limit < (tightest[key].limit or 0.0):
            tightest[key] = quota
    by_namespace: dict[str, list[Quota]] = {}
    for (namespace, _), quota in tightest.items():
        by_namespace.setdefault(namespace, []).append(quota)
    return {
        namespace: TeamQuota(
            quota=sum(one.limit or 0.0 for one in own),
            granted=None if any(one.held is None for one in own) else sum(one.held or 0.0 for one in own),
        )
        for namespace, own in sorted(by_namespace.items())
    }


def counts_cards(resource: str) -> bool:
    """Whether a resource counts cards or pieces of them rather than bytes or shares."""
    return _PARTS.search(resource) is None


def _use(quota: Quota, tenant: Tenant | None) -> QuotaUse:
    has_use = tenant is not None and quota.namespace != "" and counts_cards(quota.resource)
    return QuotaUse(
        kind=quota.kind,
        namespace=quota.namespace,
        name=quota.name,
        resource=quota.resource,
        quota=quota.deserved if quota.deserved is not None else quota.limit,
        granted=quota.held,
        used=tenant.cards_used if has_use and tenant is not None else None,
    )


def _most_unused_first(use: QuotaUse) -> tuple[bool, float, str, str, str, str]:
    unused = 0.0
    if counts_cards(use.resource) and use.quota is not None:
        used = use.used if use.used is not None else use.granted
        unused = 0.0 if used is None else use.quota - used
    return (not counts_cards(use.resource), -unused, use.kind, use.namespace, use.name, use.resource)
