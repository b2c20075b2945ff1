"""The cards and MIG instances that the driver of this node knows, found by whatever name a source gives them.

Kubelet ids name cards by UUID or number, MIG instances by UUID or by their card's and two numbers, dynamic resource
allocation by a device name of the driver's own. A name that leads nowhere is a card that was lost or replaced, or an
instance that was cut anew since. Pure; called by `exporter.attribution.attributor`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fleet.catalogue import find_model
from fleet.grammars.claims import HAMI_DRIVER, NVIDIA_DRIVER, PublishedDevice
from fleet.grammars.device_ids import DeviceId, DeviceIdForm, IdTruth
from fleet.inventory import Card

_MINOR_DEVICES = {
    NVIDIA_DRIVER: re.compile(r"gpu-(\d{1,3})", re.ASCII),
    HAMI_DRIVER: re.compile(r"hami-gpu-(\d{1,3})", re.ASCII),
}
"""Names that drivers give whole cards, by the kernel's number of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownInstance:
    """One MIG instance.

    Attributes:
        instance: UUID, `MIG-…`; None for one that is reserved and not made yet.
        gpu_instance: the driver's number of the GPU instance; None where it says none.
        compute_instance: the driver's number of the compute instance; None where it says none.
    """

    instance: str | None
    profile: str | None = None
    framebuffer_bytes: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCard:
    """One card.

    Attributes:
        index: the driver's number of it; None where it says none.
        minor: the kernel's number of it (`/dev/nvidia<minor>`); None where the driver says none.
    """

    card: Card
    index: int | None = None
    minor: int | None = None
    instances: tuple[KnownInstance, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """What a name led to.

    Attributes:
        instance: the MIG instance of it; None for the whole card.
    """

    card: Card
    instance: KnownInstance | None = None

    @property
    def framebuffer_bytes(self) -> int | None:
        """Framebuffer of the unit, bytes; None where nobody says."""
        if self.instance is None:
            return self.card.framebuffer_bytes
        return self.instance.framebuffer_bytes or self._of_catalogue()[0]

    @property
    def compute_ratio(self) -> float | None:
        """Share of the card's compute that the unit has, 0-1; None where nobody says."""
        return 1.0 if self.instance is None else self._of_catalogue()[1]

    def _of_catalogue(self) -> tuple[int | None, float | None]:
        model = find_model(self.card.card_model)
        if model is None or model.mig is None or self.instance is None:
            return None, None
        for profile in model.mig.profiles:
            if profile.name == self.instance.profile:
                return profile.framebuffer_bytes, profile.compute_slices / model.mig.compute_slices
        return None, None


class KnownCards:
    """Finds cards and instances by name.

    Args:
        cards: what the driver knows; where two have the same name, the first counts.
    """

    def __init__(self, cards: Iterable[KnownCard]) -> None:
        self._units: dict[str, Unit] = {}
        self._minors: dict[int, Unit] = {}
        for known in cards:
            whole = Unit(card=known.card)
            self._units.setdefault(str(known.card.card), whole)
            if known.index is not None:
                self._units.setdefault(f"nvidia{known.index}", whole)
            if known.minor is not None:
                self._minors.setdefault(known.minor, whole)
            for instance in known.instances:
                unit = Unit(card=known.card, instance=instance)
                for name in _names_of(instance, known):
                    self._units.setdefault(name, unit)

    def of_name(self, name: str) -> Unit | None:
        """The card or instance with this UUID; None for an unknown one."""
        return self._units.get(name)

    def of_index(self, index: int) -> Unit | None:
        """The card with this number; None for an unknown one."""
        return self._units.get(f"nvidia{index}")

    def of_device(self, device: DeviceId) -> Unit | None:
        """The card or instance that a kubelet id leads to; None for an unknown one, and for ids that only count."""
        unit = device.unit
        if unit is None:
            return None
        if device.form is DeviceIdForm.GKE and device.truth is IdTruth.INDEX and device.index is not None:
            # GKE names cards after their device files.
            return self._minors.get(device.index) or self._units.get(unit)
        return self._units.get(unit)

    def of_published(self, driver: str, device: str, published: PublishedDevice | None) -> Unit | None:
        """The card or instance behind a device of dynamic resource allocation; None for an unknown one.

        Args:
            published: what the driver publishes of it; None where that could not be read. NVIDIA's and HAMi's names
                tell whole cards by themselves.
        """
        if published is not None and published.uuid is not None:
            return self._units.get(published.uuid)
        if published is not None and published.parent is not None:
            # An instance that is made when a claim is prepared: its card and size are known, and not what it is called.
            parent = self._units.get(published.parent)
            size = KnownInstance(
                instance=None, profile=published.profile, framebuffer_bytes=published.framebuffer_bytes
            )
            return None if parent is None else Unit(card=parent.card, instance=size)
        pattern = _MINOR_DEVICES.get(driver)
        match = None if pattern is None else pattern.fullmatch(device)
        return self._minors.get(int(match[1])) if match is not None else None


def _names_of(instance: KnownInstance, known: KnownCard) -> list[str]:
    names = [] if instance.instance is None else [instance.instance]
    if instance.gpu_instance is not None:
        if instance.compute_instance is not None:
            names.append(f"MIG-{known.card.card}/{instance.gpu_instance}/{instance.compute_instance}")
        names += [
            f"nvidia{number}/gi{instance.gpu_instance}" for number in (known.minor, known.index) if number is not None
        ]
    return names
