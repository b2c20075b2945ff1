"""What each way of sharing a card really enforces, as facts: planned with by the recommender, rendered by the enforcer.

A claim of a backend is written down only as far as its source code (or a measurement) supports it. `enforcer`'s
adapters carry the same name as their record here. Imports nothing outside the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from fleet.errors import Misconfigured
from fleet.units import MIB


class FramebufferIsolation(StrEnum):
    """What stops one pod from taking another's framebuffer on the same card."""

    NONE = "none"
    ACCOUNTING = "accounting"
    """The scheduler counts; nothing stops a process."""
    INTERCEPTED = "intercepted"
    """Each allocation through the driver's interface is checked in the process; a process can evade it on purpose."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What one backend enforces.

    Attributes:
        backend: its name, as in the setting `enforcer.backend`.
        framebuffer_isolation: what keeps slices within their framebuffer.
        compute_isolation: what keeps slices within their compute.
        core_policies: policies that a pod can be given; empty where compute can't be limited.
        priority_levels: how many levels it tells apart; 1 is no priority.
        oversubscription: what granting more framebuffer than there is leads to.
        live_framebuffer_change: the limit of a running pod can be changed.
        live_framebuffer_change_accounted: the scheduler's books follow such a change.
        granularity: the smallest unit of its sharing mode.
        slices_per_card_max: most slices of one card by default.
        framebuffer_step_bytes: grants are multiples of this; None where framebuffer can't be divided.
        needs_restart: a pod must be created anew to get another slice.
        fault_isolation: a fault of one pod (such as an illegal access) leaves the others on the card alone.
        cuts_by_mig: slices are MIG instances of fixed profiles, cut while their card is empty.
        source: where each fact was read, `repository:path` or `repository#issue`.
    """

    backend: str
    framebuffer_isolation: FramebufferIsolation
    compute_isolation: ComputeIsolation
    core_policies: tuple[CorePolicy, ...]
    priority_levels: int
    oversubscription: Oversubscription
    live_framebuffer_change: bool
    live_framebuffer_change_accounted: bool
    granularity: Granularity
    slices_per_card_max: int
    framebuffer_step_bytes: int | None
    needs_restart: bool
    fault_isolation: bool
    source: tuple[str, ...]
    cuts_by_mig: bool = False

    @property
    def can_share(self) -> bool:
        """Whether it can put more than one pod on a card at all."""
        return self.slices_per_card_max > 1


HAMI = Capabilities(
    backend="hami",
    # The library checks every allocation call of the process against the limit that is mapped into its container.
    framebuffer_isolation=FramebufferIsolation.INTERCEPTED,
    # A token bucket on kernel launches, refilled about every 120 ms from measured utilisation; launches of CUDA graphs
    # pass by it.
    compute_isolation=ComputeIsolation.REACTIVE,
    # GPU_CORE_UTILIZATION_POLICY=force is always on; unset, the monitor lifts the limit of a pod that is alone on its
    # card.
    core_policies=(CorePolicy.HARD, CorePolicy.BURST),
    # CUDA_TASK_PRIORITY 0 (high) and 1 (low); from 2.8.1 the gate needs a core limit of 1-99 on both pods.
    priority_levels=2,
    # deviceMemoryScaling > 1 raises what is registered; the open-source library spills nothing to host memory.
    oversubscription=Oversubscription.ACCOUNTING_ONLY,
    # The limit in the shared region is read at every allocation; the pod's annotation, by which the scheduler counts,
    # stays as it was.
    live_framebuffer_change=True,
    live_framebuffer_change_accounted=False,
    # The operating mode is a node's, the slice a pod's.
    granularity=Granularity.NODE,
    slices_per_card_max=10,
    framebuffer_step_bytes=MIB,
    needs_restart=True,
    fault_isolation=False,
    source=(
        "Project-HAMi/HAMi:pkg/device/nvidia/device.go",
        "Project-HAMi/HAMi:charts/hami/values.yaml",
        "Project-HAMi/HAMi:cmd/vGPUmonitor/feedback.go",
        "Project-HAMi/HAMi-core:src/allocator/allocator.c",
        "Project-HAMi/HAMi-core:src/multiprocess/multiprocess_utilization_watcher.c",
        "Project-HAMi/HAMi#705",
        "Project-HAMi/HAMi#1445",
        "Project-HAMi/HAMi#2863",
    ),
)
"""HAMi in its `hami-core` mode, v2.10 with the open-source library."""

