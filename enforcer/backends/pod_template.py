"""A pod template whose grants are resources and annotations: what it must hold for the planned seats of its replicas.

Shared by the backends whose pods ask by `Words`: HAMi and its kin. A template holds one grant for all its replicas, and
no card or node by name: the seat of each pod stands in `gputide.io/seats` on the owner, for the admission step.
A Job's template can't be changed, and a Notebook's has no annotations
(kubeflow/kubeflow:components/common/reconcilehelper/util.go, CopyStatefulSetFields).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from enforcer.admission import PlannedSeat, seats_text
from enforcer.backends.planned_seats import SEATS_FIELD, TEMPLATE_ANNOTATIONS, seat_marks
from enforcer.backends.stage import Target, check_init_containers
from enforcer.dialect import WHOLE_CORE_PERCENT, SeatSlice
from enforcer.manifest import Manifest, field_of, template_of
from enforcer.resource_names import Words, listed_words, names_model
from enforcer.snapshot import Snapshot
from fleet.errors import Refused
from fleet.grammars.hami import USE_CARD_ANNOTATION

Limits = tuple[str | None, ...]
"""Values of `Words.grant_resources`, in their order; None where the resource is left out."""

_POLICIES = ("binpack", "spread")
"""Scheduling policies that only weigh load; any other word is the tenant's own wish and stays."""


def _no_fields(example: Target) -> Mapping[str, str | None]:
    del example
    return {}


def _nothing(container: Manifest, counts_as_it_is: bool) -> str | None:
    del container, counts_as_it_is
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateStyle:
    """What a backend says in a template besides its resources.

    Attributes:
        limits_of: a seat as the template would say it; its slices are alike in cores and priority.
        container_fields: further fields of each container that wants a card, below its own path, for a pod that has
            the grant of the template.
        annotations: further annotations of the template, by name, for the same.
        annotation_defaults: what counts where such an annotation is absent.
        scheduler_name: scheduler that alone knows the backend's cards; None where a webhook sets it.
        switch_off: name of the variable by which a container says itself that no limit shall hold for it; None where
            it says none. Asked with whether it has a core limit in a template that stays as it is.
    """

    limits_of: Callable[[Sequence[SeatSlice], Words], Limits]
    container_fields: Callable[[Target], Mapping[str, str | None]] = _no_fields
    annotations: Callable[[Target], Mapping[str, str | None]] = _no_fields
    annotation_defaults: Mapping[str, str] = field(default_factory=dict)
    scheduler_name: str | None = None
    switch_off: Callable[[Manifest, bool], str | None] = _nothing


