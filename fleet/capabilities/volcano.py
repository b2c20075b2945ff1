"""What Volcano's vGPU enforces."""

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
from fleet.capabilities.hami import GATED_BY_CORES
from fleet.units import MIB

VOLCANO = Capabilities(
    backend="volcano",
    # The library is HAMi-core's, mounted by another device plugin.
    framebuffer_isolation=FramebufferIsolation.INTERCEPTED,
    compute_isolation=ComputeIsolation.REACTIVE,
    core_policies=(CorePolicy.HARD, CorePolicy.BURST),
    # No resource for it: the variable CUDA_TASK_PRIORITY is the container's own.
    priority_levels=2,
    # deviceMemoryScaling is read from the configuration and not applied to what is registered.
    oversubscription=Oversubscription.NONE,
    live_framebuffer_change=True,
    # volcano.sh/vgpu-mode is a pod's wish; the plugin's mode is its node's.
    granularity=Granularity.NODE,
    slices_per_card_max=10,
    framebuffer_step_bytes=MIB,
    gates_priority_by_cores=True,
    partly=(
        (
            "oversubscribe",
            "compute alone: deviceMemoryScaling is parsed and not applied to the framebuffer that its plugin registers",
        ),
        ("colocate", f"its library is HAMi's: {GATED_BY_CORES}"),
    ),
    refuses=(
        (
            "mig",
            "its scheduler chooses the geometry among those of volcano-vgpu-device-config; a plan's can't be given",
        ),
    ),
    # volcano.sh/vgpu-use-gpuuuid, by which a pod gets the planned card, is in no release before (commit 4cf98b4fe).
    since="1.16.0-alpha.0",
    known_to="1.16",
    images=("vc-scheduler",),
    recorded=(
        AcceptedBy(
            what="the deviceshare plugin of Volcano 1.15.1 and 1.16.0-alpha.1 did in 230 recorded cases",
            where="tests/cluster/test_volcano_decisions.py::test_nodes_take_and_refuse_as_recorded",
        ),
    ),
    source=(
        Source(where="volcano-sh/volcano:docs/user-guide/how_to_use_volcano_vgpu.md", facts="since"),
        Source(where="volcano-sh/volcano:pkg/scheduler/api/devices/nvidia/vgpu/type.go", facts="since"),
        Source(
            where="Project-HAMi/volcano-vgpu-device-plugin:pkg/plugin/server.go",
            facts=(
                "framebuffer_isolation compute_isolation core_policies priority_levels gates_priority_by_cores "
                "live_framebuffer_change fault_isolation"
            ),
        ),
        Source(
            where="Project-HAMi/volcano-vgpu-device-plugin:pkg/plugin/register.go",
            facts="framebuffer_step_bytes granularity",
        ),
        Source(
            where="Project-HAMi/volcano-vgpu-device-plugin:pkg/config/config.go",
            facts="slices_per_card_max oversubscription",
        ),
        Source(where="Project-HAMi/volcano-vgpu-device-plugin#79", facts="oversubscription partly"),
        Source(where="volcano-sh/volcano:pkg/scheduler/plugins/deviceshare/deviceshare.go", facts="refuses"),
    ),
)
"""Volcano's scheduler from 1.16 on, with the vGPU device plugin, v1.12 of the plugin."""

_NO_PIN = (
    "a stable release takes no card by name (volcano.sh/vgpu-use-gpuuuid is there from 1.16.0-alpha.0 on), so nobody "
    "knows which pods would share one"
)

VOLCANO_1_9 = replace(
    VOLCANO,
    since="1.9.0",
    refuses=(
        *((kind, _NO_PIN) for kind in ("slice", "oversubscribe", "colocate", "offpeak_pair", "rehome")),
        *VOLCANO.refuses,
    ),
    partly=(),
)
"""Volcano's stable releases to 1.15: cards are given back and scaled in, and nothing is placed."""
