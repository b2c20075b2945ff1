"""What is enforced where nobody shares a card."""

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

_WHOLE = "every card is one container's"

WHOLE_CARDS = Capabilities(
    backend="whole_cards",
    # One pod per card: there is nobody to be kept apart from.
    framebuffer_isolation=FramebufferIsolation.HARDWARE,
    compute_isolation=ComputeIsolation.HARD,
    core_policies=(CorePolicy.HARD,),
    granularity=Granularity.CARD,
    slices_per_card_max=1,
    framebuffer_step_bytes=None,
    fault_isolation=True,
    admits_pods=False,
    refuses=(
        ("slice", _WHOLE),
        ("oversubscribe", _WHOLE),
        ("colocate", _WHOLE),
        ("offpeak_pair", _WHOLE),
        ("mig", "it cuts no cards; enforcer.backend=mig does"),
    ),
    source=(
        Source(
            where="NVIDIA/k8s-device-plugin:README.md",
            facts=(
                "framebuffer_isolation compute_isolation core_policies priority_levels oversubscription "
                "live_framebuffer_change granularity slices_per_card_max framebuffer_step_bytes fault_isolation "
                "admits_pods refuses"
            ),
        ),
    ),
    accepted_by=(
        AcceptedBy(
            what="kube-scheduler",
            where="tests/cluster/test_counted_cards.py::test_whole_cards_come_to_the_planned_node_and_the_other_is_free",
        ),
    ),
)
"""No sharing: NVIDIA's device plugin gives every card to one container."""
