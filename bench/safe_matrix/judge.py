"""Judges a case of the matrix from outside: pods seen every 0.2 s, objects as the API server gives them, its audit log.

Nothing of the enforcer is asked or imported: what it writes down of itself, and how it names what it does, stays out.
Field names and annotations are those that a user sees with `kubectl`.
"""

from __future__ import annotations

import copy
import json
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.cluster.api import Api, Manifest
from tests.cluster.audit import Write, unwanted

SAMPLE_SECONDS = 0.2
RESCHEDULED_SECONDS_MAX = 30.0
WRITER = "system:serviceaccount:gputide:gputide-writer"
OURS = "gputide.io/"
HELD = "gputide.io/held"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
ALLOCATED = "hami.io/vgpu-devices-allocated"
_READS = frozenset({"get", "list", "watch"})
_COUNTED = ("generation", "resourceVersion", "creationTimestamp", "uid")
_REVISION = "deployment.kubernetes.io/revision"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """Pods of a namespace at one moment.

    Attributes:
        at: monotonic seconds.
        ready: ready pods of each app.
        least: fewest ready pods that its users' own strategy leaves each app at that moment.
    """

    at: float
    ready: Mapping[str, int]
    least: Mapping[str, int]

    @property
    def short(self) -> list[str]:
        """Apps with fewer ready pods than their users allow."""
        return [app for app, count in self.least.items() if self.ready.get(app, 0) < count]


