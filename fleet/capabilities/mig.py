"""What MIG enforces."""

from __future__ import annotations

from fleet.capabilities.capability import (
    AcceptedBy,
    Capabilities,
    ComputeIsolation,
    CorePolicy,
    FramebufferIsolation,
    Granularity,
    Source,
)

_FIXED = "slices are instances of fixed profiles, which is advice of kind mig"

MIG = Capabilities(
    backend="mig",
    # An instance has memory slices, L2 banks and SMs of its own; no process reaches beyond them.
    framebuffer_isolation=FramebufferIsolation.HARDWARE,
    compute_isolation=ComputeIsolation.HARD,
    # What an instance leaves unused is lent to nobody.
    core_policies=(CorePolicy.HARD,),
    # Instances know no order among each other.
    priority_levels=1,
    # The manager clears a card before it cuts it, so no pod may be on it.
    live_framebuffer_change=False,
    # A label on the node (nvidia.com/mig.config) names a layout per card, and cards of a node may differ. But while one
    # changes its mode, all of the node must be empty: mig-parted resets them all. With the device plugin's strategy
    # `single` all cards of a node are alike.
    granularity=Granularity.CARD,
    # Seven compute slices on data-centre cards; four on an A30, which its catalogue entry says.
    slices_per_card_max=7,
    # Profiles, no steps.
    framebuffer_step_bytes=None,
    fault_isolation=True,
    cuts_by_mig=True,
    admits_pods=False,
    # mig-parted's layouts name cards by number, and nothing says which number is which model.
    one_size_per_node=True,
    empties_node=True,
    refuses=(
        ("slice", _FIXED),
        ("oversubscribe", "an instance has memory of its own, so none can be granted twice"),
        ("colocate", "instances lend nothing, and know no priority among each other"),
        ("offpeak_pair", "what an instance leaves unused is lent to nobody"),
    ),
    known_to="0.15",
    images=("k8s-mig-manager",),
    source=(
        Source(
            where="NVIDIA/mig-parted:api/spec/v1/spec.go",
            facts="granularity framebuffer_step_bytes slices_per_card_max cuts_by_mig one_size_per_node",
        ),
        Source(where="NVIDIA/mig-parted:cmd/nvidia-mig-manager/main.go", facts="empties_node"),
        Source(
            where="NVIDIA/mig-parted:pkg/mig/reconfigure/reconfigure.go",
            facts="live_framebuffer_change",
        ),
        Source(where="NVIDIA/mig-parted:cmd/nvidia-mig-parted/apply/mode.go", facts="empties_node"),
        Source(where="NVIDIA/mig-parted#3", facts="empties_node"),
        Source(where="NVIDIA/gpu-operator:assets/state-mig-manager/0400_configmap.yaml", facts="slices_per_card_max"),
        Source(where="NVIDIA/gpu-operator:deployments/gpu-operator/values.yaml", facts="cuts_by_mig"),
        Source(
            where="NVIDIA/k8s-device-plugin:README.md",
            facts=(
                "framebuffer_isolation compute_isolation core_policies priority_levels oversubscription "
                "fault_isolation admits_pods refuses"
            ),
        ),
    ),
    accepted_by=(
        AcceptedBy(
            what="NVIDIA mig-parted and device plugin, without NVIDIA's driver",
            where="tests/engines/test_rendered_sharing.py::test_cards_cut_as_rendered_satisfy_mig_parted_and_are_advertised_as_promised",
        ),
        AcceptedBy(
            what="kube-scheduler",
            where="tests/cluster/test_counted_cards.py::test_pods_come_to_the_planned_node_and_the_other_is_free",
        ),
    ),
)
"""NVIDIA MIG, cut by the GPU operator's mig-manager and handed out by NVIDIA's device plugin (strategy `mixed`)."""
