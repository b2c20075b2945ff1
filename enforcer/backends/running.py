"""The backend that really runs in a cluster: its version, whether its parts answer, and whether a plan was made for it.

Every stage is rendered through `RunningBackend`, by `apply` and by its dry run alike, so both refuse for the same
reason before anything is written. The version is the tag of the images that the backend's own Deployments and
DaemonSets run: each chart tags them with it. Of several the oldest counts, for in an update both are running.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from enforcer.backend import Backend, NodeOwner, RenderedStage
from enforcer.backends.node_mode import check_modes, render_switch
from enforcer.backends.node_pin import node_of
from enforcer.backends.stage import check_kinds, check_lending
from enforcer.dialect import Dialect
from enforcer.kinds.register import pod_templates
from enforcer.machines import Machine
from enforcer.manifest import Manifest, template_of, workload_parts
from enforcer.node_release import render_release
from enforcer.safety.priority_hold import check_limits_lifted, check_priority
from enforcer.snapshot import Snapshot
from fleet.capabilities.capability import Capabilities
from fleet.capabilities.register import check_experimental, records_of
from fleet.capabilities.version import VERSION_SETTING, parse_version, record_for, version_note
from fleet.decisions import Need, Plan
from fleet.errors import Refused
from fleet.inventory import WorkloadId
from fleet.priority_holds import Holders
from fleet.sentences import Sentence, sentence

LeftOut = Callable[[str, Sequence[tuple[str, Mapping[str, str]]]], Sentence | None]
"""Why a webhook of this name is not asked about new pods of these namespaces and labels; None where it is."""

PART_KINDS = ("Deployment", "DaemonSet")
"""Kinds that schedulers, webhooks and device plugins are installed as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendPart:
    """One Deployment or DaemonSet of a backend.

    Attributes:
        tag: tag of its image; None where the image is named by digest alone.
    """

    kind: str
    namespace: str
    name: str
    tag: str | None
    ready: int
    wanted: int

    def __str__(self) -> str:
        """As `Deployment kube-system/hami-scheduler`."""
        return f"{self.kind} {self.namespace}/{self.name}"


def parts_of(images: Iterable[str], workloads: Iterable[Manifest]) -> tuple[BackendPart, ...]:
    """The parts of a backend, by its images.

    Args:
        workloads: manifests of Deployments and DaemonSets; others are passed over.
    """
    endings = tuple(images)
    found = []
    for manifest in workloads:
        if manifest["kind"] not in PART_KINDS:
            continue
        containers = template_of(manifest).get("spec", {}).get("containers") or ()
        tags = [tag for entry in containers for tag in _tags(str(entry.get("image", "")), endings)]
        if tags:
            status, metadata = manifest.get("status") or {}, manifest["metadata"]
            is_deployment = manifest["kind"] == "Deployment"
            found.append(
                BackendPart(
                    kind=manifest["kind"],
                    namespace=metadata.get("namespace", ""),
                    name=metadata["name"],
                    tag=tags[0],
                    ready=int(status.get("availableReplicas" if is_deployment else "numberReady") or 0),
                    wanted=int(
                        manifest["spec"].get("replicas", 1)
                        if is_deployment
                        else status.get("desiredNumberScheduled") or 0
                    ),
                )
            )
    return tuple(found)


def running_tag(parts: Iterable[BackendPart]) -> str | None:
    """The version that runs; None where no tag names one."""
    versions = [(version, part.tag) for part in parts if part.tag and (version := parse_version(part.tag))]
    return min(versions)[1] if versions else None


