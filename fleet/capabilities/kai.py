"""What KAI's fractions of cards enforce, by counting alone and with NVIDIA's GPU fractioning beneath."""

from __future__ import annotations

from dataclasses import replace

from fleet.capabilities.capability import (
    AcceptedBy,
    Capabilities,
    ComputeIsolation,
    Division,
    FramebufferIsolation,
    Granularity,
    Oversubscription,
    Source,
)
from fleet.units import MIB

_COUNTED = (
    "the scheduler counts framebuffer, and nothing stops a process from taking more (but its add-on with HAMi-core); "
    "compute is not limited; which pods of a node share a card is its choice, by framebuffer alone, so a node gets "
    "slices for one card, or slices of which any that fit a card may share it, sized up to fill it"
)

KAI = Capabilities(
    backend="kai",
    # The scheduler counts fractions and MiB; nothing stops a process. The add-on kai-resource-isolator mounts
    # HAMi-core, but is not part of it, and sets nothing where a node has no label nvidia.com/gpu.memory.
    framebuffer_isolation=FramebufferIsolation.ACCOUNTING,
    # Neither the scheduler nor the add-on says anything of cores: busy pods take turns as the driver lets them.
    compute_isolation=ComputeIsolation.NONE,
    core_policies=(),
    # Priority is of the queue: who is scheduled first, and who is evicted. On a card all are alike.
    priority_levels=1,
    # Fractions of a card never sum up to more than one.
    oversubscription=Oversubscription.NONE,
    # An annotation of the pod; a node needs no other mode.
    granularity=Granularity.POD,
    # Its plugin gpupack takes the fullest card of the node that has room; a group that a pending pod names is not kept
    # (AllocateFractionalGPUTaskToNode).
    division=Division.SCHEDULER,
    # No limit of its own; a share of a card is planned in hundredths at the finest.
    slices_per_card_max=100,
    # gpu-memory is in MiB.
    framebuffer_step_bytes=MIB,
    # Its scheduler floors the card's memory to hundreds of MiB (getNodeGpuMemory): of 81920 MiB 81900 can be granted.
    card_step_bytes=100 * MIB,
    admits_pods=False,
    grants_by_annotation=True,
    # It turns MiB into a fraction by a label of the node.
    one_size_per_node=True,
    refuses=(
        ("oversubscribe", "fractions of a card never add up to more than one"),
        ("colocate", "its priority is that of queues: on a card high and low priority are slowed alike"),
        ("mig", "it cuts no cards, and gives no fractions of instances"),
    ),
    partly=(
        ("slice", _COUNTED),
        ("offpeak_pair", _COUNTED),
    ),
    since="0.2.0",
    known_to="0.18",
    images=("kai-scheduler/scheduler",),
    recorded=(
        AcceptedBy(
            what="the scheduler of KAI 0.17 did in 196 recorded cases",
            where="tests/cluster/test_kai_decisions.py::test_pods_come_to_the_recorded_node_and_cards",
        ),
    ),
    source=(
        Source(
            where="kai-scheduler/KAI-Scheduler:pkg/common/constants/constants.go",
            facts="grants_by_annotation framebuffer_step_bytes granularity admits_pods",
        ),
        Source(
            where="kai-scheduler/KAI-Scheduler:pkg/scheduler/api/node_info/node_info.go",
            facts="card_step_bytes one_size_per_node slices_per_card_max since",
        ),
        Source(
            where="kai-scheduler/KAI-Scheduler:docs/gpu-sharing/README.md",
            facts=(
                "framebuffer_isolation core_policies oversubscription live_framebuffer_change "
                "fault_isolation refuses partly"
            ),
        ),
        Source(where="kai-scheduler/KAI-Scheduler:docs/gpu-sharing/hami/README.md", facts="framebuffer_isolation"),
        Source(where="kai-scheduler/KAI-Scheduler:pkg/scheduler/plugins/gpupack/gpupack.go", facts="division"),
        Source(where="kai-scheduler/KAI-Scheduler:pkg/scheduler/gpu_sharing/gpuSharing.go", facts="division"),
        Source(where="kai-scheduler/KAI-Scheduler:pkg/binder/plugins/hamicore/hami_core.go", facts="compute_isolation"),
        Source(where="kai-scheduler/KAI-Scheduler#45", facts="framebuffer_isolation"),
        Source(where="kai-scheduler/KAI-Scheduler#262", facts="priority_levels"),
        Source(where="kai-scheduler/KAI-Scheduler#506", facts="refuses"),
        Source(where="kai-scheduler/KAI-Scheduler#1967", facts="one_size_per_node"),
    ),
)
"""KAI's scheduler with `global.gpuSharing=true` (from 0.18 on `global.gpuSharingMode: NonMemoryEnforced`, its default),
without its add-on for isolation."""

_CAPPED = (
    "the driver ends a container's allocations at its limit, which is set when the container is made, so a change "
    "needs a new pod; compute is not limited; what the driver keeps for itself is not subtracted, so pods that fill a "
    "card to the last MiB may run out within their request; which pods of a node share a card is the scheduler's choice"
)

_LENT = (
    "a limit above the request is lent from what is free; how the driver takes it back is not documented, so both are "
    "written alike"
)

KAI_NVFRACTIONS = replace(
    KAI,
    backend="kai_nvfractions",
    # kai-gpu-fractioning's node agent hands the limit to the container toolkit, which makes it a cap of the driver's.
    framebuffer_isolation=FramebufferIsolation.DRIVER,
    # nvidia-smi and NVML inside show the whole card, but for a shadow library in the newest tree.
    shows_limit=False,
    refuses=(
        (
            "oversubscribe",
            _LENT,
        ),
        *(entry for entry in KAI.refuses if entry[0] != "oversubscribe"),
    ),
    partly=(
        ("slice", _CAPPED),
        ("offpeak_pair", _CAPPED),
    ),
    since="0.18.0",
    recorded=(),
    source=(
        *(entry for entry in KAI.source if "framebuffer_isolation" not in entry.facts),
        Source(
            where="kai-scheduler/KAI-Scheduler:docs/gpu-sharing/nv-fraction",
            facts="framebuffer_isolation compute_isolation core_policies shows_limit refuses partly since",
        ),
        Source(
            where="kai-scheduler/kai-gpu-fractioning:README.md",
            facts="framebuffer_isolation oversubscription live_framebuffer_change fault_isolation",
        ),
        Source(where="kai-scheduler/KAI-Scheduler#2212", facts="partly"),
    ),
)
"""KAI from 0.18 on with `global.gpuSharingMode: NvFractions`, which needs driver 615 and GPU Operator 26.7.1."""
