"""What a way of sharing a card can be said to enforce: the form of a capability record.

A claim of a backend is written down only as far as its source code (or a measurement) supports it. The records stand
one family a file in `fleet.capability_*`, the list of all in `fleet.capabilities.register`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from fleet.units import MIB

OPEN_BYTES_MIN = 2**30
"""Framebuffer that a lent card may register beyond what its pods are granted is less: nobody asks for so little."""
SHARED_PERCENT_MAX = 99
"""Most compute of a pod that shares a card, percent: all of it would keep every other pod off the card."""


class FramebufferIsolation(StrEnum):
    """What stops one pod from taking another's framebuffer on the same card."""

    NONE = "none"
    ACCOUNTING = "accounting"
    """The scheduler counts; nothing stops a process."""
    INTERCEPTED = "intercepted"
    """Each allocation through the driver's interface is checked in the process; a process can evade it on purpose."""
    DRIVER = "driver"
    """The driver itself refuses what goes beyond the limit that a container was made with."""
    HARDWARE = "hardware"


class ComputeIsolation(StrEnum):
    """What stops one pod from taking another's compute on the same card."""

    NONE = "none"
    REACTIVE = "reactive"
    """Launches are held back after too much was used: right on average over seconds, not at any moment."""
    HARD = "hard"


class CorePolicy(StrEnum):
    """What a pod may do with compute beyond its share."""

    HARD = "hard"
    """Never more than its share."""
    BURST = "burst"
    """More while others leave it unused."""


class Oversubscription(StrEnum):
    """What happens when more framebuffer is granted than the card has."""

    NONE = "none"
    """It can't be granted."""
    ACCOUNTING_ONLY = "accounting_only"
    """It is granted; when the card is physically full, the next allocation fails."""
    SPILL = "spill"
    """What does not fit moves to host memory."""


class Granularity(StrEnum):
    """The smallest thing whose sharing mode can differ from its neighbour's."""

    CARD = "card"
    NODE = "node"
    POD = "pod"


