"""What NVIDIA's device plugin enforces where it hands out a card several times: time-slicing and MPS."""

from __future__ import annotations

from fleet.capabilities.capability import (
    AcceptedBy,
    Capabilities,
    ComputeIsolation,
    CorePolicy,
    Division,
    FramebufferIsolation,
    Granularity,
    Oversubscription,
    Source,
)
from fleet.units import MIB

_TOGETHER = (
    "nothing keeps a replica within its framebuffer or compute: it holds while all pods that may meet on a card fit it "
    "together"
)

TIME_SLICING = Capabilities(
    backend="nvidia_time_slicing",
    # A replica is a number: the plugin does not say how much of the card it stands for.
    framebuffer_isolation=FramebufferIsolation.NONE,
    # Processes take turns on the card, equally long ones; two replicas do not get twice the time of one.
    compute_isolation=ComputeIsolation.NONE,
    core_policies=(),
    # Framebuffer is not granted at all, so there is nothing that could be granted twice.
    oversubscription=Oversubscription.NONE,
    # A label of the node names the plugin's configuration, and that counts for all its cards: a list of devices in it
    # is read and not obeyed.
    granularity=Granularity.NODE,
    # No limit of the plugin's; its documentation shows ten.
    slices_per_card_max=10,
    # Of what a pod is planned with; see above for what becomes of it.
    framebuffer_step_bytes=MIB,
    division=Division.REPLICAS,
    admits_pods=False,
    one_size_per_node=True,
    # What runs holds its card under the old resource, of which the new one knows nothing.
    empties_node=True,
    refuses=(
        ("oversubscribe", "replicas grant no framebuffer, so there is none that could be granted twice"),
        ("colocate", "replicas know no priority: busy processes take turns, equally long ones"),
        ("mig", "it shares cards whole; enforcer.backend=mig cuts them"),
    ),
    partly=(
        ("slice", _TOGETHER),
        ("offpeak_pair", _TOGETHER),
    ),
    since="0.12.0",
    known_to="0.20",
    images=("k8s-device-plugin",),
    source=(
        Source(
            where="NVIDIA/k8s-device-plugin:README.md",
            facts=(
                "framebuffer_isolation compute_isolation core_policies priority_levels oversubscription "
                "fault_isolation slices_per_card_max framebuffer_step_bytes refuses partly since"
            ),
        ),
        Source(where="NVIDIA/k8s-device-plugin:api/config/v1/sharing.go", facts="division"),
        Source(where="NVIDIA/k8s-device-plugin:api/config/v1/replicas.go", facts="one_size_per_node admits_pods"),
        Source(
            where="NVIDIA/k8s-device-plugin:cmd/config-manager/main.go",
            facts="granularity live_framebuffer_change",
        ),
        Source(where="NVIDIA/k8s-device-plugin#990", facts="empties_node"),
        Source(where="NVIDIA/k8s-device-plugin#1690", facts="division"),
    ),
    accepted_by=(
        AcceptedBy(
            what="NVIDIA device plugin, without NVIDIA's driver",
            where="tests/engines/test_rendered_sharing.py::test_plugin_advertises_as_many_replicas_as_the_node_is_waited_for",
        ),
        AcceptedBy(
            what="kube-scheduler",
            where="tests/cluster/test_counted_cards.py::test_pods_come_to_the_planned_node_and_the_other_is_free",
        ),
    ),
)
"""NVIDIA's device plugin with `sharing.timeSlicing`."""

_CLIENTS = (
    "one study saw silently wrong results of cluster kernels on an H200 at some shares (14, 20, 46 %), which NVIDIA "
    "has not confirmed; a client that is killed at work can make later ones hang until MPS starts anew (NVIDIA "
    "announces a cure for CUDA 13.6), so its pods end by their grace period; limits are those of a process: a pod with "
    "two of them has two parts"
)

MPS = Capabilities(
    backend="nvidia_mps",
    # set_default_device_pinned_mem_limit is the card's framebuffer / replicas and holds for each client of MPS, so for
    # a process: a pod with two has twice as much.
    framebuffer_isolation=FramebufferIsolation.INTERCEPTED,
    # A client's device properties show the whole card; what cuMemGetInfo says is not documented.
    shows_limit=False,
    # set_default_active_thread_percentage is 100 / replicas: a client runs on no more of the SMs at any moment.
    compute_isolation=ComputeIsolation.HARD,
    core_policies=(CorePolicy.HARD,),
    # The daemon sets it in the driver when it starts.
    live_framebuffer_change=False,
    # As time-slicing; some cards of a node alone can't be shared by it.
    granularity=Granularity.NODE,
    # Clients that a card from Volta on serves at once; the daemon refuses more replicas.
    slices_per_card_max=48,
    # Equal parts, in whole MiB.
    framebuffer_step_bytes=MIB,
    # A fatal fault of one client ends all clients of the card's server.
    fault_isolation=False,
    division=Division.EQUAL_PARTS,
    admits_pods=False,
    one_size_per_node=True,
    empties_node=True,
    refuses=(
        ("oversubscribe", "each client has an equal part of the card's framebuffer, and the parts are the card"),
        ("colocate", "clients know no priority among each other"),
        ("offpeak_pair", "threads come in equal parts, and what one client leaves unused is lent to nobody"),
        ("mig", "MPS of the device plugin shares no cards on which MIG is on; enforcer.backend=mig cuts them"),
    ),
    partly=(("slice", _CLIENTS),),
    # The first release with sharing.mps.
    since="0.15.0",
    known_to="0.20",
    images=("k8s-device-plugin",),
    source=(
        Source(
            where="NVIDIA/k8s-device-plugin:README.md",
            facts="oversubscription refuses priority_levels admits_pods since",
        ),
        Source(
            where="NVIDIA/k8s-device-plugin:cmd/mps-control-daemon/mps/daemon.go",
            facts=(
                "framebuffer_isolation compute_isolation core_policies division framebuffer_step_bytes "
                "live_framebuffer_change fault_isolation"
            ),
        ),
        Source(where="NVIDIA/k8s-device-plugin:cmd/mps-control-daemon/mps/device.go", facts="slices_per_card_max"),
        Source(where="NVIDIA/k8s-device-plugin:api/config/v1/replicas.go", facts="one_size_per_node"),
        Source(where="NVIDIA/k8s-device-plugin#720", facts="partly"),
        Source(where="kai-scheduler/kai-gpu-fractioning:README.md", facts="partly fault_isolation"),
        Source(where="NVIDIA/k8s-device-plugin#764", facts="shows_limit"),
        Source(where="NVIDIA/k8s-device-plugin#1119", facts="empties_node"),
        Source(where="NVIDIA/k8s-device-plugin#1150", facts="granularity"),
    ),
    accepted_by=(
        AcceptedBy(
            what="NVIDIA device plugin, without NVIDIA's driver",
            where="tests/engines/test_rendered_sharing.py::test_plugin_advertises_as_many_replicas_as_the_node_is_waited_for",
        ),
        AcceptedBy(
            what="NVIDIA MPS daemon, without NVIDIA's driver",
            where="tests/engines/test_rendered_sharing.py::test_client_of_mps_has_at_least_what_the_plan_grants",
        ),
        AcceptedBy(
            what="kube-scheduler",
            where="tests/cluster/test_counted_cards.py::test_pods_come_to_the_planned_node_and_the_other_is_free",
        ),
    ),
)
"""NVIDIA's device plugin with `sharing.mps`."""
