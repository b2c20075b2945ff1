"""Keeps the newest plan in step with policies, and says in the status of each policy what became of it.

A policy that is written, changed or deleted leads to a new plan within seconds. One that can't be read leads to none:
its status says why, its pods are left alone, and the plan before stays. Tenants write policies, so each namespace, and
the cluster, leads to so many plans an hour at most; who writes more waits, and holds up nobody else. Of the plans that
nobody took up a few stand, or edits would fill the cluster. Called by `gputide run planner`.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from fleet.durable import write_durably
from fleet.errors import GputideError, Unavailable
from fleet.gpu_policy import GpuPolicy
from fleet.json_text import json_value
from fleet.logs import logger
from fleet.policy_standing import Standing, Subject, standings
from fleet.units import format_plan_id
from wire.kubernetes.backoff import Backoff
from wire.own_metrics import OwnMetrics

PLANS_PER_HOUR_MAX = 12
"""Most plans an hour to which the policies of one namespace, or of the cluster, lead."""
STATUS_SECONDS = 300.0
"""How often statuses are counted anew though no policy changed: workloads come and go."""
RETRY_SECONDS_MIN, RETRY_SECONDS_MAX = 30.0, 300.0
"""Shortest and longest pause before a plan that could not be made is tried again."""

_HOUR_SECONDS = 3600.0
_log = logger("enforcer.policy_follower")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPolicy:
    """A policy as it lies in the cluster, with the number of its last change."""

    policy: GpuPolicy
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCondition:
    """One condition of a policy.

    Attributes:
        is_bad: whether it needs somebody's attention as it is.
        is_news: whether an event says so once it becomes so.
    """

    type: str
    is_true: bool
    reason: str
    message: str
    is_bad: bool = False
    is_news: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyStatus:
    """What is written into a policy's status.

    Attributes:
        generation: the change of it that this is about.
        plan: name of the newest `GpuPlan` that was made under it; empty before there is one.
    """

    generation: int
    standing: Standing
    plan: str
    conditions: tuple[PolicyCondition, ...]


class PolicyStore(Protocol):
    """The policies of a cluster."""

    def listed(self) -> Sequence[StoredPolicy]:
        """All of them.

        Raises:
            Misconfigured: a right is missing.
            Unavailable: the cluster can't be reached.
        """
        ...

    def report(self, statuses: Mapping[str, PolicyStatus]) -> None:
        """Write statuses, by the policies' titles, where they changed, and events of what became otherwise.

        Raises:
            Unavailable: the cluster can't be reached.
        """
        ...


class FollowerMetrics:
    """What a follower of policies counts."""

    def __init__(self, own: OwnMetrics) -> None:
        self.looks = own.passes("look", "look at all policies")
        self.is_leader = own.gauge("leader", "1 while this process is the one that acts, else 0.")
        self.policies = own.gauge("policies", "Policies of the cluster and of all namespaces.")
        self.waiting = own.gauge("policies_waiting", "Policies whose last change no plan follows yet.")
        self.plans = own.counter("plans_total", "Plans that were made because a policy changed.")
        self.plan_seconds = own.histogram("plan_seconds", "Time that one such plan took, seconds.")


class Planned:
    """Which plan follows each policy, kept in a file of the data folder; mutable."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._followed: dict[str, tuple[str, str]] = {}
        try:
            held = json_value(path.read_bytes())
            self._followed = {str(title): (str(digest), str(plan)) for title, (digest, plan) in held.items()}
        except FileNotFoundError:
            return
        except (ValueError, TypeError, AttributeError) as exc:
            _log.warning("which plan follows which policy can't be read; a plan is made anew", why=str(exc))

    def plan_of(self, title: str) -> str:
        """Id of a plan that follows a policy as it is, the first one while it stands; empty where none does."""
        return self._followed.get(title, ("", ""))[1]

    def changed(self, asked: Mapping[str, str]) -> set[str]:
        """Titles of policies that came, went or ask for something else than the newest plan follows.

        Args:
            asked: digest of what each policy asks for, by its title.
        """
        return {title for title in asked.keys() | self._followed.keys() if asked.get(title) != self.digest_of(title)}

    def digest_of(self, title: str) -> str | None:
        """Digest of what a policy asked for when the newest plan was made; None where there was no such policy."""
        return self._followed[title][0] if title in self._followed else None

    def note(self, plan: str, asked: Mapping[str, str]) -> None:
        """Keep that a plan follows policies."""
        changed = self.changed(asked)
        self._followed = {
            title: (digest, plan if title in changed else self.plan_of(title)) for title, digest in asked.items()
        }
        self._write()

    def keep(self, standing: Collection[str], newest: str) -> None:
        """Name the newest plan, which follows every policy, where an older one is gone.

        Args:
            standing: ids of the plans that there are.
        """
        before = self._followed
        self._followed = {
            title: (digest, plan if plan in standing else newest) for title, (digest, plan) in before.items()
        }
        if self._followed != before:
            self._write()

    def _write(self) -> None:
        write_durably(self._path, json.dumps(self._followed, sort_keys=True).encode())


