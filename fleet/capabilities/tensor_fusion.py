"""What TensorFusion enforces; nothing is rendered for it."""

from __future__ import annotations

from fleet.capabilities.capability import (
    Capabilities,
    ComputeIsolation,
    CorePolicy,
    Division,
    FramebufferIsolation,
    Granularity,
    Source,
)
from fleet.units import MIB

_EXPANDED = (
    "GPUPool adds 50 % of host memory and 70 % of disk to the framebuffer by default (vramExpandToHostMem, "
    "vramExpandToHostDisk); the library that moves it is not public, so nothing is counted on"
)
_QOS = "QoS levels low to critical weigh compute under `soft`; nothing public shows that the lower yields"

TENSOR_FUSION = Capabilities(
    backend="tensor_fusion",
    # Its default mode `soft` injects a limiter into the container's process; `shared` has none, `hard` runs remotely or
    # in a sidecar, `partitioned` cuts MIG instances.
    framebuffer_isolation=FramebufferIsolation.INTERCEPTED,
    compute_isolation=ComputeIsolation.REACTIVE,
    # A controller holds a pod to its limit, with credit for a burst.
    core_policies=(CorePolicy.BURST,),
    # A mode of the whole node, by GPUPool (a mode per card is a draft).
    granularity=Granularity.NODE,
    # Its scheduler picks cards by TFLOPS and VRAM.
    division=Division.SCHEDULER,
    # No limit of its own; a share is planned in hundredths at the finest.
    slices_per_card_max=100,
    framebuffer_step_bytes=MIB,
    # What a pod gets stands in its template's annotations.
    admits_pods=False,
    partly=(("oversubscribe", _EXPANDED), ("colocate", _QOS)),
    known_to="2.17",
    images=("tensor-fusion-operator",),
    source=(
        Source(
            where="NexusGPU/tensor-fusion:api/v1/workloadprofile_types.go",
            facts="framebuffer_isolation compute_isolation core_policies partly",
        ),
        Source(where="NexusGPU/tensor-fusion:api/v1/gpupool_types.go", facts="granularity partly"),
        Source(
            where="NexusGPU/tensor-fusion:README.md",
            facts="framebuffer_step_bytes slices_per_card_max division admits_pods",
        ),
    ),
)
"""TensorFusion 2 in its default mode `soft`."""
