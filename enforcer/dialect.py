"""How a backend writes seats and cards on the cluster's objects, and the two records that it reads from them.

One adapter per backend in `backends`; the snapshot reads the whole cluster through one. A dialect knows no plan and
changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, runtime_checkable

from enforcer.manifest import Manifest

ObjectKey = tuple[str, str, str]
"""Kind, namespace and name of an object."""


WHOLE_CORE_PERCENT = 100
"""`SeatSlice.core_percent` of a whole card: it keeps every other pod off the card."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeatSlice:
    """One container's share of one card.

    Attributes:
        card: UUID; None where the API does not report which card the kubelet took.
        framebuffer_mib: framebuffer granted, MiB; 0 where the backend grants none in numbers.
        core_percent: compute granted, percent; 0 is no limit, 100 keeps others off.
        priority: the backend's word for the pod's priority, None where none is set.
        node: node of the share where `card` is None, else None: a card says its node.
        resource: extended resource or device class by which the share was asked for where `card` is None, else None.
    """

    container: str
    card: str | None
    framebuffer_mib: int = 0
    core_percent: int = 0
    priority: str | None = None
    node: str | None = None
    resource: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingCard:
    """One card as its node registers it.

    Attributes:
        card: UUID; where the node only counts its cards, `node/resource/number`.
        device_type: type text of the register (such as `NVIDIA-` and the model).
        framebuffer_mib: framebuffer that may be granted, MiB.
        mode: the way in which its node shares it (`hami-core`, `mig`, …), None where the register says none.
        is_healthy: the register does not call it broken.
        closed_by: why no new pod gets it, and by whom; None where nobody closed it.
    """

    card: str
    device_type: str
    node: str
    framebuffer_mib: int
    slices_max: int
    mode: str | None = None
    is_healthy: bool = True
    closed_by: str | None = None

    @property
    def is_counted(self) -> bool:
        """Whether its node only counts its cards, so that nothing says which one it is."""
        return self.card.startswith(f"{self.node}/")


class FixedDialect:
    """A dialect whose names the cluster's configuration does not change."""

    def configured(self, configs: Mapping[ObjectKey, Manifest]) -> Self:
        """The same; see `Dialect`."""
        del configs
        return self


class Dialect(Protocol):
    """Reads one backend's words."""

    @property
    def config_objects(self) -> tuple[ObjectKey, ...]:
        """Objects that hold the backend's configuration, such as its ConfigMaps."""
        ...

    def configured(self, configs: Mapping[ObjectKey, Manifest]) -> Dialect:
        """This dialect with the names that the cluster's own configuration gives.

        Args:
            configs: those of `config_objects` that there are.

        Raises:
            Corrupt: a configuration can't be read.
        """
        ...

    def slices_of_pod(self, pod: Manifest) -> tuple[SeatSlice, ...]:
        """What a pod was granted; empty where it has no card.

        Raises:
            Corrupt: what stands on the pod is not the backend's grammar. Tenants may write there.
        """
        ...

    def cards_of_node(self, node: Manifest) -> tuple[StandingCard, ...]:
        """The cards that a node offers through this backend; empty where it offers none.

        Raises:
            Corrupt: what stands on the node is not the backend's grammar.
        """
        ...


@runtime_checkable
class ListingDialect(Dialect, Protocol):
    """A dialect whose words on pods and nodes mean something only together with other objects, such as claims."""

    @property
    def listed_kinds(self) -> tuple[str, ...]:
        """Kinds of which it needs every object."""
        ...

    @property
    def deniable_kinds(self) -> tuple[str, ...]:
        """Those of them without which it still reads what pods hold, so that nothing but a stage waits for a right."""
        ...

    def with_objects(self, listed: Mapping[str, Sequence[Manifest]], denied: Mapping[str, str]) -> Dialect:
        """This dialect with what those objects say.

        Args:
            listed: objects by kind. Tenants may write some of them; what can't be read of those is left out.
            denied: kinds of `deniable_kinds` that the cluster does not let us list, and why.

        Raises:
            Corrupt: an object that only the backend writes is not its grammar.
        """
        ...
