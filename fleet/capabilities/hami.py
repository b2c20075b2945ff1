"""What HAMi enforces."""

from __future__ import annotations

from dataclasses import replace

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

_ONLY_BOOKS = (
    "only the books grow (deviceMemoryScaling); nothing spills to host memory, so what pods need together must fit the "
    "card at every moment"
)

_DYNAMIC_MIG = (
    "by HAMi's own dynamic MIG (from v2.10, operatingmode of a whole node whose cards are empty); its scheduler picks "
    "each pod's instance, and switching MIG on may want a reset of the card"
)

GATED_BY_CORES = (
    "from 2.8.1 low priority is held back only on cards all of whose pods have 1-99 % of cores, those above it by "
    "force (GPU_CORE_UTILIZATION_POLICY), and it works only while they launch nothing for some ten seconds; launches "
    "of CUDA graphs pass; a pod without HAMi's library (CUDA_DISABLE_CONTROL, whole cards from 2.11 on), or whose "
    "process ids on the host it can't find, neither waits nor is seen, which a probe shows; the agent of gputide on "
    "the nodes needs no limits"
)
"""What the gate of HAMi's library, and of its copies, needs."""

_WHOLE_WITHOUT_LIBRARY = (
    "a container with whole cards gets no library, so it has no region: it is measured by its processes, and neither "
    "gated, paused nor limited; a broker finds process ids on the host (off by default)"
)

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
    # CUDA_TASK_PRIORITY 0 (high) and 1 (low); more levels work from 2.10 on, and two are used.
    priority_levels=2,
    # deviceMemoryScaling > 1 raises what is registered; the open-source library spills nothing to host memory.
    oversubscription=Oversubscription.ACCOUNTING_ONLY,
    # The limit in the shared region is read at every allocation; the pod's annotation, by which the scheduler counts,
    # stays as it was.
    live_framebuffer_change=True,
    # The operating mode is a node's, the slice a pod's.
    granularity=Granularity.NODE,
    slices_per_card_max=10,
    framebuffer_step_bytes=MIB,
    gates_priority_by_cores=True,
    partly=(
        ("oversubscribe", _ONLY_BOOKS),
        ("colocate", GATED_BY_CORES),
        ("mig", _DYNAMIC_MIG),
    ),
    since="2.10.0",
    known_to="2.10",
    announced=(("2.11", _WHOLE_WITHOUT_LIBRARY),),
    images=("hami",),
    webhook="vgpu.hami.io",
    source=(
        Source(
            where="Project-HAMi/HAMi:pkg/device/nvidia/device.go",
            facts="priority_levels framebuffer_step_bytes granularity",
        ),
        Source(where="Project-HAMi/HAMi:charts/hami/values.yaml", facts="slices_per_card_max"),
        Source(where="Project-HAMi/HAMi:charts/hami/templates/scheduler/webhook.yaml", facts="webhook"),
        Source(
            where="Project-HAMi/HAMi:cmd/vGPUmonitor/feedback.go", facts="core_policies gates_priority_by_cores partly"
        ),
        Source(where="Project-HAMi/HAMi:docs/develop/dynamic-mig.md", facts="partly since"),
        Source(
            where="Project-HAMi/HAMi-core:src/allocator/allocator.c",
            facts="framebuffer_isolation oversubscription live_framebuffer_change fault_isolation",
        ),
        Source(
            where="Project-HAMi/HAMi-core:src/multiprocess/multiprocess_utilization_watcher.c",
            facts="compute_isolation",
        ),
        Source(where="Project-HAMi/HAMi#705", facts="oversubscription partly"),
        Source(where="Project-HAMi/HAMi#1445", facts="compute_isolation"),
        Source(where="Project-HAMi/HAMi#2863", facts="compute_isolation"),
    ),
    accepted_by=(
        AcceptedBy(
            what="HAMi v2.10.0, scheduler and webhook on a real API server",
            where=("tried by hand, with its rendering before seats moved to admission"),
        ),
    ),
    recorded=(
        AcceptedBy(
            what="the scheduler and webhook of HAMi 2.10.0 did in 358 recorded cases",
            where="tests/cluster/test_hami_decisions.py::test_scheduler_places_and_refuses_as_recorded",
        ),
    ),
)
"""HAMi in its `hami-core` mode, v2.10 with the open-source library."""

HAMI_2_8 = replace(
    HAMI,
    partly=(("oversubscribe", _ONLY_BOOKS), ("colocate", GATED_BY_CORES)),
    refuses=(
        ("mig", "before v2.10 its MIG mode cuts by geometries of its own (knownMigGeometries); a plan's are none"),
    ),
    # Before it low priority was gated without a core limit (HAMi-core 24fd045).
    since="2.8.1",
    source=(
        *HAMI.source,
        Source(where="Project-HAMi/HAMi:docs/develop/dynamic-mig-migration.md", facts="refuses"),
        Source(where="Project-HAMi/HAMi-core@24fd045", facts="since"),
    ),
)
"""HAMi from 2.8.1 to 2.9, which cuts no instances by a pod's request."""

_NO_PUBLIC_SOURCE = "nothing of it can be read in public, and published talks do not say how it is switched on"

EFFECTIVE_GPU = Capabilities(
    backend="effectivegpu",
    # Built on HAMi; no source is public, so nothing beyond what HAMi's library does is claimed.
    framebuffer_isolation=FramebufferIsolation.INTERCEPTED,
    compute_isolation=ComputeIsolation.REACTIVE,
    core_policies=(CorePolicy.HARD, CorePolicy.BURST),
    priority_levels=2,
    # A swap through unified memory is described; only a probe can show it.
    oversubscription=Oversubscription.NONE,
    claims_lending=True,
    granularity=Granularity.NODE,
    slices_per_card_max=10,
    framebuffer_step_bytes=MIB,
    gates_priority_by_cores=True,
    refuses=(("mig", f"its MIG mode: {_NO_PUBLIC_SOURCE}"),),
    partly=(
        ("oversubscribe", f"compute alone; its swap of framebuffer: {_NO_PUBLIC_SOURCE}, so only a probe can show it"),
        ("colocate", f"as far as it is HAMi: {GATED_BY_CORES}"),
    ),
    source=(
        Source(
            where="CNCF case study, SF Technology, 2025-09-18 (published description)",
            facts="core_policies priority_levels oversubscription claims_lending refuses partly",
        ),
        Source(
            where="Project-HAMi/HAMi:pkg/device/nvidia/device.go",
            facts=(
                "framebuffer_isolation compute_isolation live_framebuffer_change granularity slices_per_card_max "
                "framebuffer_step_bytes fault_isolation gates_priority_by_cores"
            ),
        ),
    ),
)
"""SF Technology's EffectiveGPU, as far as it is HAMi under other names."""