def seat_fields(
    owner: Manifest,
    kind: str,
    staying: Sequence[Target],
    *,
    plan_id: str,
    snapshot: Snapshot,
    words: Words,
    style: TemplateStyle,
) -> dict[str, str | None]:
    """Fields of an owner for the seats of its pods.

    Returns:
        Fields and new values; none where no pod moves.

    Raises:
        Refused: a seat can't be said in one template, or its pods avoid the cards that the plan gives them.
    """
    grants = {entry.seat.pod: _one_grant(entry, style, words) for entry in staying if entry.after}
    counted = Counter(grants[entry.seat.pod] for entry in staying if entry.new)
    if not counted:
        return {}
    # Of grants that are equally frequent the larger is the safer one for a pod that admission does not see.
    common = max(counted, key=lambda grant: (counted[grant], int(grant[0] or 0), tuple(part or "" for part in grant)))
    resources = words.grant_resources
    if any(value is not None for value in common):
        check_init_containers(owner, lambda container: asks_for_cards(container, words.counts))
        parts = [part for entry in staying for part in entry.new or ()]
        is_fixed = kind == "Job" and any(0 < one.core_percent < WHOLE_CORE_PERCENT for one in parts)
        _check_controlled(owner, words, style, counts_as_it_is=is_fixed)
    if kind == "Job":
        common = (None,) * len(resources)
    seats = {
        entry.seat.pod: _planned_seat(entry, grants[entry.seat.pod], common, kind, snapshot, words)
        for entry in staying
        if entry.after
    }
    if kind == "Job":
        return {SEATS_FIELD: seats_text(seats)}
    example = next(entry for entry in staying if entry.new and grants[entry.seat.pod] == common)
    cards = sorted(card for seat in seats.values() for card in seat.cards)
    further = style.annotations(example)
    annotations: dict[str, str | None] = {
        **_model_annotation(owner, cards, snapshot, words),
        **_policy_annotations(owner, seats, words),
        **further,
    }
    if kind == "Notebook":
        check_notebook(owner, further, style.annotation_defaults)
        annotations = {}
    fields = seat_marks(kind, seats, plan_id, dict(zip(resources, common, strict=True)))
    fields.update({f"{TEMPLATE_ANNOTATIONS}[{name}]": value for name, value in annotations.items()})
    if style.scheduler_name is not None:
        fields["spec.template.spec.schedulerName"] = style.scheduler_name
    count = _count_resource(owner, cards, snapshot, words)
    further_of_containers = style.container_fields(example)
    for container in template_of(owner)["spec"]["containers"]:
        if asks_for_cards(container, words.counts):
            path = f"spec.template.spec.containers[{container['name']}]"
            fields.update(_count_fields(container, path, count, words))
            fields.update(_amount_fields(container, path, common, words))
            fields.update({f"{path}.{name}": value for name, value in further_of_containers.items()})
    return fields


def _check_controlled(owner: Manifest, words: Words, style: TemplateStyle, *, counts_as_it_is: bool) -> None:
    """A share is one only where the container is kept to it."""
    for container in template_of(owner)["spec"]["containers"]:
        name = style.switch_off(container, counts_as_it_is) if asks_for_cards(container, words.counts) else None
        if name is not None:
            raise Refused(
                f"cannot give {owner['metadata']['name']} a share of a card: its container {container['name']} sets "
                f"{name}, with which no limit holds; take that away first"
            )


def asks_for_cards(container: Manifest, counts: Sequence[str]) -> bool:
    """Whether a container asks for cards by one of these resources."""
    limits = (container.get("resources") or {}).get("limits") or {}
    return any(name in limits for name in counts)


def check_notebook(owner: Manifest, annotations: Mapping[str, str | None], defaults: Mapping[str, str]) -> None:
    """Refuse annotations that a Notebook's pods would need.

    Raises:
        Refused: one of them says more than its default.
    """
    for name, value in annotations.items():
        if value is not None and value != defaults.get(name):
            raise Refused(
                f"cannot give Notebook {owner['metadata']['name']} {name}: a Notebook's pods take no annotations"
            )


def _planned_seat(
    target: Target, grant: Limits, common: Limits, kind: str, snapshot: Snapshot, words: Words
) -> PlannedSeat:
    cards = tuple(sorted({part.card for part in target.after if part.card is not None}))
    node = next((snapshot.cards[card].node for card in cards if card in snapshot.cards), target.seat.node)
    is_said = grant == common and kind != "Job"
    return PlannedSeat(
        node=node or "",
        cards=cards,
        shares=tuple(_share_of(target, card) for card in cards),
        limits=() if is_said else tuple(zip(words.grant_resources, grant, strict=True)),
        annotation=words.use_card or USE_CARD_ANNOTATION,
    )


def _share_of(target: Target, card: str) -> tuple[int, int]:
    parts = [part for part in target.after if part.card == card]
    percent = sum(part.core_percent for part in parts)
    return sum(part.framebuffer_mib for part in parts), min(percent, WHOLE_CORE_PERCENT)


