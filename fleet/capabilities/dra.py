"""What claims of dynamic resource allocation enforce with NVIDIA's driver: MIG devices, shared and counted cards."""

from __future__ import annotations

from fleet.capabilities.capability import (
    AcceptedBy,
    Capabilities,
    ComputeIsolation,
    CorePolicy,
    Division,
    FramebufferIsolation,
    Granularity,
    Source,
)
from fleet.units import MIB

_TOGETHER = "nothing keeps a pod within its framebuffer or compute: pods that share a claim must fit the card together"

_CHOSEN = (
    "a template of claims names all cards on which instances of its workload or of those beside it are planned, and "
    "kube-scheduler chooses among them; workloads with several pods share cards only with instances of one profile, of "
    "which any fits where another would"
)

DRA_MIG = Capabilities(
    backend="dra_mig",
    framebuffer_isolation=FramebufferIsolation.HARDWARE,
    compute_isolation=ComputeIsolation.HARD,
    core_policies=(CorePolicy.HARD,),
    # A claim names profile and card.
    granularity=Granularity.CARD,
    slices_per_card_max=7,
    # Profiles, no steps.
    framebuffer_step_bytes=None,
    division=Division.TEMPLATE,
    fault_isolation=True,
    admits_pods=False,
    # Instances that the driver publishes: cut before, or when a claim is prepared where its gate DynamicMIG (alpha, off
    # by default) is on.
    cuts_by_mig=True,
    refuses=(
        ("slice", "slices are instances of fixed profiles, which is advice of kind mig"),
        ("oversubscribe", "an instance has memory of its own, so none can be granted twice"),
        ("colocate", "instances lend nothing, and know no priority among each other"),
        ("offpeak_pair", "what an instance leaves unused is lent to nobody"),
    ),
    partly=(("mig", _CHOSEN),),
    source=(
        Source(
            where="kubernetes/api:resource/v1/types.go",
            facts="admits_pods live_framebuffer_change partly division",
        ),
        Source(
            where="kubernetes-sigs/dra-driver-nvidia-gpu:api/nvidia.com/resource/v1beta1/sharing.go",
            facts="oversubscription priority_levels refuses",
        ),
        Source(
            where="kubernetes-sigs/dra-driver-nvidia-gpu:cmd/gpu-kubelet-plugin/deviceinfo.go",
            facts=(
                "framebuffer_isolation compute_isolation core_policies granularity slices_per_card_max "
                "framebuffer_step_bytes fault_isolation cuts_by_mig"
            ),
        ),
        Source(where="kubernetes-sigs/dra-driver-nvidia-gpu:pkg/featuregates/featuregates.go", facts="cuts_by_mig"),
    ),
    accepted_by=(
        AcceptedBy(
            what="kube-scheduler, without NVIDIA's driver",
            where="tests/cluster/test_dra_claims.py::test_instances_are_allocated_on_the_planned_cards_and_whole_ones_are_free_again",
        ),
        AcceptedBy(
            what="kube-scheduler, for whole plans of fleets whose cards the driver may cut (its gate DynamicMIG)",
            where="tests/cluster/test_planned_placement.py::test_pods_come_to_their_planned_cards_as_many_are_free_as_planned_and_undo_takes_all_back",
        ),
    ),
)
"""One claim of a MIG device per pod (`resource.k8s.io/v1`, device class `mig.nvidia.com`)."""

