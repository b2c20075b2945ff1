"""What a sharing system is to a simulated cluster: how its tenants ask, what it admits, places, writes and registers.

One implementation a family, registered in `systems`. Which card a pod really has stands in the cluster's own books;
what the API shows of it is the system's to say.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from enforcer.dialect import WHOLE_CORE_PERCENT, ObjectKey
from enforcer.manifest import Manifest
from enforcer.simulated.books import Allocation, CardBook, NodeBook, PodAsk, Unplaced
from enforcer.simulated.placing import Rules, place_by
from fleet.capabilities.capability import Capabilities, ComputeIsolation
from fleet.inventory import Grant, Priority
from fleet.units import parse_quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantWords:
    """How a tenant asks for the grants of a recorded pod.

    Attributes:
        annotations: of its pods.
        labels: of its pods and of their owner.
        spec: fields of the pod's specification beside its containers.
        containers: fields of each container, by its name: resources and, where needed, variables.
    """

    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, object] = field(default_factory=dict)
    containers: Mapping[str, Manifest] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSharing:
    """How a node shares its cards.

    Attributes:
        scaling: factor of framebuffer that may be granted.
    """

    slices_max: int
    scaling: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWords:
    """What a plugin writes on a node."""

    annotations: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, str] = field(default_factory=dict)


class SharingSystem(ABC):
    """One sharing system; what is not abstract holds for one without a webhook that looks at cards alone.

    Attributes:
        configs: the objects that its installation holds, as they are at first.
        rules: how its scheduler chooses.
        names_cards: whether a pod may name its card, so that one made anew comes back to the card that it had.
        may_run: whether the system itself lets a pod go to a node; None where it looks at cards alone.
        wish_path: JSON path in a pod of what `held` reads; None where it reads nothing.
    """

    capabilities: Capabilities
    configs: tuple[Manifest, ...] = ()
    rules: Rules
    names_cards: bool = False
    may_run: Callable[[Manifest, Manifest], bool] | None = None
    wish_path: str | None = None

    @abstractmethod
    def tenant(self, grants: Sequence[Grant], models: Sequence[str]) -> TenantWords:
        """How a tenant asks for the recorded grants of one pod.

        Args:
            models: every card model of the cluster.
        """

    def mutate(self, pod: Manifest) -> Manifest:
        """What its webhook makes of a new pod.

        Raises:
            Refused: the webhook denies it.
        """
        return pod

    @abstractmethod
    def ask_of(self, pod: Manifest) -> PodAsk:
        """What an admitted pod asks of the scheduler."""

    def place(
        self,
        ask: PodAsk,
        cards: Iterable[CardBook],
        nodes: dict[str, NodeBook],
        closed: Collection[str] = (),
        allowed: Collection[str] | None = None,
    ) -> tuple[Allocation, ...] | Unplaced:
        """Choose cards; see `placing.place_by`."""
        return place_by(self.rules, ask, cards, nodes, closed, allowed)

    def marks(self, pod: Manifest, allocations: Sequence[Allocation], cards: Sequence[CardBook]) -> Manifest:
        """Metadata (annotations and labels) that scheduler and plugin write on a pod.

        Args:
            cards: those of its node, in the order of the register.
        """
        del pod, allocations, cards
        return {}

    def held(self, wish: str | None, core_percent: int) -> tuple[bool, Priority | None]:
        """Whether a share's compute is a hard limit, and which priority it has on its card.

        Args:
            wish: what stands at `wish_path`, as text or JSON.

        Returns:
            The priority None where the system knows none, so that nobody gives way on its account.
        """
        del wish
        return self.capabilities.compute_isolation is not ComputeIsolation.NONE and is_limited(core_percent), None

    def kept_mib(self, granted_mib: int, scaling: float) -> float | None:
        """What of a grant stays on its card while its pod rests and others need the card; None where all of it does.

        Args:
            scaling: factor of its node.
        """
        del granted_mib, scaling
        return None

    def sharing(self, configs: Mapping[ObjectKey, Manifest], node: Manifest) -> NodeSharing:
        """How a node shares its cards by what is configured.

        Raises:
            Refused: the plugin would not start with that.
        """
        del configs, node
        return NodeSharing(slices_max=self.capabilities.slices_per_card_max)

    @abstractmethod
    def node(self, cards: Sequence[CardBook]) -> NodeWords:
        """What its plugin writes on the node of these cards."""


def is_limited(core_percent: int) -> bool:
    """Whether a share of compute is a part of a card, to which a pod can be held."""
    return 0 < core_percent < WHOLE_CORE_PERCENT


def host_request(pod: Manifest) -> tuple[float, int]:
    """CPU cores and bytes of memory that a pod asks for; limits count where it requests nothing."""
    cores, memory = Decimal(0), Decimal(0)
    for container in pod["spec"]["containers"]:
        resources = container.get("resources", {})
        asked = {**resources.get("limits", {}), **resources.get("requests", {})}
        cores += parse_quantity(str(asked.get("cpu", "0")))
        memory += parse_quantity(str(asked.get("memory", "0")))
    return float(cores), int(memory)


def by_container(grants: Iterable[Grant]) -> dict[str, list[Grant]]:
    """Recorded grants of one pod by container, sorted by its name."""
    found: dict[str, list[Grant]] = {}
    for grant in sorted(grants, key=lambda grant: grant.container):
        found.setdefault(grant.container, []).append(grant)
    return found
