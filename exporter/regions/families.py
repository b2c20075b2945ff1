"""What shared regions say beyond the stored measures, as named metrics.

Used framebuffer and duty cycle of a slice travel as measures with the node's other figures; here stand limits, parts of
the usage, priority and state, and which regions are not to be trusted, and why. Handed to
`exporter.exposition.rendering`; the catalogue of metrics is made from `FAMILIES`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from exporter.families import CataloguedFamily, Family, gauge
from exporter.regions.columns import ContainerColumns, HamiReading, SliceColumns
from exporter.regions.decode import DutyDoubt
from fleet.regions.doubts import doubts_of
from fleet.regions.layouts import LayoutName
from fleet.schema import SLICE_IDENTITY

CONTAINER_LABELS = ("cluster", "namespace", "pod", "container", "node", "pod_uid")
"""Labels of a container; namespace and pod are empty where nobody knows whose the UID is."""
SLICE_LABELS = (*SLICE_IDENTITY, "pod_uid")
"""Labels of a container on a card; the model is empty where nobody knows the card."""

Labels = tuple[tuple[str, ...], ...]


def _of_slice(name: str, help_text: str) -> CataloguedFamily:
    return gauge(f"gputide_slice_{name}", help_text, SLICE_LABELS)


def _of_container(name: str, help_text: str) -> CataloguedFamily:
    return gauge(f"gputide_container_{name}", help_text, CONTAINER_LABELS)


_COUNTED = "Framebuffer that HAMi's library counted for a container on a card, the part of"
_SLICE = {
    "framebuffer_limit": _of_slice("framebuffer_limit_bytes", "Framebuffer limit of a container on a card, bytes."),
    "framebuffer_context": _of_slice("framebuffer_context_bytes", f"{_COUNTED} contexts, bytes."),
    "framebuffer_module": _of_slice("framebuffer_module_bytes", f"{_COUNTED} loaded code, bytes."),
    "framebuffer_data": _of_slice("framebuffer_data_bytes", f"{_COUNTED} data, bytes."),
    "framebuffer_of_driver": _of_slice(
        "framebuffer_of_driver_bytes",
        "Framebuffer that the driver counts for those processes of a container on a card that HAMi's library found.",
    ),
    "compute_limit": _of_slice("compute_limit_ratio", "Compute limit of a container on a card, 0-1; 1 is none."),
}
"""By column of `SliceColumns`."""
_DUTY_TRUSTED = gauge(
    "gputide_slice_duty_cycle_trusted",
    "1 where a container's duty cycle on a card can be believed, 0 with the reason where it can't and is left out.",
    (*SLICE_LABELS, "reason"),
)
_SINCE_LAST_KERNEL = _of_container(
    "since_last_kernel_seconds",
    "Seconds since a container launched its last kernel or started a process; CUDA graphs don't count.",
)
_CONTAINER = {
    "priority": _of_container("priority", "Priority of a container in HAMi's sense; 0 is high."),
    "is_blocked": _of_container(
        "blocked", "1 where a container may launch no kernel, because one of higher priority is at work, else 0."
    ),
    "is_recently_active": _of_container(
        "recently_active",
        "1 where a container launched a kernel within some ten seconds, as far as its library gates launches, else 0.",
    ),
    "is_compute_limited": _of_container(
        "compute_limited", "1 where a container's compute limit is switched on, else 0."
    ),
    "processes": _of_container("processes", "Processes of a container that called CUDA."),
    "suspended": _of_container("suspended_processes", "Processes of a container that are paused."),
}
"""By column of `ContainerColumns`."""
_REGION_TRUSTED = gauge(
    "gputide_region_trusted",
    "1 where a container's shared region can be believed, 0 for each reason not to; what is in doubt is left out.",
    (*CONTAINER_LABELS, "layout", "reason"),
)
_REGIONS = gauge("gputide_regions", "Shared regions of a node by layout.", ("cluster", "node", "layout"))
_NODE = (
    gauge(
        "gputide_containers_without_region",
        "Containers with a directory for a shared region and none in it: they never called CUDA.",
        ("cluster", "node"),
    ),
    gauge(
        "gputide_containers_with_several_regions",
        "Containers with more than one file that could be the region; the youngest that looks right is read.",
        ("cluster", "node"),
    ),
    gauge(
        "gputide_region_foreign_directories",
        "Entries beside the containers' directories that are no one container's, or are too many.",
        ("cluster", "node"),
    ),
)

FAMILIES: tuple[CataloguedFamily, ...] = (
    *_SLICE.values(), _DUTY_TRUSTED, *_CONTAINER.values(), _SINCE_LAST_KERNEL, _REGION_TRUSTED, _REGIONS, *_NODE,
)  # fmt: skip
"""Every family, in the order in which they are made."""

_DUTY_REASONS = {
    DutyDoubt.MEASURED: "",
    DutyDoubt.NOT_RECORDED: "not_recorded",
    DutyDoubt.NO_HOST_PID: "no_host_pid",
    DutyDoubt.IMPOSSIBLE: "impossible",
    DutyDoubt.ZERO_WHILE_CARD_BUSY: "zero_while_card_busy",
}
"""`BETWEEN_REFILLS` passes by itself and is no reason for distrust."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeNames:
    """Names that regions don't know.

    Attributes:
        pods: namespace and name of a pod by its UID.
    """

    pods: Mapping[str, tuple[str, str]]
    card_models: Mapping[str, str]