DRA_SHARED = Capabilities(
    backend="dra_shared",
    # Pods that name one claim see the same card, whole. Limits by MPS are behind a gate (MPSSupport, alpha) that is off
    # by default.
    framebuffer_isolation=FramebufferIsolation.NONE,
    compute_isolation=ComputeIsolation.NONE,
    core_policies=(),
    granularity=Granularity.POD,
    # Who may use a claim at once is listed in its status, and the list ends there.
    slices_per_card_max=256,
    # Of what a pod is planned with; the claim is of the whole card.
    framebuffer_step_bytes=MIB,
    division=Division.CLAIM,
    admits_pods=False,
    refuses=(
        ("oversubscribe", "a claim grants no framebuffer, so there is none that could be granted twice"),
        ("colocate", "pods that share a claim know no priority among each other"),
        ("mig", "it claims cards whole; enforcer.backend=dra_mig claims instances"),
    ),
    partly=(
        ("slice", _TOGETHER),
        ("offpeak_pair", _TOGETHER),
    ),
    source=(
        Source(
            where="kubernetes/api:resource/v1/types.go",
            facts="division slices_per_card_max admits_pods live_framebuffer_change granularity",
        ),
        Source(
            where="kubernetes-sigs/dra-driver-nvidia-gpu:api/nvidia.com/resource/v1beta1/sharing.go",
            facts="core_policies priority_levels refuses partly fault_isolation",
        ),
        Source(
            where="kubernetes-sigs/dra-driver-nvidia-gpu:pkg/featuregates/featuregates.go",
            facts="framebuffer_isolation compute_isolation oversubscription",
        ),
        Source(
            where="kubernetes-sigs/dra-driver-nvidia-gpu:demo/specs/consumable-shares", facts="framebuffer_step_bytes"
        ),
    ),
    accepted_by=(
        AcceptedBy(
            what="kube-scheduler, without NVIDIA's driver",
            where="tests/cluster/test_dra_claims.py::test_pods_that_share_a_claim_share_the_planned_card_and_no_other_is_held",
        ),
        AcceptedBy(
            what="kube-scheduler, for pods that asked by an extended resource (Kubernetes 1.36)",
            where="tests/cluster/test_dra_claims.py::test_pods_that_ask_by_an_extended_resource_are_seen_on_their_cards_and_come_to_the_planned_one",
        ),
        AcceptedBy(
            what="kube-scheduler, for whole plans of fleets",
            where="tests/cluster/test_planned_placement.py::test_pods_come_to_their_planned_cards_as_many_are_free_as_planned_and_undo_takes_all_back",
        ),
    ),
)
"""One claim of a whole card that several pods of a namespace name (`resource.k8s.io/v1`, class `gpu.nvidia.com`)."""

_COUNTED = (
    "the scheduler counts framebuffer by each pod's claim, and nothing stops a process from taking more; compute is "
    "not limited; which pods of a node share a card is its choice, by framebuffer alone, so a node gets slices for one "
    "card, or slices of which any that fit a card may share it, sized up to fill it; a pod that comes while a planned "
    "card is still held opens another one, and then fewer cards become free than planned"
)

DRA_CONSUMABLE = Capabilities(
    backend="dra_consumable",
    # ConsumableShares (driver 0.5, alpha, off by default) publishes cards that several claims may hold; what each asks
    # of their memory is added up by kube-scheduler and enforced by nobody.
    framebuffer_isolation=FramebufferIsolation.ACCOUNTING,
    compute_isolation=ComputeIsolation.NONE,
    core_policies=(),
    granularity=Granularity.POD,
    # kube-scheduler takes the first device of the node's list that has the capacity left.
    division=Division.SCHEDULER,
    # No limit of its own; a share of a card is planned in hundredths at the finest.
    slices_per_card_max=100,
    # The policy `memory` of the driver counts in steps of 1 MiB.
    framebuffer_step_bytes=MIB,
    admits_pods=False,
    # A claim of a whole card and one of a part pick by capacity alone.
    one_size_per_node=True,
    refuses=(
        ("oversubscribe", "what claims ask for never adds up to more than a card has"),
        ("colocate", "pods that share a card know no priority among each other"),
        ("mig", "it claims cards and parts of them; enforcer.backend=dra_mig claims instances"),
    ),
    partly=(
        ("slice", _COUNTED),
        ("offpeak_pair", _COUNTED),
    ),
    source=(
        Source(
            where="kubernetes/api:resource/v1/types.go",
            facts="division slices_per_card_max admits_pods live_framebuffer_change granularity oversubscription",
        ),
        Source(
            where="kubernetes-sigs/dra-driver-nvidia-gpu:demo/specs/consumable-shares",
            facts="framebuffer_isolation framebuffer_step_bytes one_size_per_node refuses partly",
        ),
        Source(
            where="kubernetes-sigs/dra-driver-nvidia-gpu:pkg/featuregates/featuregates.go",
            facts="framebuffer_isolation compute_isolation core_policies priority_levels fault_isolation",
        ),
    ),
)
"""A claim per pod of a part of a card's memory (`resource.k8s.io/v1`, class `gpu.nvidia.com`), which kube-scheduler
counts from Kubernetes 1.36 on (DRAConsumableCapacity)."""