@dataclass(slots=True, kw_only=True)
class Sampler:
    """Looks at the pods of a namespace all the time; mutable: it remembers.

    Attributes:
        api: an administrator's hand.
        namespace: whose pods.
        least: fewest ready pods of each app now.
    """

    api: Api
    namespace: str
    least: dict[str, int]
    looks: list[Look] = field(default_factory=list)
    _lost: list[tuple[float, Counter[str]]] = field(default_factory=list)
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Sampler:
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def expect(self, app: str, count: int) -> None:
        """Somebody asks for another number of pods: until they are there the smaller of both counts."""
        self.least[app] = min(self.least[app], count)

    def lose(self, apps: Iterable[str]) -> None:
        """The fault itself takes pods, one of each app that is named: they may be missing until rescheduled."""
        self._lost.append((time.monotonic() + RESCHEDULED_SECONDS_MAX, Counter(apps)))

    @property
    def breaches(self) -> list[str]:
        """Looks at which an app had fewer ready pods than its users allow, one sentence per app."""
        found: dict[str, list[Look]] = {}
        for look in self.looks:
            for app in look.short:
                found.setdefault(app, []).append(look)
        return [
            f"{app} had {min(look.ready.get(app, 0) for look in looks)} of {max(look.least[app] for look in looks)} "
            f"ready pods at {len(looks)} looks, first {looks[0].at - self.looks[0].at:.1f} s after the start"
            for app, looks in found.items()
        ]

    def seconds_short(self, since: float, least: Mapping[str, int]) -> float | None:
        """Seconds from a moment to the last look at which an app had fewer ready pods than it should; None if still."""
        after = [look for look in self.looks if look.at >= since]
        short = [look for look in after if any(look.ready.get(app, 0) < count for app, count in least.items())]
        if not short:
            return 0.0
        return None if short[-1] is after[-1] else short[-1].at - since

    def _look_on(self) -> None:
        last = time.monotonic()
        while not self._over.wait(max(0.0, last + SAMPLE_SECONDS - time.monotonic())):
            last = time.monotonic()
            # An API server that is away shows nothing; pods serve on.
            with suppress(OSError):
                self._look(last)

    def _look(self, now: float) -> None:
        found = self.api.ask("GET", f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        ready = Counter(
            str(pod["metadata"].get("labels", {}).get("app"))
            for pod in found
            if "deletionTimestamp" not in pod["metadata"] and is_ready(pod)
        )
        least = Counter(self.least)
        for until, lost in self._lost:
            if now < until:
                least -= lost
        self.looks.append(Look(at=now, ready=ready, least={app: least[app] for app in self.least}))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """A case's objects as they stand.

    Attributes:
        owners: Deployments by name, as the server gives them.
        pods: pods by app.
    """

    owners: Mapping[str, Manifest]
    pods: Mapping[str, list[Manifest]]

    @classmethod
    def of(cls, api: Api, namespace: str) -> Sight:
        """Look."""
        owners = api.ask("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments")["items"]
        pods = api.ask("GET", f"/api/v1/namespaces/{namespace}/pods")["items"]
        by_app: dict[str, list[Manifest]] = {owner["metadata"]["name"]: [] for owner in owners}
        for pod in pods:
            if "deletionTimestamp" not in pod["metadata"]:
                by_app.setdefault(str(pod["metadata"].get("labels", {}).get("app")), []).append(pod)
        return cls(owners={owner["metadata"]["name"]: owner for owner in owners}, pods=by_app)

    def complaints(self, wanted: Mapping[str, int]) -> list[str]:
        """Pods that are missing, too many, not ready or still marked, and owners that are still held."""
        found = []
        for app, count in wanted.items():
            own = self.pods.get(app, [])
            found += [f"{app} has {len(own)} pods of {count}"] if len(own) != count else []
            for pod in own:
                name = pod["metadata"]["name"]
                if not is_ready(pod):
                    found.append(f"{name} is {'not ready' if pod['spec'].get('nodeName') else 'Pending'}")
                if DELETION_COST in (pod["metadata"].get("annotations") or {}):
                    found.append(f"{name} has a deletion cost")
        for app in wanted:
            owner = self.owners.get(app)
            if owner is not None and HELD in (owner["metadata"].get("annotations") or {}):
                found.append(f"{app} is held")
            if owner is not None and not is_settled(owner):
                found.append(f"{app} rolls")
        return found


def end_of(before: Manifest, now: Manifest, theirs: Collection[str]) -> str:
    """Whether a stage's owner is `applied`, `restored`, or `half` of either, judged by all but what people changed.

    Args:
        before: as it was before the plan.
        now: as it stands.
        theirs: what people changed meanwhile: `replicas`, `template`.
    """
    specs = [{name: value for name, value in one["spec"].items() if name != "template"} for one in (before, now)]
    for spec in specs:
        if "replicas" in theirs:
            spec.pop("replicas", None)
    marks = {name for name in now["metadata"].get("annotations") or {} if name.startswith(OURS)}
    if specs[0] != specs[1] or HELD in marks:
        return "half"
    if "template" in theirs:
        return "theirs"
    if before["spec"]["template"] == now["spec"]["template"]:
        return "half" if marks else "restored"
    return "applied"


def differences(before: Manifest, now: Manifest) -> list[str]:
    """Where an object is not as it was, but for timestamps, generation, resource version and its own counts."""
    return [
        f"{path}: {json.dumps(old)[:300]} is {json.dumps(new)[:300]}"
        for path, old, new in _different("", _comparable(before), _comparable(now))
    ]


def stray_writes(writes: Iterable[Write], namespace: str, nodes: str, apps: Collection[str]) -> list[str]:
    """Writes of the enforcer to a case's namespace and nodes that an approved plan for these apps does not ask for.

    Args:
        nodes: how the names of the case's nodes begin.
    """
    own = [
        write
        for write in writes
        if write.user == WRITER
        and write.verb not in _READS
        and (write.namespace == namespace or (write.resource.startswith("nodes") and write.name.startswith(nodes)))
    ]
    named = [f"{namespace}/Deployment/{app}" for app in apps]
    return [
        f"{write.verb} {write.resource} {write.name}: {write.status}"
        for write in unwanted(own, named, lease_namespace=namespace)
    ]


def shares_of(pods: Iterable[Manifest]) -> dict[str, list[tuple[str, str]]]:
    """Pods on each card, as `namespace/name` and app, by what HAMi's scheduler wrote on them."""
    found: dict[str, list[tuple[str, str]]] = {}
    for pod in pods:
        for part in (pod["metadata"].get("annotations") or {}).get(ALLOCATED, "").replace(";", ":").split(":"):
            card = part.partition(",")[0]
            if card:
                name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
                found.setdefault(card, []).append((name, str(pod["metadata"]["labels"].get("app"))))
    return found


def is_ready(pod: Manifest) -> bool:
    """Whether a pod's ready condition holds."""
    return any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", ()))


def is_settled(owner: Manifest) -> bool:
    """Whether a Deployment's controller has seen it and replaced every pod of an earlier template."""
    status = owner.get("status", {})
    is_seen = status.get("observedGeneration", 0) >= owner["metadata"]["generation"]
    return bool(is_seen and status.get("replicas", 0) == status.get("updatedReplicas", 0))


def _comparable(owner: Manifest) -> Any:
    found = copy.deepcopy({name: value for name, value in owner.items() if name != "status"})
    metadata = found["metadata"]
    for name in _COUNTED:
        metadata.pop(name, None)
    (metadata.get("annotations") or {}).pop(_REVISION, None)
    if not metadata.get("annotations"):
        metadata.pop("annotations", None)
    entries = [
        {name: value for name, value in entry.items() if name != "time"}
        for entry in metadata.pop("managedFields", ())
        if entry.get("subresource") != "status"
    ]
    metadata["managedFields"] = {
        f"{entry['manager']} {entry['operation']} {entry.get('subresource', '')}": entry for entry in entries
    }
    return found


def _different(path: str, old: Any, new: Any) -> Iterable[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted(old.keys() | new.keys()):
            yield from _different(f"{path}/{name}", old.get(name), new.get(name))
    elif old != new:
        yield path, old, new