class RunningBackend:
    """A backend, with what the cluster shows of it (the port `Backend`).

    Args:
        version: its version, where the settings name it; None to see it by the images that run.
        allows_experimental: whether one that nothing real has accepted yet may be rendered for.
        left_out: why an admission webhook of a real cluster is not asked about some new pods; None for a simulated one,
            which runs no parts.
        holders: what holds low priority back beyond the backend, as of now.
        measured: what probes leave of a version's record, as of now; asked where a stage is rendered alone, so that no
            way back hangs on it.
        machine: a node's machine and who takes it away, as of now.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        version: str | None,
        allows_experimental: bool,
        left_out: LeftOut | None,
        holders: Callable[[], Holders] = Holders,
        measured: Callable[[Capabilities], Capabilities] = lambda record: record,
        machine: Callable[[Manifest], Machine] = lambda _: Machine(owner=NodeOwner.NOBODY),
    ) -> None:
        self._backend = backend
        self._version = version
        self._allows_experimental = allows_experimental
        self._left_out = left_out
        self._holders = holders
        self._measured = measured
        self._machine = machine

    @property
    def capabilities(self) -> Capabilities:
        """What its newest version enforces."""
        return self._backend.capabilities

    @property
    def dialect(self) -> Dialect:
        """The backend's."""
        return self._backend.dialect

    def render(self, plan: Plan, stage: int, snapshot: Snapshot) -> RenderedStage:
        """Turn one stage into changes; see the port.

        Raises:
            Refused: also where the backend is experimental and not allowed, its version is not the one that the plan
                was made for, one of its parts does not answer or is not registered, or low priority is not held back
                as the stage counts on.
        """
        name = self.capabilities.backend
        check_experimental(self.capabilities, allowed=self._allows_experimental)
        parts = parts_of(self.capabilities.images, snapshot.owners.values())
        tag = self._version or running_tag(parts)
        record = self._record(plan, tag)
        entries = {entry.id: entry for entry in plan.recommendations}
        chosen = [entries[one] for item in plan.stages if item.stage == stage for one in item.recommendations]
        measured = self._measured(record)
        check_kinds(measured, chosen)
        check_lending(measured, plan, chosen)
        if any(Need.PRIORITY in item.needs for item in chosen):
            check_priority(plan, chosen, record, self._holders(), snapshot)
        check_limits_lifted(plan, chosen, record, snapshot)
        check_modes(plan, chosen, snapshot)
        for part in parts:
            if part.wanted > 0 and part.ready == 0:
                raise Refused(
                    f"cannot apply stage {stage} with {name}: {part} has 0 of {part.wanted} pods ready, and it places "
                    f"the pods of this stage; see kubectl -n {part.namespace} describe {part.kind.lower()} {part.name}"
                )
        if plan.node_switch is not None:
            rendered = render_switch(plan.plan_id, plan.node_switch, snapshot, record)
        elif plan.node_release is not None:
            machine = self._machine(node_of(snapshot, plan.node_release.node))
            rendered = render_release(plan.plan_id, plan.node_release, machine, snapshot)
        else:
            rendered = self._backend.render(plan, stage, snapshot)
        self._check_webhook(stage, [move.workload for move in rendered.moves if move.new], snapshot)
        return replace(rendered, warnings=(*self._notes(tag, bool(parts)), *rendered.warnings))

    def _check_webhook(self, stage: int, workloads: Iterable[WorkloadId], snapshot: Snapshot) -> None:
        """Refuse a stage whose new pods would not come to the backend's scheduler."""
        own = self.capabilities.webhook
        if own is None or self._left_out is None:
            return
        pods = [
            (workload_parts(workload)[0], (template.body.get("metadata") or {}).get("labels") or {})
            for workload in dict.fromkeys(workloads)
            if workload in snapshot.owners
            for template in pod_templates(snapshot.owners[workload])
        ]
        why = self._left_out(own, pods) if pods else None
        if why is not None:
            raise Refused(sentence("guard.unscheduled", stage=stage, backend=self.capabilities.backend, why=why))

    def _record(self, plan: Plan, tag: str | None) -> Capabilities:
        """What the running version enforces, which must be what the plan was made with."""
        records = records_of(self.capabilities.backend)
        running, planned = record_for(records, tag), record_for(records, plan.backend_version)
        if running != planned:
            raise Refused(
                f"cannot apply plan {plan.plan_id}: it was made for {running.backend} "
                f"{plan.backend_version or f'from {planned.since} on'}, and {tag or 'an unknown version'} runs here, "
                f"which enforces something else; make a new plan, with --set {VERSION_SETTING}={tag} where it is not "
                "seen then"
            )
        return running

    def _notes(self, tag: str | None, has_parts: bool) -> tuple[str, ...]:
        name, images = self.capabilities.backend, self.capabilities.images
        newer = version_note(records_of(name), tag)
        if newer is not None:
            return (str(newer),)
        if tag is not None or not images or self._left_out is None:
            return ()
        seen = "its image's tag names none" if has_parts else f"no Deployment or DaemonSet runs an image {images[0]}"
        return (f"the version of {name} is not known ({seen}): set {VERSION_SETTING}",)


def _tags(image: str, endings: tuple[str, ...]) -> list[str | None]:
    """The tag of an image whose repository ends in one of some names; nothing for any other image."""
    named, _, _ = image.partition("@")
    repository, colon, tag = named.rpartition(":")
    if not colon or "/" in tag:
        repository, tag = named, ""
    is_own = any(repository == ending or repository.endswith(f"/{ending}") for ending in endings)
    return [tag or None] if is_own else []
