"""Host memory that is left on a node, where framebuffer goes that leaves a card. Called by node agent and probe.

The driver moves framebuffer into pages of the node, and charges them to the control group of the pod's process where
the kernel lets it (NVIDIA/open-gpu-kernel-modules:kernel-open/nvidia-uvm/uvm_linux.h). So a limit of a control group
may bind before the node has run out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CGROUP_FOLDER = Path("/sys/fs/cgroup")
_LIMITS = (
    ("memory.max", "memory.current", ("inactive_file", "active_file")),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")),
)
"""Limit of a group's memory, what is taken of it, and what of that is page cache, which the kernel takes back, by
either version of cgroups (torvalds/linux:Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst). Cache that is
read again and again is active, and taken back as well (kubernetes/kubernetes#43916)."""
PODS_GROUPS = ("kubepods.slice", "kubepods", "memory/kubepods.slice", "memory/kubepods")
"""Group of all pods, by systemd or cgroupfs and either version (kubernetes:pkg/kubelet/cm/cgroup_manager_linux.go)."""
OWN_GROUPS = ("", "memory")
"""A container's own group, as it sees it, by either version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostMemory:
    """What a node or a control group has."""

    total_bytes: int
    available_bytes: int


def host_memory(
    proc_folder: Path, groups: Iterable[str], cgroup_folder: Path = CGROUP_FOLDER
) -> tuple[HostMemory, ...]:
    """The node's memory, then that of each of these groups which has a limit.

    Args:
        proc_folder: `/proc`, whose `meminfo` says what the node has left (`MemAvailable`, proc_meminfo(5)).
        groups: folders below `cgroup_folder`.

    Returns:
        Nothing where the node does not say what it has left.
    """
    lines = (line.partition(":") for line in _text(proc_folder / "meminfo").splitlines())
    sizes = {name: _number(value.removesuffix("kB")) for name, _, value in lines}
    available = sizes.get("MemAvailable")
    if available is None:
        return ()
    # Of a node that does not say its size nothing is known but that it has what is left.
    total = max(available, sizes.get("MemTotal") or 0)
    found = [HostMemory(total_bytes=total * 1024, available_bytes=available * 1024)]
    for group in groups:
        for limit, taken, cached in _LIMITS:
            folder = cgroup_folder / group
            # Without a limit version 2 says `max`.
            most, used = _number(_text(folder / limit)), _number(_text(folder / taken))
            if most is not None and used is not None:
                used -= _figures(_text(folder / "memory.stat"), cached)
                found.append(HostMemory(total_bytes=most, available_bytes=max(0, most - max(0, used))))
    return tuple(found)


def _figures(text: str, names: Iterable[str]) -> int:
    """Sum of lines of `memory.stat`; one that is not there is 0, so that nothing counts as taken back."""
    rows = dict(row for row in map(str.split, text.splitlines()) if len(row) == 2)
    return sum(_number(rows.get(name, "")) or 0 for name in names)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _number(text: str) -> int | None:
    found = text.strip()
    return int(found) if found.isascii() and found.isdecimal() else None
