"""Who really sits on a card: the driver's processes, each in the slice of its container, or a stranger there.

Pure. A process in a container that was granted the card belongs to that slice; a pod's process on a card that the pod
was not granted is told, for it takes from those who were (a privileged pod, or one that was shown every card). The
server of MPS is no stranger: what it does, it does for the tenants. Called by `exporter.attribution.attributor`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from exporter.attribution.cgroup import CgroupPlace, Occupant, place_that_counts
from exporter.attribution.records import AttributedSlice, Attribution, Finding, FindingKind, NodeView, ProcessOnCard
from fleet.inventory import CardId


def seat_processes(slices: Sequence[AttributedSlice], view: NodeView) -> Attribution:
    """Puts each process into its container's slice.

    Args:
        slices: what was granted.
        view: what is known of the node.

    Returns:
        The same slices with their processes, and what is odd about these. Without the API server nobody knows which
        container has which id: then every slice has none, and nothing is odd.
    """
    if view.pods is None:
        return Attribution(slices=tuple(slices), findings=())
    uids = {facts.record.uid for facts in view.pods}
    names = {facts.record.uid: (facts.record.namespace, facts.record.pod) for facts in view.pods}
    containers = {
        (facts.record.uid, identity.container_id): identity.container
        for facts in view.pods
        for identity in facts.identities
    }
    nameless = {found.grant.card for found in slices if found.pod_uid is None}
    by_place: dict[tuple[str, CardId], list[int]] = defaultdict(list)
    for number, found in enumerate(slices):
        if found.pod_uid is not None:
            by_place[found.pod_uid, found.grant.card].append(number)
    holders = {found.pod_uid for found in slices}
    pids: dict[int, set[int]] = defaultdict(set)
    findings, servers = [], []
    for process in view.processes:
        place = place_that_counts(process.places, view.enclosing)
        # Who holds cards himself serves himself by MPS, and takes from others what he uses elsewhere.
        if process.is_mps_server and (place is None or place.pod_uid not in holders):
            servers.append(process)
            continue
        if place is None or place.occupant is Occupant.MONITOR:
            continue
        if place.occupant is Occupant.VIRTUAL_MACHINE:
            findings.append(_finding(FindingKind.VIRTUAL_MACHINE, place, process, names))
        container = containers.get((place.pod_uid, place.container_id or ""))
        there = by_place.get((place.pod_uid, process.card), [])
        seat = _seat(slices, there, container)
        if seat is None and place.pod_uid not in uids and process.card in nameless:
            # It may well be the pod that the kubelet lists there and the API server has not named yet.
            continue
        if seat is None:
            findings.append(_finding(FindingKind.STRANGER, place, process, names, container or ""))
        else:
            pids[seat].add(process.pid)
    seated = (
        replace(found, pids=tuple(sorted(pids[number]))) if number in pids else found
        for number, found in enumerate(slices)
    )
    return Attribution(slices=tuple(seated), findings=tuple(findings), mps_servers=tuple(servers))


def _seat(slices: Sequence[AttributedSlice], there: Sequence[int], container: str | None) -> int | None:
    """The slice of a pod's on a card that a process belongs to; None for a stranger."""
    if container is None:
        # A container that was restarted a moment ago has an id that the API does not show yet.
        return there[0] if len(there) == 1 else None
    return next((number for number in there if slices[number].grant.container == container), None)


def _finding(
    kind: FindingKind,
    place: CgroupPlace,
    process: ProcessOnCard,
    names: Mapping[str, tuple[str, str]],
    container: str = "",
) -> Finding:
    namespace, pod = names.get(place.pod_uid, ("", place.pod_uid))
    return Finding(kind=kind, namespace=namespace, pod=pod, container=container, card=str(process.card))
