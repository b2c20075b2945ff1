"""The words in which a kind of workload is described: its pod templates, its sizes, how a change reaches its pods.

Pure. A backend renders fields of *one* pod template, named as a Deployment has it (`spec.template…`). A kind says where
its own templates stand, so that the same fields are written at the owner that users edit, at its own paths; kinds with
several templates (a head and workers) get the fields of each for the pods that are made from it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from enforcer.manifest import Manifest, field_of
from fleet.errors import Refused
from fleet.sentences import Sentence, sentence
from fleet.units import format_time
from fleet.workload_kinds import ORDERED_KINDS

TEMPLATE = "spec.template"
"""The path by which backends name a pod template."""

NOW = "now"
"""Value of a stop field that is the moment of the stop."""


class Reach(StrEnum):
    """How a changed template comes to the pods."""

    ROLLS = "rolls"
    """The controller replaces pods by itself."""
    EVICTED = "evicted"
    """A pod is made of the new template once it was evicted."""
    NEXT_RUN = "next_run"
    """Pods that run keep what they have; the next run is made of the new template."""
    FIXED = "fixed"
    """Not at all: the object is made anew or left as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTemplate:
    """One pod template of an owner.

    Attributes:
        role: which of its pods are made from it; empty where all are.
        pieces: where parts of it stand elsewhere than below `path`: path within the template (`.spec.containers[a]`) to
            path in the owner.
    """

    role: str
    path: str
    body: Manifest
    pieces: Mapping[str, str] = field(default_factory=dict)

    def view(self, owner: Manifest) -> Manifest:
        """The owner as backends look at it: with this template where a Deployment has its own."""
        return {**owner, "spec": {**owner.get("spec", {}), "template": self.body}}

    def place(self, path: str) -> str:
        """Where a field that a backend named stands in the owner; fields outside the template stand where they are."""
        if path != TEMPLATE and not path.startswith(f"{TEMPLATE}."):
            return path
        rest = path.removeprefix(TEMPLATE)
        for piece in sorted(self.pieces, key=len, reverse=True):
            if rest == piece or (rest.startswith(piece) and rest[len(piece)] in ".["):
                return self.pieces[piece] + rest[len(piece) :]
        return self.path + rest


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """A field that says how many pods there are of a template.

    Attributes:
        pods_each: pods that one of it stands for.
    """

    role: str
    path: str
    pods_each: int = 1
    default: int = 1

    def pods(self, owner: Mapping[str, Any]) -> int:
        """How many pods it asks for; a value that is no number asks for the default."""
        text = field_of(owner, self.path)
        count = int(text) if text is not None and text.isascii() and text.isdigit() else self.default
        return count * self.pods_each


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePod:
    """A pod as a kind's scale knows it: its name and the role of its template."""

    name: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """What is asked of an owner's size.

    Attributes:
        leaving: pods that shall go, at least one.
        others: how many of its pods hold no card; they stay where the owner does.
    """

    owner: Manifest
    staying: tuple[RolePod, ...]
    leaving: tuple[RolePod, ...]
    others: int
    now: datetime

    @property
    def name(self) -> str:
        """Kind and name, for messages."""
        metadata = self.owner["metadata"]
        return f"{self.owner['kind']} {metadata.get('namespace', '')}/{metadata['name']}"


Fields = dict[str, str | None]
Scaler = Callable[[Scaling], Fields]


def _one_template(owner: Manifest) -> tuple[PodTemplate, ...]:
    body = owner.get("spec", {}).get("template")
    return (PodTemplate(role="", path=TEMPLATE, body=body),) if isinstance(body, dict) else ()


def _one_role(labels: Mapping[str, Any]) -> str:
    del labels
    return ""


def _nothing(owner: Mapping[str, Any]) -> None:
    del owner


def _no_size(owner: Mapping[str, Any]) -> tuple[Size, ...]:
    del owner
    return ()


