"""Volcano vGPU's words for a plan: resources per card, the library's variables, queues.

Its plugin has no webhook, so the template itself names Volcano's scheduler and holds what HAMi's webhook would fill in.
Sources: Project-HAMi/volcano-vgpu-device-plugin:pkg/plugin/server.go, pkg/util/util.go,
volcano-sh/volcano:pkg/scheduler/api/devices/nvidia/vgpu/utils.go; the queue's annotation
volcano-sh/apis:pkg/apis/scheduling/v1beta1/labels.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from enforcer.backend import RenderedStage
from enforcer.backends.card_fit import CORE_MODE, check_cards, is_whole, shared_percent
from enforcer.backends.grant_backend import GrantFamily, NodeChanges, render_grants
from enforcer.backends.hami import core_limit_mark, core_policy_fields, lifts_core_limit, registered_seat
from enforcer.backends.hami_dialect import cards_of_register, memory_factor, nvidia_section, slices_of_grants
from enforcer.backends.node_config import node_config_changes
from enforcer.backends.pod_template import Limits, TemplateStyle
from enforcer.backends.stage import StageDraft, Target
from enforcer.dialect import ObjectKey, SeatSlice, StandingCard
from enforcer.kinds.register import pod_templates
from enforcer.manifest import Manifest, workload_parts
from enforcer.resource_names import Words
from enforcer.snapshot import Snapshot
from fleet.capabilities.register import VOLCANO
from fleet.decisions import CardPlacement, PlacedSlice, Plan
from fleet.errors import Refused
from fleet.grammars.hami import CORE_POLICY_ENV, DISABLE_CONTROL_ENV, PRIORITY_ENV, disables_control
from fleet.grammars.volcano import (
    CORES_RESOURCE,
    COUNT_RESOURCE,
    FRAMEBUFFER_RESOURCE,
    IDS_ANNOTATION,
    REGISTER_ANNOTATION,
    parse_volcano_ids,
    parse_volcano_register,
)
from fleet.inventory import Priority, WorkloadId

DEVICE_CONFIG: ObjectKey = ("ConfigMap", "kube-system", "volcano-vgpu-device-config")
NODE_CONFIG: ObjectKey = ("ConfigMap", "kube-system", "volcano-vgpu-node-config")

PLUGIN: ObjectKey = ("DaemonSet", "kube-system", "volcano-device-plugin")

SCHEDULER = "volcano"

QUEUE_ANNOTATION = "scheduling.volcano.sh/queue-name"
"""On a pod that belongs to no job of Volcano's: the queue of the PodGroup that its controller makes for it."""

GROUP_ANNOTATION = "scheduling.k8s.io/group-name"
"""On a pod of a PodGroup, whose members are only scheduled together."""

VOLCANO_WORDS = Words(
    count=COUNT_RESOURCE,
    framebuffer=FRAMEBUFFER_RESOURCE,
    framebuffer_percent="volcano.sh/vgpu-memory-percentage",
    cores=CORES_RESOURCE,
    priority=None,
    use_card="volcano.sh/vgpu-use-gpuuuid",
    avoid_card="volcano.sh/vgpu-nouse-gpuuuid",
    use_model="nvidia.com/use-gputype",
    avoid_model="nvidia.com/nouse-gputype",
    node_policy=None,
    card_policy=None,
)


class VolcanoDialect:
    """Volcano's annotations (the port `Dialect`); its scheduler knows no other names than these."""

    config_objects: tuple[ObjectKey, ...] = (DEVICE_CONFIG, NODE_CONFIG)

    def __init__(self, words: Words = VOLCANO_WORDS) -> None:
        self.words = words

    def configured(self, configs: Mapping[ObjectKey, Manifest]) -> VolcanoDialect:
        """With the memory factor of its plugin; see the port."""
        section = nvidia_section(configs, DEVICE_CONFIG)
        factor = memory_factor(section, "gpuMemoryFactor", self.words.framebuffer_factor, DEVICE_CONFIG[2])
        return VolcanoDialect(replace(self.words, framebuffer_factor=factor))

    def slices_of_pod(self, pod: Manifest) -> tuple[SeatSlice, ...]:
        """What `volcano.sh/vgpu-ids-new` says; see the port."""
        text = pod["metadata"].get("annotations", {}).get(IDS_ANNOTATION, "")
        return slices_of_grants(pod, parse_volcano_ids(text), _priority_of)

    def cards_of_node(self, node: Manifest) -> tuple[StandingCard, ...]:
        """What `volcano.sh/node-vgpu-register` lists; see the port."""
        text = node["metadata"].get("annotations", {}).get(REGISTER_ANNOTATION, "")
        return cards_of_register(node, parse_volcano_register(text))


VOLCANO_DIALECT = VolcanoDialect()


