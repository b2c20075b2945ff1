"""What vgpu-manager enforces."""

from __future__ import annotations

from fleet.capabilities.capability import (
    AcceptedBy,
    Capabilities,
    ComputeIsolation,
    CorePolicy,
    FramebufferIsolation,
    Granularity,
    Oversubscription,
    Source,
)
from fleet.units import MIB

_DIVIDED = (
    "deviceMemoryScaling divides every grant that its node makes from then on: that part is framebuffer for good, the "
    "rest unified memory, which moves to the host when others need the card; memory by cuMemCreate or shared between "
    "processes can't be lent, and monitors count the first part alone"
)

VGPU_MANAGER = Capabilities(
    backend="vgpu_manager",
    framebuffer_isolation=FramebufferIsolation.INTERCEPTED,
    compute_isolation=ComputeIsolation.REACTIVE,
    # nvidia.com/vgpu-compute-policy: fixed, or balance (beyond its share while others leave it unused).
    core_policies=(CorePolicy.HARD, CorePolicy.BURST),
    # What goes beyond the physical part of a grant is allocated as unified memory and moves to the host.
    oversubscription=Oversubscription.SPILL,
    # prepare_memory_allocation: what fits grant / scaling is plain framebuffer, whatever goes beyond is managed memory.
    lends_framebuffer=True,
    # A node's scaling, a pod's slice and policy.
    granularity=Granularity.NODE,
    slices_per_card_max=10,
    framebuffer_step_bytes=MIB,
    bursts_by_annotation=True,
    # vgpu-cores is counted for every pod, whatever its policy.
    adds_up_cores=True,
    refuses=(("mig", "migStrategy hands out instances that were cut already; it cuts none"),),
    partly=(
        (
            "oversubscribe",
            _DIVIDED,
        ),
    ),
    images=("vgpu-manager",),
    recorded=(
        AcceptedBy(
            what="the scheduler extender of vgpu-manager 1.0.0 did in 227 recorded cases",
            where="tests/cluster/test_vgpu_manager_decisions.py::test_nodes_and_cards_are_chosen_as_recorded",
        ),
    ),
    source=(
        Source(
            where="coldzerofear/vgpu-manager:README.md",
            facts=(
                "framebuffer_isolation compute_isolation core_policies priority_levels "
                "slices_per_card_max framebuffer_step_bytes fault_isolation bursts_by_annotation refuses"
            ),
        ),
        Source(
            where="coldzerofear/vgpu-manager:docs/how_to_use_gpu_virtual_memory.md", facts="oversubscription partly"
        ),
        Source(where="coldzerofear/vgpu-manager:library/src/cuda_hook.c", facts="lends_framebuffer partly"),
        Source(where="coldzerofear/vgpu-manager:pkg/config/vgpu/vgpu_config.go", facts="lends_framebuffer"),
        Source(where="coldzerofear/vgpu-manager:pkg/device/allocator/allocator.go", facts="adds_up_cores"),
        Source(where="coldzerofear/vgpu-manager:docs/how_to_use_deviceplugin_nodeconfig.md", facts="granularity"),
        Source(
            where="coldzerofear/vgpu-manager:pkg/webhook/pod/mutate/pod_mutate.go",
            facts="adds_up_cores live_framebuffer_change",
        ),
    ),
)
"""vgpu-manager with its own scheduler and library."""
