"""The way in which every backend of HAMi's kin renders a stage; what sets one apart is data and a few functions.

Called by the backends whose pods ask by `Words`, each of which says what is its own in a `GrantFamily`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from enforcer.backend import NodeStep, RenderedStage
from enforcer.backends.card_fit import is_whole
from enforcer.backends.node_pin import check_choices
from enforcer.backends.pod_template import TemplateStyle, seat_fields
from enforcer.backends.stage import StageDraft, Target, check_kinds, draft_stage, rendered
from enforcer.dialect import Dialect, ObjectKey, SeatSlice
from enforcer.kinds.register import pod_templates
from enforcer.manifest import Manifest, field_of, workload_parts
from enforcer.resource_names import Words
from enforcer.snapshot import Snapshot
from fleet.capabilities.capability import Capabilities
from fleet.decisions import CardPlacement, PlacedSlice, Plan
from fleet.outcomes import Change
from fleet.units import MIB


class WordsDialect(Dialect, Protocol):
    """A dialect whose pods ask by `Words`."""

    @property
    def words(self) -> Words:
        """Names of the installation."""
        ...

    def configured(self, configs: Mapping[ObjectKey, Manifest]) -> WordsDialect:
        """See `Dialect`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChanges:
    """What nodes need so that their cards can hold what a stage puts on them.

    Attributes:
        steps: nodes that must do something until it counts.
    """

    changes: tuple[Change, ...] = ()
    steps: tuple[NodeStep, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantFamily:
    """What sets one backend apart.

    Attributes:
        seat_of: a planned slice in its words; raises `Refused` where the cluster lacks what it names.
        style: what it says in a template besides resources.
    """

    capabilities: Capabilities
    seat_of: Callable[[CardPlacement, PlacedSlice, Snapshot, Words], SeatSlice]
    style: TemplateStyle
    check: Callable[[StageDraft, Snapshot], Sequence[str]]
    node_changes: Callable[[StageDraft, Snapshot], NodeChanges]


def render_grants(
    family: GrantFamily, dialect: WordsDialect, plan: Plan, stage: int, snapshot: Snapshot, now: datetime
) -> RenderedStage:
    """Render one stage; see the port `Backend`.

    Raises:
        Refused: the stage needs what the backend does not enforce, or the cluster lacks what it names.
    """
    words = dialect.configured(snapshot.configs).words

    def seater(card: CardPlacement, part: PlacedSlice) -> SeatSlice:
        return family.seat_of(card, part, snapshot, words)

    def template_fields(owner: Manifest, kind: str, staying: Sequence[Target]) -> Mapping[str, str | None]:
        return seat_fields(
            owner, kind, staying, plan_id=plan.plan_id, snapshot=snapshot, words=words, style=family.style
        )

    def is_said(targets: Sequence[Target]) -> bool:
        owner = snapshot.owners.get(targets[0].seat.workload) if targets else None
        if owner is None or workload_parts(targets[0].seat.workload)[1] == "Job":
            return True
        return any(_says(owner, target, family.style.container_fields(target)) for target in targets)

    draft = draft_stage(plan, stage, snapshot, seater, is_said)
    partly = check_kinds(family.capabilities, draft.recommendations)
    fit = family.check(draft, snapshot)
    check_choices(draft, snapshot)
    nodes = family.node_changes(draft, snapshot)
    warnings = (*partly, *draft.warnings, *fit, *_unit_warnings(draft, words))
    return rendered(
        draft, snapshot, template_fields, now, warnings=warnings, node_changes=nodes.changes, node_steps=nodes.steps
    )


def _says(owner: Manifest, target: Target, fields: Mapping[str, str | None]) -> bool:
    path = f"spec.template.spec.containers[{target.after[0].container}]"
    own = [template.view(owner) for template in pod_templates(owner) if template.role in ("", target.seat.role)]
    return all(field_of(view, f"{path}.{name}") == value for view in own for name, value in fields.items())


def _unit_warnings(draft: StageDraft, words: Words) -> list[str]:
    """Slices that the installation's own unit of framebuffer cuts: a plan knows MiB only."""
    factor = words.framebuffer_factor
    parts = [part for card in draft.cards for part in card.slices if not is_whole(card, part)]
    cut = [part.pod_id for part in parts if part.framebuffer_bytes // MIB % factor]
    if not cut:
        return []
    unit = f"a unit of {words.framebuffer} is {factor} MiB here"
    return [f"{len(cut)} slices, such as that of {cut[0]}, get up to {factor - 1} MiB less than the plan says: {unit}"]
