"""Which pod and container a process belongs to, read from its cgroup paths.

The kubelet makes one cgroup per pod, the container runtime one below it per container; the paths differ by version of
cgroups, by driver (cgroupfs or systemd), by runtime (containerd, CRI-O, Docker) and by what the node itself runs in.
Kata puts a virtual machine into the pod's cgroup: the driver of the host sees none of the processes inside, so what
such a pod does on a card can't be split by process. Pure; called by `exporter.attribution.process_places`.

Sources: kubernetes:pkg/kubelet/cm/cgroup_manager_linux.go (names of pods' cgroups), containerd:pkg/cri/util,
cri-o:internal/config/cgmgr, NVIDIA/dcgm-exporter:internal/pkg/transformation/pidmapper.go (whose rule takes the first
match and does not check its shape).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

TEXT_LENGTH_MAX = 65536
"""Longest `/proc/<pid>/cgroup` that is looked at: a dozen controllers of at most 4 KiB each."""

_SEGMENTS_MAX = 64
_UID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
# `pod<uid>` by cgroupfs; `kubepods-burstable-pod<uid>.slice` by systemd, with more before it where the kubelet itself
# runs in a container; `….slice:cri-containerd:<id>` where the kubelet is set to systemd and containerd is not.
_POD = re.compile(rf"(?:[^:]*-)?pod(?P<uid>{_UID})(?:\.slice)?(?::(?P<runtime>[a-z-]+):(?P<id>[^:]*))?", re.ASCII)
_CONTAINER = re.compile(r"(?:(?P<runtime>[a-z][a-z-]*)-)?(?P<id>[0-9a-f]{64})(?:\.scope)?", re.ASCII)
_CONTAINER_ID = re.compile(r"[0-9a-f]{64}", re.ASCII)
_KATA = re.compile(r"kata_[0-9a-z_-]+", re.ASCII)
_MONITOR_RUNTIME = "crio-conmon"


class Occupant(StrEnum):
    """What runs in a pod's cgroup."""

    CONTAINER = "container"
    MONITOR = "monitor"
    """The runtime's own process beside a container (`conmon`); never the tenant's work."""
    VIRTUAL_MACHINE = "virtual_machine"
    """Kata's hypervisor: the pod is known, what runs inside is not."""
    POD = "pod"
    """Something else in the pod's cgroup."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupPlace:
    """A pod, and one of its containers, as a cgroup path names them.

    Attributes:
        pod_uid: UID of the pod, with dashes; 32 digits without them for a static pod.
        container_id: id of the container, 64 hexadecimal digits; None where the occupant is none.
    """

    pod_uid: str
    container_id: str | None
    occupant: Occupant


def parse_cgroup(text: str) -> tuple[CgroupPlace, ...]:
    """Reads `/proc/<pid>/cgroup`, of either version of cgroups.

    Of several controllers the first that names a pod counts. Anything in it may be made up by a privileged tenant; it
    is never an error.

    Returns:
        The pods that the path names, the outermost first: more than one where a pod runs a cluster of its own, or
        where a tenant has made cgroups that look like pods. Empty for a process that is in none.
    """
    for line in text[:TEXT_LENGTH_MAX].splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3 and "pod" in parts[2]:
            places = _places(parts[2])
            if places:
                return places
    return ()


def place_that_counts(places: Sequence[CgroupPlace], enclosing: Collection[str] = frozenset()) -> CgroupPlace | None:
    """The place that a process belongs to, out of what its path names: the outermost, for nobody can leave that one.

    Args:
        enclosing: UIDs of the pods that this very node runs in, where it is one of a cluster in a pod; all its
            processes are in those.

    Returns:
        The place; None for a process that is in no pod of this node.
    """
    return next((place for place in places if place.pod_uid not in enclosing), None)


def enclosing_pods(own: Sequence[CgroupPlace]) -> frozenset[str]:
    """UIDs of the pods that this node runs in, by the path of a process that runs in a pod of it, such as this one."""
    return frozenset(place.pod_uid for place in own[:-1])


def _places(path: str) -> tuple[CgroupPlace, ...]:
    places = []
    segments = path.split("/")[:_SEGMENTS_MAX]
    pods = [(number, match) for number, segment in enumerate(segments) if (match := _POD.fullmatch(segment))]
    for place, (number, match) in enumerate(pods):
        end = pods[place + 1][0] if place + 1 < len(pods) else len(segments)
        uid = match["uid"].replace("_", "-")
        if match["id"] is not None:
            below = [f"{match['runtime']}-{match['id']}"]
        else:
            below = segments[number + 1 : end]
        places.append(_place(uid, below))
    return tuple(places)


def _place(pod_uid: str, below: list[str]) -> CgroupPlace:
    for segment in below:
        match = _CONTAINER.fullmatch(segment)
        if match is not None:
            if match["runtime"] == _MONITOR_RUNTIME:
                return CgroupPlace(pod_uid=pod_uid, container_id=None, occupant=Occupant.MONITOR)
            return CgroupPlace(pod_uid=pod_uid, container_id=match["id"], occupant=Occupant.CONTAINER)
        if _KATA.fullmatch(segment):
            return CgroupPlace(pod_uid=pod_uid, container_id=None, occupant=Occupant.VIRTUAL_MACHINE)
    return CgroupPlace(pod_uid=pod_uid, container_id=None, occupant=Occupant.POD)


def container_id_of_status(text: str) -> str | None:
    """The id in a pod's status, `containerd://<id>`, as cgroup paths write it; None where it is none."""
    _, separator, container_id = text.partition("://")
    return container_id if separator and _CONTAINER_ID.fullmatch(container_id) else None