class Division(StrEnum):
    """Who says how large the slices of a card are, and which of them lie together."""

    FREE = "free"
    """The plan: every slice has a size of its own, on the card that it names."""
    REPLICAS = "replicas"
    """Nobody: all cards of a node are handed out equally often, and any of its pods may meet on a card."""
    EQUAL_PARTS = "equal_parts"
    """The node: as replicas, each of which is held to its equal part of the card."""
    SCHEDULER = "scheduler"
    """The plan says the size of every slice and its node; the scheduler chooses the card, by framebuffer alone, and
    fills one before it opens another: any slices of the node that fit a card may meet there."""
    CLAIM = "claim"
    """The claim: a template names one, so all pods of a workload that shares are on one card, in one namespace."""
    TEMPLATE = "template"
    """The plan, but a template names several cards: any pod of its workload may get an instance of any of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedBy:
    """A real scheduler or device plugin that took what is rendered for a backend.

    Attributes:
        what: the program, and its version where the record holds for one.
        where: the test in which it did (`file::name`), or in words how it was tried.
    """

    what: str
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where facts of a record were read.

    Attributes:
        where: `repository:path`, `repository#issue`, `repository@commit`, or a published description.
        facts: names of the record's fields, with spaces between.
    """

    where: str
    facts: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedLending:
    """How framebuffer was lent on a card while a probe looked.

    Attributes:
        scaling_max: what was allocated on the card / its framebuffer; nobody knows what more than that leads to.
        kept_ratio: share of the card that what rests kept for itself, at most, 0-1. The context is part of it, and each
            process has its own, so every pod that rests counts all of it.
    """

    scaling_max: float
    kept_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What one backend enforces; what a record leaves out is the least that can be said.

    Attributes:
        backend: its name, as in the setting `enforcer.backend`.
        framebuffer_isolation: what keeps slices within their framebuffer.
        compute_isolation: what keeps slices within their compute.
        core_policies: policies that a pod can be given; empty where compute can't be limited.
        priority_levels: how many levels it distinguishes; 1 is no priority.
        oversubscription: what granting more framebuffer than there is leads to.
        lends_framebuffer: of a grant only its part divided by the node's scaling factor is held for good; the rest is
            on the card while its pod works, and moves to host memory when others need the card. False where nobody
            knows what stays there, so that nothing may be planned with it.
        claims_lending: its authors say that it lends, and nothing but a probe can show it.
        probed_lending: what a probe saw of that on a backend of which nobody knows it; None where none did.
        spill_bytes_per_second: slowest measured rate at which framebuffer moves; None where nobody measured it.
        shows_limit: a process that asks how much memory there is sees its limit as the total; False where it may see
            the card.
        live_framebuffer_change: the limit of a running pod can be changed; the scheduler's books never follow.
        granularity: the smallest unit of its sharing mode.
        slices_per_card_max: most slices of one card by default.
        framebuffer_step_bytes: grants are multiples of this; None where framebuffer can't be divided.
        card_step_bytes: of a card's framebuffer multiples of this can be granted to pods that share it; the rest is
            nobody's.
        fault_isolation: a fault of one pod (such as an illegal access) leaves the others on the card alone.
        cuts_by_mig: slices are MIG instances of fixed profiles, cut while their card is empty.
        gates_priority_by_cores: low priority is held back only where all pods of the card have a core limit (see
            `fleet.priority_holds`).
        division: how a card's slices come by their size and their neighbours.
        admits_pods: an admission step gives single pods what their template does not say. Without it all replicas
            change at once and alike, and pods of a Job, whose template is fixed, not at all.
        bursts_by_annotation: a pod may use more than its share only by an annotation of its own, which the pods of a
            Notebook do not get.
        grants_by_annotation: a share is asked for by annotations of the pod alone, so the pods of a Notebook get none.
        adds_up_cores: pods that may use more than their share are granted one all the same, and all shares on a card
            are counted up to 100 %. Without it such a pod is granted none: nothing limits its compute.
        one_size_per_node: its books know one size of card per node, so a node of several models shares none.
        empties_node: all cards of a node must be empty while one of them is shared in another way.
        framebuffer_min_bytes: smallest grant.
        node_policy_label: label of a node that says which core policy all its pods have; None where every pod has its
            own.
        node_policies: values of that label and their policies, the first of which counts where the label is missing; on
            a node with any other value nobody shares.
        refuses: kinds of advice (the words of `fleet.decisions.RecommendationKind`) that can't be carried out with it,
            each with the fact that stands against it; every other kind is rendered.
        partly: kinds that are carried out only in part, each with what does not hold.
        source: where each fact was read.
        since: oldest version that the record holds for; None for every one.
        known_to: newest version (major and minor) whose facts were read; None where versions say nothing.
        announced: newer versions of which release notes alone were read, each with what they say.
        images: how repositories of its images end, by whose tags the running version is seen.
        webhook: name of its own admission webhook, by which new pods come to its scheduler; None where it needs none.
        accepted_by: real programs that took what is rendered for it; empty where only doubles of ours did.
        recorded: real schedulers whose recorded decisions the double in their place agrees with, and in which test.
    """

    backend: str
    framebuffer_isolation: FramebufferIsolation
    compute_isolation: ComputeIsolation
    core_policies: tuple[CorePolicy, ...]
    granularity: Granularity
    slices_per_card_max: int
    framebuffer_step_bytes: int | None
    source: tuple[Source, ...]
    priority_levels: int = 1
    oversubscription: Oversubscription = Oversubscription.NONE
    lends_framebuffer: bool = False
    claims_lending: bool = False
    probed_lending: ProbedLending | None = None
    spill_bytes_per_second: float | None = None
    shows_limit: bool = True
    live_framebuffer_change: bool = False
    fault_isolation: bool = False
    cuts_by_mig: bool = False
    gates_priority_by_cores: bool = False
    division: Division = Division.FREE
    admits_pods: bool = True
    bursts_by_annotation: bool = False
    grants_by_annotation: bool = False
    adds_up_cores: bool = False
    one_size_per_node: bool = False
    empties_node: bool = False
    framebuffer_min_bytes: int = 0
    card_step_bytes: int = MIB
    node_policy_label: str | None = None
    node_policies: tuple[tuple[str, CorePolicy], ...] = ()
    refuses: tuple[tuple[str, str], ...] = ()
    partly: tuple[tuple[str, str], ...] = ()
    since: str | None = None
    known_to: str | None = None
    announced: tuple[tuple[str, str], ...] = ()
    images: tuple[str, ...] = ()
    webhook: str | None = None
    accepted_by: tuple[AcceptedBy, ...] = ()
    recorded: tuple[AcceptedBy, ...] = ()

    @property
    def is_experimental(self) -> bool:
        """Whether no real scheduler or device plugin has ever taken what is rendered for it."""
        return not self.accepted_by

    @property
    def holds_limits(self) -> bool:
        """Whether it keeps pods of one card within their framebuffer and their compute."""
        return self.holds_framebuffer and self.compute_isolation is not ComputeIsolation.NONE

    @property
    def holds_framebuffer(self) -> bool:
        """Whether it keeps pods of one card within their framebuffer."""
        return self.framebuffer_isolation not in (FramebufferIsolation.NONE, FramebufferIsolation.ACCOUNTING)

    @property
    def can_share(self) -> bool:
        """Whether it can put more than one pod on a card at all."""
        return self.slices_per_card_max > 1

    @property
    def can_lend(self) -> bool:
        """Whether a pod may use framebuffer of its card while those that it was granted to as well rest."""
        probed = self.probed_lending
        lends = self.lends_framebuffer or (probed is not None and probed.kept_ratio < 1.0)
        return self.oversubscription is Oversubscription.SPILL and lends

    @property
    def may_spill(self) -> bool:
        """Whether framebuffer may lie in host memory: it is known to move there, or a probe may have shown it."""
        return self.oversubscription is Oversubscription.SPILL or self.claims_lending

    @property
    def may_have_lent(self) -> bool:
        """Whether pods that are granted more than their card has may hold more than monitors show.

        That outlasts what a plan may count on: a probe's result goes out of date, and pods that lend keep lending.
        """
        is_known = self.lends_framebuffer or self.probed_lending is not None
        return is_known or self.oversubscription is not Oversubscription.ACCOUNTING_ONLY

    def kept_share(self, grant_bytes: float, card_bytes: float, scaling: float) -> float:
        """Share of a grant that stays on the card while its pod rests, at most, 0-1.

        Args:
            scaling: factor of the node, by which grants are divided where that is the backend's rule.
        """
        if self.probed_lending is None:
            return 1.0 / scaling
        return min(1.0, self.probed_lending.kept_ratio * card_bytes / max(1.0, grant_bytes))

    def shareable_bytes(self, card_bytes: int) -> int:
        """Framebuffer of a card that can be granted to pods that share it."""
        return card_bytes // self.card_step_bytes * self.card_step_bytes

    def compute_percent(self, ratio: float, *, is_hard: bool) -> int | None:
        """What a pod that shares a card is really granted of its compute, whole percent, 1-99.

        Args:
            ratio: share that it should have, 0-1.
            is_hard: whether it shall never use more.

        Returns:
            None where nothing limits its compute.
        """
        if self.compute_isolation is ComputeIsolation.NONE or not (is_hard or self.adds_up_cores):
            return None
        return min(SHARED_PERCENT_MAX, max(1, int(ratio * 100 + 1e-6)))


def slices_that_meet(sizes: Sequence[int], card_size: int) -> int | None:
    """Most slices of a node that meet on one of its cards, whichever the scheduler puts there by framebuffer alone.

    A scheduler that fills cards before it opens new ones then needs `len(sizes)` / that many cards, rounded up, in
    whatever order pods come.

    Args:
        sizes: framebuffer of every slice of the node, in one unit.
        card_size: framebuffer that pods can share of each of its cards, in that unit.

    Returns:
        None where some sets of so many fit a card and others do not.
    """
    ordered = sorted(sizes)
    most = next((count for count in range(len(ordered), 0, -1) if sum(ordered[-count:]) <= card_size), 0)
    return most if most == len(ordered) or sum(ordered[: most + 1]) > card_size else None


def equal_part_bytes(card_bytes: int, parts: int) -> int:
    """Framebuffer of each of several equal parts of a card, whole MiB, as NVIDIA's MPS daemon divides it.

    Source: NVIDIA/k8s-device-plugin:cmd/mps-control-daemon/mps/daemon.go (perDevicePinnedDeviceMemoryLimits).
    """
    return card_bytes // parts // MIB * MIB


def equal_part_percent(parts: int) -> int:
    """Threads of each of several equal parts of a card, whole percent (`activeThreadPercentage` of the same file)."""
    return 100 // parts