def cannot_scale(scaling: Scaling) -> Fields:
    """Refuse: this kind has no size."""
    raise Refused(
        f"cannot stop {len(scaling.leaving)} pods of {scaling.name}: a {scaling.owner['kind']} has no number of "
        "replicas; it is its owner's to end it"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadKind:
    """One kind of workload.

    Attributes:
        reach: how a changed template comes to its pods.
        template_fields: matches the paths of fields that its pods are made from.
        templates: its pod templates; none where it says none itself.
        role_of: the role of a pod, by the pod's labels.
        stop_field: field by which it is stopped whole; None where there is none.
        stop_value: value of that field then; `NOW` for the moment.
        refusal: why the template of this owner can't be changed; None where it can.
        counts_rolled: its status has `updatedReplicas` and `replicas`.
        by_replica_sets: its pods are those of ReplicaSets, where a pod's deletion cost says who goes first.
        trouble: what its status says went wrong; None where nothing did.
        is_settled: whether its status says that nothing is on its way any more.
        note: what a user should know before its pods are changed; None where there is nothing to say.
    """

    kind: str
    reach: Reach
    template_fields: re.Pattern[str] = re.compile(r"spec\.template\.")
    templates: Callable[[Manifest], tuple[PodTemplate, ...]] = _one_template
    role_of: Callable[[Mapping[str, Any]], str] = _one_role
    sizes: Callable[[Mapping[str, Any]], tuple[Size, ...]] = _no_size
    stop_field: str | None = None
    stop_value: str = "true"
    scale: Scaler = cannot_scale
    refusal: Callable[[Mapping[str, Any]], str | None] = _nothing
    counts_rolled: bool = False
    by_replica_sets: bool = False
    trouble: Callable[[Mapping[str, Any]], Sentence | None] = _nothing
    is_settled: Callable[[Mapping[str, Any]], bool] | None = None
    note: str | None = None

    @property
    def is_ordered(self) -> bool:
        """Whether its controller begins with the highest ordinal."""
        return self.kind in ORDERED_KINDS

    def is_stopped(self, owner: Mapping[str, Any]) -> bool:
        """Whether it is stopped whole."""
        if self.stop_field is None:
            return False
        value = field_of(owner, self.stop_field)
        return value is not None and self.stop_value in (NOW, value)

    def wanted(self, owner: Mapping[str, Any]) -> int | None:
        """How many pods it asks for; None where it does not say."""
        if self.is_stopped(owner):
            return 0
        sizes = self.sizes(owner)
        return sum(size.pods(owner) for size in sizes) if sizes else None


_REPLICAS = Size(role="", path="spec.replicas")


def one_size(owner: Mapping[str, Any]) -> tuple[Size, ...]:
    """`spec.replicas` for all pods."""
    del owner
    return (_REPLICAS,)


def fewer_replicas(scaling: Scaling) -> Fields:
    """As many less as pods go."""
    is_left = bool(scaling.staying) or scaling.others > 0
    left = max(0, _REPLICAS.pods(scaling.owner) - len(scaling.leaving))
    return {_REPLICAS.path: str(left) if is_left else "0"}


def stopped_whole(path: str, value: str = "true") -> Scaler:
    """Stopped by one field, and only if every pod that holds a card goes."""

    def scale(scaling: Scaling) -> Fields:
        if scaling.staying:
            raise Refused(
                f"cannot stop {len(scaling.leaving)} pods of {scaling.name}: it is stopped whole or not at all, and "
                f"{len(scaling.staying)} of its pods are to stay"
            )
        return {path: format_time(scaling.now) if value == NOW else value}

    return scale


def condition(owner: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A condition of an owner's status by its type; empty where there is none."""
    found = owner.get("status", {}).get("conditions")
    named = (one for one in found if isinstance(one, Mapping)) if isinstance(found, Sequence) else ()
    return next((one for one in named if one.get("type") == name), {})


def is_observed(owner: Mapping[str, Any]) -> bool:
    """Whether the owner's controller has seen its specification as it stands, where its status says so.

    Argo Rollouts writes the generation as text (argoproj/argo-rollouts:pkg/apis/rollouts/v1alpha1/types.go).
    """
    observed = owner.get("status", {}).get("observedGeneration")
    generation = owner["metadata"].get("generation")
    if observed is None or generation is None:
        return True
    text = str(observed)
    return text.isascii() and text.isdigit() and int(text) >= int(generation)


def in_trouble(what: Sentence, *details: object) -> Sentence:
    """What went wrong with what a status says of it, cut short: a controller repeats what a tenant's program said."""
    why = " ".join(str(part) for part in details if part)[:200]
    return sentence("mark.because", what=what, why=why) if why else what