class RegionFamilies:
    """Names the figures of a node; keeps the labels from reading to reading."""

    def __init__(self, *, cluster: str, node: str) -> None:
        self._cluster = cluster
        self._node = node
        self._reading: HamiReading | None = None
        self._names: NodeNames | None = None
        self._of_containers: Labels = ()
        self._of_slices: Labels = ()

    def of(self, reading: HamiReading, names: NodeNames) -> tuple[Family, ...]:
        """Every family of one reading, in the order of `FAMILIES`.

        Args:
            names: names of pods and cards; another object where anything in it changed.
        """
        self._label(reading, names)
        slices, containers = reading.slices, reading.containers
        since_last_kernel = np.maximum(reading.at_seconds - containers.last_kernel_at, 0.0)
        return (
            *(family.of(self._of_slices, getattr(slices, column)) for column, family in _SLICE.items()),
            _duty_trust(slices, self._of_slices),
            *(family.of(self._of_containers, getattr(containers, column)) for column, family in _CONTAINER.items()),
            _SINCE_LAST_KERNEL.of(self._of_containers, since_last_kernel),
            _region_trust(containers, self._of_containers),
            *self._counts(reading),
        )

    def _label(self, reading: HamiReading, names: NodeNames) -> None:
        before = self._reading
        has_new_names = names is not self._names
        has_new_containers = before is None or reading.containers.keys is not before.containers.keys
        has_new_slices = before is None or reading.slices.keys is not before.slices.keys
        self._reading, self._names = reading, names
        if has_new_containers or has_new_names:
            self._of_containers = tuple(
                (self._cluster, *names.pods.get(key.pod_uid, ("", "")), key.container, self._node, key.pod_uid)
                for key in reading.containers.keys
            )
        if has_new_containers or has_new_slices or has_new_names:
            rows = reading.slices.containers.tolist()
            self._of_slices = tuple(
                (*container[:5], key.card, names.card_models.get(key.card, ""), container[5])
                for key, container in zip(reading.slices.keys, (self._of_containers[row] for row in rows), strict=True)
            )

    def _counts(self, reading: HamiReading) -> tuple[Family, ...]:
        containers = reading.containers
        layouts = Counter(containers.layouts)
        counts = (
            np.count_nonzero(~containers.has_region),
            np.count_nonzero(containers.files > 1),
            reading.foreign_directories,
        )
        place = (self._cluster, self._node)
        return (
            _REGIONS.of(
                tuple((*place, layout.value) for layout in LayoutName),
                np.array([layouts[layout] for layout in LayoutName], dtype=np.float64),
            ),
            *(
                family.of((place,), np.array([count], dtype=np.float64))
                for family, count in zip(_NODE, counts, strict=True)
            ),
        )


def _duty_trust(slices: SliceColumns, labels: Labels) -> Family:
    doubts = slices.duty_doubt.tolist()
    kept = [(row, _DUTY_REASONS[doubt]) for row, doubt in enumerate(doubts) if doubt in _DUTY_REASONS]
    return _DUTY_TRUSTED.of(
        tuple((*labels[row], reason) for row, reason in kept),
        np.array([not reason for _, reason in kept], dtype=np.float64),
    )


def _region_trust(containers: ContainerColumns, labels: Labels) -> Family:
    """One series per region, or one per reason where there is doubt."""
    told: list[tuple[str, ...]] = []
    rows = zip(labels, containers.layouts, containers.doubts.tolist(), containers.has_region.tolist(), strict=True)
    for label, layout, doubts, has_region in rows:
        if has_region:
            reasons = doubts_of(doubts) or ("",)
            told += [(*label, layout or "", reason) for reason in reasons]
    return _REGION_TRUSTED.of(tuple(told), np.array([not label[-1] for label in told], dtype=np.float64))
