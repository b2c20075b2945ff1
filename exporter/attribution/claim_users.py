"""Which containers use a ResourceClaim: the claim is reserved for pods, and each container says which of them it needs.

Pure; called by `exporter.attribution.sources` for grants and by `exporter.node.reader` for the regions of HAMi's
driver, which keeps one per claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from exporter.allocation.records import PodRecord
from exporter.attribution.pods import PodFacts
from exporter.regions.tree import ContainerKey
from fleet.grammars.claims import HAMI_DRIVER, ClaimAllocation, ClaimedDevice


def users_in_pod(record: PodRecord, allocation: ClaimAllocation) -> dict[str, tuple[ClaimedDevice, ...]]:
    """What containers of a pod have of a claim; none where it is not reserved for the pod."""
    if record.namespace != allocation.namespace or record.uid not in allocation.reserved_for:
        return {}
    names = sorted({name for name, claim in record.claims if claim == allocation.claim})
    given = {
        needs.container: dict.fromkeys(device for name in names for device in needs.given(name, allocation))
        for needs in record.containers
    }
    return {container: tuple(devices) for container, devices in given.items() if devices}


def sole_users(claims: Iterable[ClaimAllocation], pods: Iterable[PodFacts]) -> Mapping[str, ContainerKey]:
    """The container of each claim of HAMi's driver that one container alone uses, by the claim's UID.

    Several containers of a claim write into one region, and nobody can distinguish them there.
    """
    records = {facts.record.uid: facts.record for facts in pods}
    found = {}
    for claim in claims:
        is_followed = claim.uid is not None and any(device.driver == HAMI_DRIVER for device in claim.devices)
        # A pod that is not known yet may use it too.
        if not is_followed or not records.keys() >= set(claim.reserved_for):
            continue
        living = [record for uid in claim.reserved_for if not (record := records[uid]).is_over]
        users = [(record.uid, container) for record in living for container in users_in_pod(record, claim)]
        if claim.uid is not None and len(users) == 1:
            found[claim.uid] = ContainerKey(pod_uid=users[0][0], container=users[0][1])
    return found
