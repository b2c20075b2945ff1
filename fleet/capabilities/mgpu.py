"""What Volcengine's mGPU enforces."""

from __future__ import annotations

from fleet.capabilities.capability import (
    Capabilities,
    ComputeIsolation,
    CorePolicy,
    FramebufferIsolation,
    Granularity,
    Oversubscription,
    Source,
)
from fleet.units import MIB

_COMPUTE_ALONE = (
    "compute alone, on nodes with guaranteed-burst-share: mgpu-memory is framebuffer that is really there, has no "
    "factor, and is not pre-empted"
)

MGPU = Capabilities(
    backend="mgpu",
    # By its own kernel module; what a process can do on purpose is not published, so no more than interception.
    framebuffer_isolation=FramebufferIsolation.INTERCEPTED,
    # fixed-share and guaranteed-burst-share; offline work is suspended while online work runs, and goes on after 100 ms
    # without it.
    compute_isolation=ComputeIsolation.REACTIVE,
    core_policies=(CorePolicy.HARD, CorePolicy.BURST),
    # Online (shared_cores) and offline (reclaimed_cores).
    priority_levels=2,
    # mgpu-memory is physical and is not pre-empted.
    oversubscription=Oversubscription.NONE,
    # A node's label says whether its cards are shared, and by which compute policy.
    granularity=Granularity.NODE,
    slices_per_card_max=16,
    framebuffer_step_bytes=MIB,
    # Nothing admits its pods one by one: a template says what all of them get.
    admits_pods=False,
    bursts_by_annotation=True,
    adds_up_cores=True,
    # A node's mgpu-memory is divided by the number of its cards.
    one_size_per_node=True,
    # Less the webhook refuses.
    framebuffer_min_bytes=256 * MIB,
    node_policy_label="vke.volcengine.com/mgpu-compute-policy",
    # With native-burst-share online and offline work are not distinguished, so it is left as it is.
    node_policies=(("fixed-share", CorePolicy.HARD), ("guaranteed-burst-share", CorePolicy.BURST)),
    refuses=(
        ("mig", "a node is shared by mGPU or handed out by NVIDIA's plugin (vke.node.gpu.schedule); mGPU cuts no MIG"),
    ),
    partly=(("oversubscribe", _COMPUTE_ALONE),),
    source=(
        Source(
            where="Volcengine help pages on mGPU (published description)",
            facts=(
                "framebuffer_isolation compute_isolation core_policies priority_levels oversubscription "
                "live_framebuffer_change granularity "
                "framebuffer_step_bytes fault_isolation admits_pods refuses partly"
            ),
        ),
        Source(
            where="volcano-sh/volcano:docs/design/mgpu.md (proposal)",
            facts=(
                "slices_per_card_max framebuffer_min_bytes node_policy_label node_policies "
                "one_size_per_node adds_up_cores bursts_by_annotation"
            ),
        ),
        Source(where="kubewharf/katalyst-api:pkg/consts/qos.go", facts="priority_levels"),
    ),
)
"""Volcengine's mGPU on its managed Kubernetes; the sources are descriptions, its code is closed."""