WHOLE_CARDS = Capabilities(
    backend="whole_cards",
    # One pod per card: there is nobody to be kept apart from.
    framebuffer_isolation=FramebufferIsolation.HARDWARE,
    compute_isolation=ComputeIsolation.HARD,
    core_policies=(CorePolicy.HARD,),
    priority_levels=1,
    oversubscription=Oversubscription.NONE,
    live_framebuffer_change=False,
    live_framebuffer_change_accounted=False,
    granularity=Granularity.CARD,
    slices_per_card_max=1,
    framebuffer_step_bytes=None,
    needs_restart=True,
    fault_isolation=True,
    source=("NVIDIA/k8s-device-plugin:README.md",),
)
"""No sharing: NVIDIA's device plugin gives every card to one container."""

MIG = Capabilities(
    backend="mig",
    # An instance has memory slices, L2 banks and SMs of its own; no process reaches beyond them.
    framebuffer_isolation=FramebufferIsolation.HARDWARE,
    compute_isolation=ComputeIsolation.HARD,
    # What an instance leaves unused is lent to nobody.
    core_policies=(CorePolicy.HARD,),
    # Instances know no order among each other.
    priority_levels=1,
    oversubscription=Oversubscription.NONE,
    # The manager clears a card before it cuts it, so no pod may be on it.
    live_framebuffer_change=False,
    live_framebuffer_change_accounted=False,
    # A label on the node (nvidia.com/mig.config) starts it, but what it names lists a layout per card, and only those
    # cards must be empty. With the device plugin's strategy `single` all cards of a node are alike nevertheless.
    granularity=Granularity.CARD,
    # Seven compute slices on data-centre cards; four on an A30, which its catalogue entry says.
    slices_per_card_max=7,
    # Profiles, no steps.
    framebuffer_step_bytes=None,
    # A pod asks for an instance by the name of a resource, nvidia.com/mig-<profile>, in its template.
    needs_restart=True,
    fault_isolation=True,
    cuts_by_mig=True,
    source=(
        "NVIDIA/mig-parted:api/spec/v1/spec.go",
        "NVIDIA/mig-parted:cmd/nvidia-mig-manager/main.go",
        "NVIDIA/mig-parted:pkg/mig/reconfigure/reconfigure.go",
        "NVIDIA/mig-parted#3",
        "NVIDIA/gpu-operator:assets/state-mig-manager/0400_configmap.yaml",
        "NVIDIA/gpu-operator:deployments/gpu-operator/values.yaml",
        "NVIDIA/k8s-device-plugin:README.md",
        "NVIDIA/k8s-device-plugin#992",
    ),
)
"""NVIDIA MIG, cut by the GPU operator's mig-manager and handed out by NVIDIA's device plugin (strategy `mixed`)."""

CAPABILITIES: tuple[Capabilities, ...] = (WHOLE_CARDS, HAMI, MIG)
"""Every backend, from the one that enforces nothing new on; a new one is a record above and an entry here."""


def capabilities_of(backend: str) -> Capabilities:
    """The record of a backend by its name.

    Raises:
        Misconfigured: no such backend.
    """
    for record in CAPABILITIES:
        if record.backend == backend:
            return record
    known = ", ".join(record.backend for record in CAPABILITIES)
    raise Misconfigured(f"cannot use GPU-sharing backend {backend!r}: unknown; set enforcer.backend to one of {known}")
