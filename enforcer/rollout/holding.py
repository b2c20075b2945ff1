"""How an owner that rolls by itself is held after its first new pod, and kept from needing room that is not there.

Pure. A Deployment can't change one pod alone: its controller rolls as soon as the template changes. So the same patch
that changes the template makes it wait by a `minReadySeconds` that lets the first new pod count as available only once
it was watched. Where the planned seats have room beside the old ones the owner surges first: one new pod more, none
unavailable, and an old pod goes only when a new one is ready. Where they have none (a new pod needs the card that the
old one holds whole) there is no surge, and one pod is unavailable at most. Existing pods keep counting, for the old
ReplicaSet keeps its own `minReadySeconds`, and a new pod serves as soon as it is ready: only the count waits. `paused`
would not do: a paused Deployment makes no new ReplicaSet at all, and pausing it after the first pod is a race.

That hold is a pace, not a lock. It lasts as long as the canary's watch and a margin, at most ten minutes, counted by
the API server's controllers from the moment at which the pod got ready. So an owner whose enforcer died goes on by
itself within minutes. An enforcer that lives judges the canary before the pace is over, or takes the stage back: the
canary of a longer watch is judged after nine minutes, and the rest of the watch follows once all pods have changed.
`progressDeadlineSeconds` must exceed `minReadySeconds`, so it is raised by as much.

Argo's Rollout is held as a Deployment is, at its canary strategy. The other kinds have no such pace. A StatefulSet is
held by its partition, and a LeaderWorkerSet by its own, which counts groups: a longer `minReadySeconds` would let the
first wait for pods that are older than the change, too. A DaemonSet, whose `minReadySeconds` would turn its young pods
unavailable and so let them all go at once, is held by `OnDelete`. Those holds end with the next `apply`, `undo` or
`abort`, and with the first change of the template by anybody else (`enforcer.rollout.held_mark`), so none of them keeps
a hotfix waiting. An InferenceService has no field for the first pod alone: its canary is judged while the rest
follows.

What was there before stands in the intent and is written back when the stage is kept or taken back.

How many pods a strategy lets be unavailable at once is computed here too, for the owner as its users set it and as it
is held, by the same function: the guard compares the two.

Source: kubernetes:pkg/controller/deployment/rolling.go, kubernetes:pkg/controller/deployment/sync.go,
kubernetes:pkg/controller/deployment/util/deployment_util.go (ResolveFenceposts),
kubernetes:pkg/controller/statefulset/stateful_set_utils.go (getStatefulSetMaxUnavailable),
kubernetes:pkg/controller/daemon/update.go, kubernetes:pkg/controller/daemon/util/daemonset_util.go (UnavailableCount),
kubernetes:pkg/apis/apps/v1/defaults.go, kubernetes:pkg/apis/apps/validation/validation.go (ValidateDeploymentSpec),
argoproj/argo-rollouts:pkg/apis/rollouts/v1alpha1/types.go, argoproj/argo-rollouts:utils/defaults/defaults.go,
kubernetes-sigs/lws:api/leaderworkerset/v1, kubernetes-sigs/lws:pkg/controllers/leaderworkerset_controller.go,
kserve/kserve:pkg/apis/serving/v1beta1/component.go (deploymentStrategy, RawDeployment only).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from enforcer.disruption import scaled
from enforcer.kinds.kind import Reach
from enforcer.kinds.kserve import is_raw
from enforcer.kinds.register import is_template_field, workload_kind
from enforcer.manifest import field_of, values_equal
from enforcer.record.journal import HoldIntent, ObjectIntent

HOLD_SECONDS_MAX = 600
"""Longest time for which the first new pod does not count as available: a forgotten hold ends by the server's clock."""

HOLD_MARGIN_SECONDS = 60
"""How much longer a hold lasts than the watch under it: for the look that finds the pod, and the write that follows."""

_DEADLINE_DEFAULT_SECONDS = 600

