"""What Volcano's vGPU enforces."""

from __future__ import annotations

from fleet.capabilities.capability import (
    Capabilities,
    ComputeIsolation,
    CorePolicy,
    FramebufferIsolation,
    Granularity,
    Oversubscription,
)
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
    live_framebuffer_change_accounted=False,
    # volcano.sh/vgpu-mode is a pod's wish; the plugin's mode is its node's.
    granularity=Granularity.NODE,
    slices_per_card_max=10,
    framebuffer_step_bytes=MIB,
    needs_restart=True,
    fault_isolation=False,
    gates_priority_by_cores=True,
    partly=(
        (
            "oversubscribe",
            "compute alone: deviceMemoryScaling is parsed and not applied to the framebuffer that its plugin registers",
        ),
    ),
    refuses=(
        (
            "mig",
            "its scheduler chooses the geometry among those of volcano-vgpu-device-config; a plan's can't be given",
        ),
    ),
    source=(
        "Project-HAMi/volcano-vgpu-device-plugin:pkg/plugin/server.go",
        "Project-HAMi/volcano-vgpu-device-plugin:pkg/plugin/register.go",
        "Project-HAMi/volcano-vgpu-device-plugin:pkg/config/config.go",
        "Project-HAMi/volcano-vgpu-device-plugin#79",
        "volcano-sh/volcano:pkg/scheduler/api/devices/nvidia/vgpu/utils.go",
        "volcano-sh/volcano:pkg/scheduler/plugins/deviceshare/deviceshare.go",
    ),
)
"""Volcano's scheduler with the vGPU device plugin, v1.12 of the plugin."""