def _one_grant(target: Target, style: TemplateStyle, words: Words) -> Limits:
    if len({(part.core_percent, part.priority) for part in target.after}) > 1:
        raise Refused(
            f"cannot give {target.seat.pod_id} different grants on its cards: every card of a container is granted the "
            "same framebuffer, cores and priority"
        )
    return style.limits_of(target.after, words)


def _count_resource(owner: Manifest, cards: Sequence[str], snapshot: Snapshot, words: Words) -> str | None:
    """The one resource by which the template asks for its cards, None where it may stay as it is."""
    if not words.count_by_model:
        return None
    models = {snapshot.cards[card].device_type for card in cards if card in snapshot.cards}
    found = {words.count_of_model(model) for model in models}
    if len(found) > 1:
        raise Refused(
            f"cannot put replicas of {owner['metadata']['name']} on {', '.join(sorted(models))} at once: each model is "
            f"asked for by a resource of its own ({', '.join(sorted(found))}), and a template names one"
        )
    return found.pop() if found else None


def _count_fields(container: Manifest, path: str, count: str | None, words: Words) -> dict[str, str | None]:
    limits = container["resources"]["limits"]
    if count is None or count in limits:
        return {}
    amount = str(next(limits[name] for name in words.counts if name in limits))
    fields: dict[str, str | None] = {}
    for part in ("limits", "requests"):
        named = [name for name in words.counts if name in container["resources"].get(part, {})]
        fields.update({f"{path}.resources.{part}[{name}]": None for name in named})
        if named:
            fields[f"{path}.resources.{part}[{count}]"] = amount
    return fields


def _amount_fields(container: Manifest, path: str, grant: Limits, words: Words) -> dict[str, str | None]:
    amounts = dict(zip(words.grant_resources, grant, strict=True))
    if words.framebuffer_percent is not None:
        # A share in percent counts wherever no amount is given, so it would cut a whole card.
        amounts[words.framebuffer_percent] = None
    # The API server takes extended resources only where limit and request are the same.
    requests = container["resources"].get("requests", {})
    fields = {f"{path}.resources.limits[{name}]": value for name, value in amounts.items()}
    return {
        **fields,
        **{f"{path}.resources.requests[{name}]": value for name, value in amounts.items() if name in requests},
    }


def _policy_annotations(owner: Manifest, seats: Mapping[str, PlannedSeat], words: Words) -> Mapping[str, str | None]:
    """Binpack or spread, so that pods which admission does not pin fall as the plan means it."""
    cards = [seat.cards for seat in seats.values()]
    nodes = [(seat.node,) for seat in seats.values()]
    found: dict[str, str | None] = {}
    for name, places in ((words.node_policy, nodes), (words.card_policy, cards)):
        if name is None:
            continue
        wish = field_of(owner, f"{TEMPLATE_ANNOTATIONS}[{name}]")
        if wish is None or wish in _POLICIES:
            found[name] = "spread" if len(set(places)) == len(places) > 1 else "binpack"
    return found


def _model_annotation(
    owner: Manifest, cards: Sequence[str], snapshot: Snapshot, words: Words
) -> Mapping[str, str | None]:
    """Lets pods come to the planned cards where they chose another model; who avoids them is left alone."""
    annotations = template_of(owner).get("metadata", {}).get("annotations", {})
    name = owner["metadata"]["name"]
    avoided = set(listed_words(annotations.get(words.avoid_card))) & set(cards)
    if avoided:
        raise Refused(f"cannot put {name} on card {min(avoided)}: its template's {words.avoid_card} names it")
    models = {snapshot.cards[card].device_type for card in cards if card in snapshot.cards}
    for model in sorted(models):
        if names_model(annotations.get(words.avoid_model, ""), model):
            raise Refused(
                f"cannot put {name} on a {model}: its template's {words.avoid_model} is "
                f"{annotations[words.avoid_model]!r}"
            )
    used = annotations.get(words.use_model)
    if words.use_model is None or used is None or all(names_model(used, model) for model in models):
        return {}
    return {words.use_model: ",".join(sorted(models))}