class PolicyFollower:
    """Follows the policies of a cluster; mutable: it remembers what it said last.

    Args:
        subjects: the workloads that there are.
        make_plan: makes a plan by the policies as they are, keeps it, and returns its id.
        supersede: called with the id of each plan that was made; lets older ones go that nobody took up, and returns
            the ids of those that stand.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        store: PolicyStore,
        subjects: Callable[[], Sequence[Subject]],
        make_plan: Callable[[], str],
        supersede: Callable[[str], Collection[str]],
        planned: Planned,
        metrics: FollowerMetrics,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._subjects = subjects
        self._make_plan = make_plan
        self._supersede = supersede
        self._planned = planned
        self._metrics = metrics
        self._clock = clock
        self._backoff = Backoff(seconds_min=RETRY_SECONDS_MIN, seconds_max=RETRY_SECONDS_MAX)
        self._refused: tuple[object, str, float] | None = None
        self._made: dict[str, deque[float]] = defaultdict(deque)
        self._said: tuple[object, float] | None = None

    def look(self) -> bool:
        """Do once what is due; returns whether a plan was made.

        Raises:
            Unavailable: the cluster can't be reached.
            Misconfigured: a right is missing.
        """
        with self._metrics.looks.one():
            found = self._store.listed()
            policies = [one.policy for one in found]
            asked = self._asked(policies)
            changed = self._planned.changed(asked)
            why = self._why_not(policies, asked, changed)
            self._say(found, changed, why)
            is_made = bool(changed) and not why and self._plan(asked, changed)
            if changed and not why:
                changed = self._planned.changed(asked)
                self._say(found, changed, self._why_not(policies, asked, changed))
            self._metrics.policies.set(len(found))
            self._metrics.waiting.set(len(changed))
        return is_made

    def _asked(self, policies: Sequence[GpuPolicy]) -> dict[str, str]:
        """Digests of what policies ask for; of one that can't be read, of what the newest plan follows."""
        found = {
            policy.title: self._planned.digest_of(policy.title) if policy.fault else _digest(policy)
            for policy in policies
        }
        return {title: digest for title, digest in found.items() if digest is not None}

    def _why_not(self, policies: Sequence[GpuPolicy], asked: Mapping[str, str], changed: set[str]) -> str:
        """Why no plan is made now; empty where one may be, or need not."""
        if not changed:
            return ""
        for policy in policies:
            if policy.fault and not policy.namespace:
                return f"{policy.title} can't be read: {policy.fault}"
        if all(self._is_spent(_space(title)) for title in changed):
            return f"its namespace's policies led to {PLANS_PER_HOUR_MAX} plans within an hour, which is the limit"
        if self._refused is not None and self._refused[0] == asked and self._clock() < self._refused[2]:
            return self._refused[1]
        return ""

    def _is_spent(self, space: str) -> bool:
        made = self._made[space]
        while made and self._clock() - made[0] >= _HOUR_SECONDS:
            made.popleft()
        return len(made) >= PLANS_PER_HOUR_MAX

    def _spend(self, changed: set[str]) -> None:
        for space in {_space(title) for title in changed}:
            self._made[space].append(self._clock())

    def _plan(self, asked: dict[str, str], changed: set[str]) -> bool:
        try:
            with self._metrics.plan_seconds.time():
                plan = self._make_plan()
        except GputideError as exc:
            if isinstance(exc, Unavailable):
                raise
            _log.warning("no plan follows the policies, and it is tried again later", why=str(exc))
            if self._refused is None or self._refused[0] != asked:
                self._spend(changed)  # the first try after an edit counts, or edits would be tried without end
            self._refused = dict(asked), str(exc), self._clock() + self._backoff.failed()
            return False
        self._refused = None
        self._backoff.recovered()
        self._spend(changed)
        self._planned.note(plan, asked)
        self._planned.keep(self._supersede(plan), plan)
        self._metrics.plans.inc()
        _log.info("plan follows the policies", plan=plan, policies=len(asked), changed=len(changed))
        return True

    def _say(self, found: Sequence[StoredPolicy], changed: set[str], why: str) -> None:
        """Write what became of each policy, where anything of it may have changed."""
        stands = (tuple((one.policy.title, one.generation) for one in found), frozenset(changed), why)
        if self._said is not None and self._said[0] == stands and self._clock() < self._said[1]:
            return
        standing = standings([one.policy for one in found], self._subjects()) if found else {}
        statuses = {}
        for one in found:
            title = one.policy.title
            if title not in standing:
                continue
            plan = "" if title in changed else self._planned.plan_of(title)
            statuses[title] = PolicyStatus(
                generation=one.generation,
                standing=standing[title],
                plan=f"plan-{plan}" if plan else "",
                conditions=_conditions(one.policy, standing[title], plan, why),
            )
        self._store.report(statuses)
        self._said = stands, self._clock() + STATUS_SECONDS