_LEAST_READY = "spec.minReadySeconds"
_DEADLINE = "spec.progressDeadlineSeconds"
_ROLLING = "spec.strategy.rollingUpdate"
_CANARY = "spec.strategy.canary"
_PREDICTOR = "spec.predictor.deploymentStrategy"
_GROUPS = "spec.rolloutStrategy.rollingUpdateConfiguration"
_PARTITION = "spec.updateStrategy.rollingUpdate.partition"
_UPDATE_TYPE = "spec.updateStrategy.type"
_UPDATE = "spec.updateStrategy.rollingUpdate"


class Way(StrEnum):
    """How the pods of an owner that rolls follow each other; each value is shown to people."""

    SURGE = "surge-first"
    """New pods get ready beside the old ones, as many at once as the owner's own strategy has it."""
    SURGE_IN_TURN = "surge-first, one pod at a time"
    """Each new pod gets ready beside the old ones; the next finds its seat once an old one has left."""
    GAP = "with a gap, one pod at a time"
    """Each old pod leaves before a new one is made."""
    GAP_AT_ONCE = "with a gap, all pods at once"
    """They want each other's places, so that one after the other finds no room."""


class Phase(StrEnum):
    """How far an owner may roll."""

    CANARY = "canary"
    """One pod."""
    REST = "rest"
    """All pods, in the way that the stage has for them."""
    SETTLED = "settled"
    """As it was set before the plan."""


def lowered_once(intent: ObjectIntent) -> ObjectIntent | None:
    """The one field by which an owner that surges lets one pod go before another is ready; None where it does not."""
    found = [hold for hold in intent.holds if hold.field.endswith(".maxUnavailable")] if surges(intent) else []
    return replace(intent, holds=(replace(found[0], canary="0", rest="1"),)) if found else None


def known_as_lowered(intent: ObjectIntent) -> ObjectIntent:
    """The same holds, by which an owner is known as ours also once it was lowered: on the way back nobody is canary."""
    if not surges(intent):
        return intent
    holds = (replace(hold, canary="1") if hold.field.endswith(".maxUnavailable") else hold for hold in intent.holds)
    return replace(intent, holds=tuple(holds))


def rolls_by_itself(owner: Mapping[str, Any]) -> bool:
    """Whether a changed template reaches an owner's pods without their being evicted, under our hold."""
    if owner["kind"] == "StatefulSet" and (field_of(owner, _UPDATE_TYPE) or "RollingUpdate") != "RollingUpdate":
        return False
    return workload_kind(owner["kind"]).reach is Reach.ROLLS


def changes_template(intent: ObjectIntent) -> bool:
    """Whether an intent changes what an owner's pods are made from."""
    return any(is_template_field(intent.kind, part.field) for part in intent.fields)


def can_surge(owner: Mapping[str, Any]) -> bool:
    """Whether a new pod of an owner can be made beside those that it is to replace."""
    return _surge_path(owner) is not None


def _surge_path(owner: Mapping[str, Any]) -> str | None:
    """Where `maxSurge` and `maxUnavailable` of an owner stand; None where its pods can't surge or all end first."""
    kind = owner["kind"]
    if kind == "Deployment" and field_of(owner, "spec.strategy.type") != "Recreate":
        return _ROLLING
    if kind == "Rollout" and field_of(owner, _CANARY) is not None:
        return _CANARY
    if kind == "InferenceService" and is_raw(owner) and field_of(owner, f"{_PREDICTOR}.type") != "Recreate":
        return f"{_PREDICTOR}.rollingUpdate"
    return None


def canary_watch_seconds(watch_seconds: float) -> float:
    """How long the first new pod is watched: as long as any change, but no longer than it can be held."""
    return min(watch_seconds, float(HOLD_SECONDS_MAX - HOLD_MARGIN_SECONDS))


def hold_seconds(watch_seconds: float) -> int:
    """For how long after it got ready the first new pod is held, where its owner does not ask for more."""
    return math.ceil(canary_watch_seconds(watch_seconds)) + HOLD_MARGIN_SECONDS