class VolcanoBackend:
    """Volcano vGPU (the port `Backend`).

    Args:
        low_priority_queue: queue that pods of low priority wait in; None leaves queues as they are.
    """

    capabilities = VOLCANO
    dialect = VOLCANO_DIALECT

    def __init__(self, now: datetime, *, low_priority_queue: str | None = None) -> None:
        self._now = now
        self._low_priority_queue = low_priority_queue

    def render(self, plan: Plan, stage: int, snapshot: Snapshot) -> RenderedStage:
        """Turn one stage into changes; see the port."""
        family = GrantFamily(
            capabilities=VOLCANO,
            seat_of=_seater(plan),
            style=TemplateStyle(
                limits_of=_limits,
                container_fields=_container_fields(plan),
                annotations=lambda example: {**core_limit_mark(plan)(example), **self._annotations(example)},
                scheduler_name=SCHEDULER,
                switch_off=_switch_off,
            ),
            check=_check,
            node_changes=_node_changes,
        )
        return render_grants(family, VOLCANO_DIALECT, plan, stage, snapshot, self._now)

    def _annotations(self, example: Target) -> Mapping[str, str | None]:
        if self._low_priority_queue is None or example.after[0].priority != "1":
            return {}
        return {QUEUE_ANNOTATION: self._low_priority_queue}


def _seater(plan: Plan) -> Callable[[CardPlacement, PlacedSlice, Snapshot, Words], SeatSlice]:
    levelled = _levelled(plan)

    def seat_of(card: CardPlacement, part: PlacedSlice, snapshot: Snapshot, words: Words) -> SeatSlice:
        whole = is_whole(card, part)
        # Nobody fits beside a pod that is granted the whole framebuffer; Volcano fills in no cores for it.
        percent = 0 if whole else shared_percent(card, part)
        seat = registered_seat(card, part, snapshot, words, whole=whole, core_percent=percent)
        return replace(seat, priority=_priority(part, snapshot, levelled))

    return seat_of


def _levelled(plan: Plan) -> frozenset[WorkloadId]:
    """Workloads that say a level: one of them in its template holds for all replicas, and for all beside any of them.

    The library takes a pod without a level for low priority, so none may be without beside one that has it.
    """
    found = {part.workload for card in plan.placement for part in card.slices if part.priority is not Priority.NORMAL}
    sharing = [{part.workload for part in card.slices} for card in plan.placement]
    while more := {name for names in sharing if names & found for name in names - found}:
        found |= more
    return frozenset(found)


def _level(part: PlacedSlice, levelled: frozenset[WorkloadId]) -> str | None:
    if part.priority is Priority.LOW:
        return "1"
    return "0" if part.workload in levelled else None


def _priority(part: PlacedSlice, snapshot: Snapshot, levelled: frozenset[WorkloadId]) -> str | None:
    """The priority of a pod; a Job's keep theirs, for it is a variable of a template that can't be changed."""
    wanted, sitting = _level(part, levelled), snapshot.seats.get(part.pod_id)
    if workload_parts(part.workload)[1] != "Job" or sitting is None:
        return wanted
    held = next((one.priority for one in sitting.slices), None)
    if part.priority is Priority.LOW and held != wanted:
        raise Refused(
            f"cannot give {part.pod_id} low priority: it is {PRIORITY_ENV} in the template of a Job, which can't be "
            "changed; make the Job anew with it"
        )
    return held


def _limits(slices: Sequence[SeatSlice], words: Words) -> Limits:
    part = max(slices, key=lambda part: part.framebuffer_mib)
    cores = str(part.core_percent) if part.core_percent else None
    return str(part.framebuffer_mib // words.framebuffer_factor), cores


def _container_fields(plan: Plan) -> Callable[[Target], Mapping[str, str | None]]:
    """What HAMi's webhook would put into the container, and what makes a limit hold."""
    core_policy = core_policy_fields(plan)

    def fields(example: Target) -> Mapping[str, str | None]:
        return {f"env[{PRIORITY_ENV}]": example.after[0].priority, **core_policy(example)}

    return fields


def _switch_off(container: Manifest, counts_as_it_is: bool) -> str | None:
    if disables_control(container.get("env") or (), VOLCANO.backend):
        return DISABLE_CONTROL_ENV
    return CORE_POLICY_ENV if counts_as_it_is and lifts_core_limit(container) else None


def _priority_of(container: Manifest) -> str | None:
    return next(
        (
            str(entry["value"])
            for entry in container.get("env", ())
            if entry["name"] == PRIORITY_ENV and "value" in entry
        ),
        None,
    )


def _check(draft: StageDraft, snapshot: Snapshot) -> Sequence[str]:
    warnings, levelled = check_cards(draft, snapshot, VOLCANO, (CORE_MODE,)), _levelled(draft.plan)
    for card in draft.cards:
        for part in card.slices:
            if _priority(part, snapshot, levelled) != _level(part, levelled):
                warnings.append(
                    f"{part.workload} is not given priority above what shares card {card.card} with it: it is "
                    f"{PRIORITY_ENV} in a Job's template, which can't be changed"
                )
    for workload in draft.targets:
        owner = snapshot.owners.get(workload)
        templates = () if owner is None else pod_templates(owner)
        named = [((template.body.get("metadata") or {}).get("annotations") or {}) for template in templates]
        for found in [one for one in named if GROUP_ANNOTATION in one][:1]:
            warnings.append(
                f"{workload} is scheduled as PodGroup {found[GROUP_ANNOTATION]}: a pod that is made anew waits "
                "until its minMember can be scheduled together"
            )
    return warnings


def _node_changes(draft: StageDraft, snapshot: Snapshot) -> NodeChanges:
    return node_config_changes(draft, snapshot, NODE_CONFIG, PLUGIN)