def _conditions(policy: GpuPolicy, standing: Standing, plan: str, why: str) -> tuple[PolicyCondition, ...]:
    rejected, conflicts, overruled = standing.rejected, "; ".join(standing.conflicts), "; ".join(standing.overruled)
    return (
        _judged("Accepted", "Rejected", rejected, otherwise="Accepted", is_true=not rejected),
        _judged("Conflict", "SameLevel", conflicts, otherwise="NoConflict", is_true=bool(conflicts)),
        _judged("Overruled", "LoosensCluster", overruled, otherwise="NotOverruled", is_true=bool(overruled)),
        _planned(policy, plan, why),
    )


def _planned(policy: GpuPolicy, plan: str, why: str) -> PolicyCondition:
    """Whether a plan follows a policy as it is."""
    if policy.fault:
        return _judged("Planned", "CannotBeRead", "the plan before stays", otherwise="", is_true=False)
    if plan:
        text = f"plan {format_plan_id(plan)} follows it"
        return PolicyCondition(type="Planned", is_true=True, reason="Planned", message=text, is_news=True)
    if why:
        text = f"no plan follows it yet, and the plan before stays: {why}"
        return _judged("Planned", "NotPlanned", text, otherwise="", is_true=False)
    return PolicyCondition(type="Planned", is_true=False, reason="Planning", message="a plan is being made")


def _judged(kind: str, reason: str, text: str, *, otherwise: str, is_true: bool) -> PolicyCondition:
    """A condition that says something bad where there is a text."""
    bad = bool(text)
    return PolicyCondition(
        type=kind, is_true=is_true, reason=reason if bad else otherwise, message=text, is_bad=bad, is_news=bad
    )


def _digest(policy: GpuPolicy) -> str:
    return hashlib.sha256(json.dumps([policy.selector, policy.wishes], sort_keys=True).encode()).hexdigest()


def _space(title: str) -> str:
    """The namespace of a policy's title; empty for the cluster's."""
    namespace, slash, _ = title.removeprefix("GpuPolicy ").partition("/")
    return namespace if slash else ""