def holds_of(owner: Mapping[str, Any], pods: int, way: Way, *, watch_seconds: float) -> tuple[HoldIntent, ...]:
    """The fields that hold an owner whose template is to be changed.

    Returns:
        Fields with their values before, for one pod, and for all; none for an owner that is rolled by eviction, or that
        ends all its pods before it makes new ones (`Recreate`).
    """
    kind, path = owner["kind"], _surge_path(owner)
    if path is not None:
        first = () if kind == "InferenceService" else _first_only(owner, hold_seconds(watch_seconds))
        return (*first, *_bounds(owner, path, pods, way))
    if kind == "LeaderWorkerSet":
        path = f"{_GROUPS}.partition"
        partition, groups = field_of(owner, path), int(field_of(owner, "spec.replicas") or "1")
        held = HoldIntent(field=path, old=partition, canary=str(max(0, groups - 1)), rest=partition)
        gap = Way.GAP_AT_ONCE if way is Way.GAP_AT_ONCE else Way.GAP
        return (held, *_bounds(owner, _GROUPS, pods, gap))
    if kind == "StatefulSet" and rolls_by_itself(owner):
        partition = field_of(owner, _PARTITION)
        return (HoldIntent(field=_PARTITION, old=partition, canary=str(max(0, pods - 1)), rest=partition),)
    if kind == "DaemonSet" and (field_of(owner, _UPDATE_TYPE) or "RollingUpdate") == "RollingUpdate":
        return (HoldIntent(field=_UPDATE_TYPE, old=field_of(owner, _UPDATE_TYPE), canary="OnDelete", rest="OnDelete"),)
    return ()


def way_of(intent: ObjectIntent) -> Way | None:
    """The way that the holds of an owner give its pods; None where they give none."""
    bounds = {hold.field.rpartition(".")[2]: hold for hold in intent.holds}
    surge, unavailable = bounds.get("maxSurge"), bounds.get("maxUnavailable")
    if surge is None or unavailable is None:
        return None
    if surge.canary != "0":
        return Way.SURGE_IN_TURN if surge.rest == "1" else Way.SURGE
    return Way.GAP if unavailable.rest == "1" else Way.GAP_AT_ONCE


def surges(intent: ObjectIntent) -> bool:
    """Whether an owner is held so that no pod leaves before another is ready."""
    return way_of(intent) in (Way.SURGE, Way.SURGE_IN_TURN)


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyLimit:
    """What an owner's strategy says of pods that are unavailable at once.

    Attributes:
        value: its value, or its default.
        pods: how many pods it lets be unavailable at once.
    """

    field: str
    value: str
    pods: int


