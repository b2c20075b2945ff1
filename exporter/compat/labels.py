"""The labels in which other exporters name cards and slices.

Called by `exporter.compat.translation`, one object per exporter; label tuples are kept while nothing changes.

Sources: NVIDIA/dcgm-exporter:internal/pkg/transformation/kubernetes.go and internal/pkg/appconfig/const.go,
Project-HAMi/HAMi:cmd/vGPUmonitor/metrics.go and cmd/scheduler/metrics.go (all with `zone="vGPU"`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from exporter.collector import Snapshot
from exporter.compat.names import WRITTEN_LABELS, NameSource
from exporter.families import Family
from fleet.inventory import Grant

Labels = tuple[str, ...]

HARDWARE_FAMILY = "gputide_card_hardware_info"
DRIVER_FAMILY = "gputide_driver_info"
INSTANCE_FAMILY = "gputide_slice_mig_info"
"""Families in which a reading may name boards, the driver, and who was granted which MIG instance."""

_TENANT = ("namespace", "pod", "container")
_NOT_TOLD = ("", "", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subjects:
    """Whom the series of a column speak of: one row per series.

    Attributes:
        rows: the parts of each series; the same object while nothing changes.
        constant: labels that all of them have besides.
    """

    parts: Labels
    rows: tuple[Labels, ...]
    constant: tuple[tuple[str, str], ...] = ()


class CompatLabels:
    """Makes the labels of one exporter."""

    def __init__(self, source: NameSource) -> None:
        self._source = source
        self._spelling = WRITTEN_LABELS[source]
        self._boards = _Kept[tuple[object, ...], Mapping[str, Labels]]()
        self._tenants = _Kept[tuple[object, ...], Mapping[Labels, Labels]]()
        self._driver = ""
        self._made: dict[tuple[Labels, Labels, int], tuple[tuple[object, ...], tuple[Labels, ...]]] = {}

    def see(self, snapshot: Snapshot) -> None:
        """Takes what a snapshot says of boards and tenants; `of` speaks of this snapshot from now on."""
        families = {family.name: family for family in snapshot.families if family.name in _ASKED}
        hardware, driver = families.get(HARDWARE_FAMILY), families.get(DRIVER_FAMILY)
        instances = families.get(INSTANCE_FAMILY)
        told = tuple(family.labels for family in (hardware, driver) if family is not None)
        self._boards.of(told, lambda: _boards(hardware))
        self._driver = _driver(driver)
        granted = (snapshot.grants, None if instances is None else instances.labels)
        self._tenants.of(granted, lambda: {**_only_tenants(snapshot.grants), **_tenants_of_instances(instances)})

    def has(self, part: str) -> bool:
        """Whether this exporter has a label for a part of an identity."""
        return part in self._spelling

    def names(self, subjects: Subjects) -> Labels:
        """The label names for subjects."""
        spelled = tuple(self._spelling[part] for part in subjects.parts)
        constant = tuple(name for name, _ in subjects.constant)
        if "pod" in subjects.parts:
            return (*spelled, *constant, *self._constant_names())
        if self._source is NameSource.DCGM:
            tenant = (self._spelling[part] for part in _TENANT)
            return (*spelled, *constant, "gpu", "pci_bus_id", "device", "DCGM_FI_DRIVER_VERSION", *tenant)
        return (*spelled, *constant, _INDEX[self._source], *self._constant_names())

    def of(self, subjects: Subjects) -> tuple[Labels, ...]:
        """The labels of subjects, in the order of `names`."""
        constant = tuple(text for _, text in subjects.constant)
        key = (subjects.parts, constant, id(subjects.rows))
        made_of = (subjects.rows, self._boards.value, self._tenants.value, self._driver)
        known = self._made.get(key)
        if known is None or any(one is not other for one, other in zip(known[0], made_of, strict=True)):
            if len(self._made) > _KEPT_MAX:
                self._made.clear()
            rows = tuple(self._row(subjects.parts, row, constant) for row in subjects.rows)
            known = self._made[key] = made_of, rows
        return known[1]

    def _row(self, parts: Labels, row: Labels, constant: Labels) -> Labels:
        if "pod" in parts:
            return (*row, *constant, *self._constants())
        card = row[parts.index("card")]
        index, bus, minor = (self._boards.value or {}).get(card, _NOT_TOLD)
        if self._source is NameSource.DCGM:
            device = f"nvidia{minor}" if minor else ""
            sits_on = (card, row[parts.index("gpu_instance")]) if "gpu_instance" in parts else (card,)
            tenant = (self._tenants.value or {}).get(sits_on, _NOT_TOLD)
            return (*row, *constant, index, bus, device, self._driver, *tenant)
        # HAMi writes the vendor before the model, also where the model begins with it.
        shown = (f"NVIDIA-{text}" if part == "card_model" else text for part, text in zip(parts, row, strict=True))
        return (*shown, *constant, index, *self._constants())

    def _constant_names(self) -> Labels:
        return () if self._source is NameSource.DCGM else ("zone",)

    def _constants(self) -> Labels:
        return () if self._source is NameSource.DCGM else ("vGPU",)


_ASKED = frozenset({HARDWARE_FAMILY, DRIVER_FAMILY, INSTANCE_FAMILY})
_INDEX = {NameSource.HAMI: "device_index", NameSource.HAMI_LEGACY: "deviceidx"}
_KEPT_MAX = 64
"""Columns share a handful of label tuples; more are leftovers of former snapshots."""

Key = TypeVar("Key")
Value = TypeVar("Value")


class _Kept(Generic[Key, Value]):
    """A value that is made anew only when what it is made of is another object."""

    def __init__(self) -> None:
        self._made_of: Key | None = None
        self.value: Value | None = None

    def of(self, made_of: Key, make: Callable[[], Value]) -> None:
        if self.value is None or (made_of is not self._made_of and made_of != self._made_of):
            self.value = make()
        self._made_of = made_of


def _boards(hardware: Family | None) -> Mapping[str, Labels]:
    """Per card its index, PCI address and minor number."""
    if hardware is None:
        return {}
    places = [hardware.label_names.index(name) for name in ("card", "index", "pci_bus_id", "minor_number")]
    rows = (tuple(labels[place] for place in places) for labels in hardware.labels)
    return {card: (index, bus, minor) for card, index, bus, minor in rows}


def _driver(driver: Family | None) -> str:
    if driver is None or not driver.labels:
        return ""
    return driver.labels[0][driver.label_names.index("driver")]


def _only_tenants(grants: tuple[Grant, ...]) -> dict[Labels, Labels]:
    """The tenant of each card that has exactly one, by card."""
    tenants = Counter(grant.card for grant in grants)
    return {
        (str(grant.card),): (grant.namespace, grant.pod, grant.container)
        for grant in grants
        # Who has one MIG instance does not do what the whole card does, even alone.
        if tenants[grant.card] == 1 and grant.mig_profile is None
    }


def _tenants_of_instances(instances: Family | None) -> dict[Labels, Labels]:
    """The tenant of each GPU instance that has exactly one, by card and number of the instance."""
    if instances is None:
        return {}
    places = {name: instances.label_names.index(name) for name in (*_TENANT, "card", "gpu_instance")}
    told = {
        (tuple(row[places[name]] for name in ("card", "gpu_instance")), tuple(row[places[name]] for name in _TENANT))
        for row in instances.labels
    }
    tenants = Counter(instance for instance, _ in told)
    return {instance: tenant for instance, tenant in told if tenants[instance] == 1}