def strategy_limit(
    owner: Mapping[str, Any], pods: int, held: Mapping[str, str | None] | None = None
) -> StrategyLimit | None:
    """How many of its pods an owner's strategy lets be unavailable at once while it is changed.

    Args:
        held: fields that are read as if they had these values.

    Returns:
        The limit, resolved as the kind's controller does; None where the kind has no such field, as those that run
        new pods beside the old ones until they are ready (RayService, a serverless InferenceService). An owner that
        ends all its pods by itself (`Recreate`), or leaves it to people when they end (`OnDelete`), allows all.
    """
    over = held or {}

    def value(path: str, default: str) -> str:
        return (over[path] if path in over else field_of(owner, path)) or default

    def rolling(path: str, total: int, *, surge: str = "25%", unavailable: str = "25%") -> StrategyLimit:
        bound = value(f"{path}.maxUnavailable", unavailable)
        found = scaled(bound, total, up=False)
        if found == 0 and scaled(value(f"{path}.maxSurge", surge), total, up=True) == 0:
            # Both rounded down to nothing would never end: controllers let one go.
            found = 1
        return StrategyLimit(field=f"{path}.maxUnavailable", value=bound, pods=min(found, total))

    def all_at(path: str, kind: str) -> StrategyLimit | None:
        return StrategyLimit(field=path, value=kind, pods=pods) if value(path, "") == kind else None

    def updated(*, up: bool, least: int) -> StrategyLimit:
        bound = value(f"{_UPDATE}.maxUnavailable", "1")
        found = max(least, scaled(bound, pods, up=up))
        return StrategyLimit(field=f"{_UPDATE}.maxUnavailable", value=bound, pods=min(found, pods))

    match owner["kind"]:
        case "Deployment":
            return all_at("spec.strategy.type", "Recreate") or rolling(_ROLLING, pods)
        case "Rollout":
            return rolling(_CANARY, pods)
        case "InferenceService" if is_raw(owner):
            return all_at(f"{_PREDICTOR}.type", "Recreate") or rolling(f"{_PREDICTOR}.rollingUpdate", pods)
        case "LeaderWorkerSet":
            each = max(1, pods // max(1, int(value("spec.replicas", "1"))))
            groups = rolling(_GROUPS, -(-pods // each), surge="0", unavailable="1")
            return replace(groups, pods=min(pods, groups.pods * each))
        case "StatefulSet":
            return all_at(_UPDATE_TYPE, "OnDelete") or updated(up=False, least=1)
        case "DaemonSet":
            return all_at(_UPDATE_TYPE, "OnDelete") or updated(up=True, least=0)
        case _:
            return None


def unavailable_at_once(owner: Mapping[str, Any], pods: int, holds: Sequence[HoldIntent]) -> int:
    """How many of its pods an owner that rolls under these holds has unavailable at once, in its worst phase."""
    limits = [
        strategy_limit(owner, pods, dict(held_values(owner, holds, phase))) for phase in (Phase.CANARY, Phase.REST)
    ]
    return max((limit.pods for limit in limits if limit is not None), default=0)


def _first_only(owner: Mapping[str, Any], seconds: int) -> tuple[HoldIntent, ...]:
    """The first new pod does not count as available for a while, and the deadline of progress waits as much longer."""
    ready, late = field_of(owner, _LEAST_READY), field_of(owner, _DEADLINE)
    more = max(0, seconds - int(ready or "0"))
    if not more:
        return ()
    deadline = int(late or _DEADLINE_DEFAULT_SECONDS) + more
    return (
        HoldIntent(field=_LEAST_READY, old=ready, canary=str(seconds), rest=ready),
        HoldIntent(field=_DEADLINE, old=late, canary=str(deadline), rest=late),
    )


def _bounds(owner: Mapping[str, Any], path: str, pods: int, way: Way) -> tuple[HoldIntent, HoldIntent]:
    """How many pods more and fewer than wanted there may be while an owner rolls."""
    surge, unavailable = f"{path}.maxSurge", f"{path}.maxUnavailable"
    was = field_of(owner, surge)
    if way in (Way.SURGE, Way.SURGE_IN_TURN):
        own = was or "25%"
        more = own if way is Way.SURGE and scaled(own, pods, up=True) > 0 else "1"
        most = ("1", more), ("0", "0")
    else:
        most = ("0", "0"), ("1", "100%" if way is Way.GAP_AT_ONCE else "1")
    return (
        HoldIntent(field=surge, old=was, canary=most[0][0], rest=most[0][1]),
        HoldIntent(field=unavailable, old=field_of(owner, unavailable), canary=most[1][0], rest=most[1][1]),
    )


def values_before(manifest: Mapping[str, Any], holds: Sequence[HoldIntent]) -> dict[str, str | None]:
    """What the fields of an owner that is held were set to by its users; those that nobody holds now are left out."""
    return {
        hold.field: hold.old
        for hold in holds
        if any(values_equal(hold.field, field_of(manifest, hold.field), held) for held in (hold.canary, hold.rest))
    }


def held_values(manifest: Mapping[str, Any], holds: Sequence[HoldIntent], phase: Phase) -> list[tuple[str, str | None]]:
    """What is to be written so that an owner is held as a phase asks.

    Returns:
        Fields and values; a field that somebody else set to a value of their own is left to them.
    """
    found = []
    for hold in holds:
        now = field_of(manifest, hold.field)
        wanted = {Phase.CANARY: hold.canary, Phase.REST: hold.rest, Phase.SETTLED: hold.old}[phase]
        is_ours = any(values_equal(hold.field, now, value) for value in (hold.old, hold.canary, hold.rest))
        if is_ours and not values_equal(hold.field, now, wanted):
            found.append((hold.field, wanted))
    return found
