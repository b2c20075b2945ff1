"""Judges a case of the matrix from outside: pods seen every 0.2 s, objects as the API server gives them, its audit log.

Nothing of the enforcer is asked or imported: what it writes down of itself, and how it names what it does, stays out.
Field names and annotations are those that a user sees with `kubectl`.
"""

from __future__ import annotations

import base64
import copy
import json
import math
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from itertools import pairwise
from typing import Any

from tests.cluster.api import Api, Manifest
from tests.cluster.audit import Write, unwanted
from tests.cluster.workloads import is_ready, is_rolled

SAMPLE_SECONDS = 0.2
APART_SECONDS_MAX = 3.0
"""Longest time between two looks at pods, but for outages of the API server that a fault declares."""
RESCHEDULED_SECONDS_MAX = 30.0
WRITER = "system:serviceaccount:gputide:gputide-writer"
ADMISSION = "system:serviceaccount:gputide:gputide-admission"
OURS = "gputide.io/"
HELD = "gputide.io/held"
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
ALLOCATED = "hami.io/vgpu-devices-allocated"
GPUMEM = "nvidia.com/gpumem"
_READS = frozenset({"get", "list", "watch"})
_OF_WORKLOADS = frozenset({"deployments", "pods", "pods/eviction"})
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
    _lost: dict[str, tuple[float, str]] = field(default_factory=dict)
    _outages: list[tuple[float, float]] = field(default_factory=list)
    _failure: str = ""
    _is_dead: bool = False
    _began: float = 0.0
    _ended: float = math.inf
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __enter__(self) -> Sampler:
        self._thread = threading.Thread(target=self._look_on, daemon=True)
        self._began = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_dead = not self._thread.is_alive()
        self._over.set()
        self._thread.join()
        self._ended = time.monotonic()

    @contextmanager
    def outage(self) -> Iterator[None]:
        """For as long as this lasts the fault itself keeps the API server from showing anything; pods serve on."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._outages.append((began, time.monotonic()))

    @property
    def apart_seconds_max(self) -> float:
        """Longest time without a look, from the start to the end, without the declared outages."""
        moments = [self._began, *(look.at for look in self.looks), self._ended]
        return max(
            end - start - sum(max(0.0, min(end, until) - max(start, since)) for since, until in self._outages)
            for start, end in pairwise(moments)
        )

    @property
    def blindness(self) -> list[str]:
        """Why looks without a breach prove nothing, one sentence each; asked once it is over."""
        said = f", last failure: {self._failure}" if self._failure else ""
        found = [] if self.looks else [f"pods were never seen{said}"]
        if self._is_dead:
            found.append(f"the thread that looks at pods died{said}")
        if self.apart_seconds_max > APART_SECONDS_MAX:
            found.append(f"pods were not seen for {self.apart_seconds_max:.1f} s{said}")
        return found

    def expect(self, app: str, count: int) -> None:
        """Somebody asks for another number of pods: until they are there the smaller of both counts."""
        self.least[app] = min(self.least[app], count)

    def lose(self, pods: Iterable[tuple[str, str]]) -> None:
        """The fault itself takes pods, each given by app and name: they may be missing until rescheduled.

        A pod that is named again is lost no second time, and its time is not longer.
        """
        until = time.monotonic() + RESCHEDULED_SECONDS_MAX
        for app, name in pods:
            self._lost.setdefault(name, (until, app))

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
            try:
                self._look(last)
            except (OSError, HTTPException, json.JSONDecodeError) as exc:
                self._failure = f"{type(exc).__name__}: {exc}"

    def _look(self, now: float) -> None:
        found = self.api.ask("GET", f"/api/v1/namespaces/{self.namespace}/pods")["items"]
        ready = Counter(
            str(pod["metadata"].get("labels", {}).get("app"))
            for pod in found
            if "deletionTimestamp" not in pod["metadata"] and is_ready(pod)
        )
        least = Counter(self.least) - Counter(app for until, app in self._lost.values() if now < until)
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
            if owner is not None and not is_rolled(owner):
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


def stray_writes(
    writes: Iterable[Write], namespace: str, apps: Collection[str], refused: Collection[str] = ()
) -> list[str]:
    """Writes of the enforcer and the admission, anywhere, that an approved plan for these apps does not ask for.

    Args:
        writes: of everybody, while no other plan was applied in the cluster.
        namespace: of the apps.
        refused: credentials by which a plan was to be applied that was refused: by them nothing may be written to
            workloads or pods.
    """
    writes = list(writes)
    bound = {(write.namespace, write.name) for write in writes if write.resource == "pods/binding"}
    own = [
        write
        for write in writes
        if write.user in (WRITER, ADMISSION)
        and write.verb not in _READS
        and not _is_note_of_a_seat(write)
        and not _is_of_a_pod_that_never_ran(write, namespace, bound)
    ]
    named = [f"{namespace}/Deployment/{app}" for app in apps]
    stray = {id(write) for write in unwanted(own, named, lease_namespace=namespace)}
    # The admission answers; of its own accord it writes events and notes of seats, and frees pods that never ran.
    stray |= {id(write) for write in own if write.user == ADMISSION and write.resource != "events"}
    stray |= {
        id(write)
        for write in own
        if write.credential in refused and write.resource in _OF_WORKLOADS and not write.is_dry
    }
    return [
        f"{write.user.rpartition(':')[2]}: {write.verb} {write.resource} {write.namespace}/{write.name}: {write.status}"
        for write in own
        if id(write) in stray
    ]


def _is_note_of_a_seat(write: Write) -> bool:
    return write.user == ADMISSION and (write.resource, write.namespace) == ("leases", "gputide-seats")


def _is_of_a_pod_that_never_ran(write: Write, namespace: str, bound: Collection[tuple[str, str]]) -> bool:
    is_eviction = (write.user, write.verb, write.resource) == (ADMISSION, "create", "pods/eviction")
    return is_eviction and write.namespace == namespace and (write.namespace, write.name) not in bound


def credential_of(token: str) -> str:
    """How the audit log names a service account's token: by the id in its claims (RFC 7519, `jti`)."""
    claims = token.split(".")[1]
    return f"JTI={json.loads(base64.urlsafe_b64decode(claims + '=' * (-len(claims) % 4)))['jti']}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What a pod has of a card.

    Attributes:
        pod: its name.
        app: whose.
        mib: framebuffer.
    """

    pod: str
    app: str
    mib: int


def shares_of(pods: Iterable[Manifest]) -> dict[str, list[Share]]:
    """Shares of each card, by what HAMi's scheduler wrote on pods that are bound."""
    found: dict[str, list[Share]] = {}
    for pod in pods:
        if not pod["spec"].get("nodeName"):
            continue
        for part in (pod["metadata"].get("annotations") or {}).get(ALLOCATED, "").replace(";", ":").split(":"):
            if part:
                card, _, mib, _ = part.split(",")
                share = Share(
                    pod=pod["metadata"]["name"], app=str(pod["metadata"]["labels"].get("app")), mib=int(mib)
                )  # fmt: skip
                found.setdefault(card, []).append(share)
    return found


def with_compute(pods: Iterable[Manifest], app: str, planned: int, ratios: Mapping[str, float]) -> int:
    """How many pods of an app beyond the planned ones are bound to cards that are asked for no more compute than one.

    Args:
        pods: of all apps.
        app: which was scaled out.
        planned: how many of its pods the plan has.
        ratios: compute that a pod of each app needs, of a card; an app that is not named needs a whole one.
    """
    served = 0
    for shares in shares_of(pods).values():
        own = sum(share.app == app for share in shares)
        over = sum(ratios.get(share.app, 1.0) for share in shares) - 1.0
        served += max(0, own - math.ceil(max(0.0, over - 1e-9) / ratios[app]))
    return max(0, served - planned)


def not_as_planned(
    owner: Manifest, pods: Iterable[Manifest], planned: Mapping[tuple[str, int], int], *, is_displaced: bool
) -> list[str]:
    """Where a Deployment that is said to be applied, or its pods, have not what the plan gives them.

    Args:
        owner: as it stands.
        pods: its pods.
        planned: pods by card and MiB.
        is_displaced: the fault itself may keep pods from their cards, so only their limits count.
    """
    name = owner["metadata"]["name"]
    limits = owner["spec"]["template"]["spec"]["containers"][0]["resources"].get("limits", {})
    written, wanted = limits.get(GPUMEM, "none"), {mib for _, mib in planned}
    found = [] if {_count(written)} == wanted else [f"{name} asks for {written} MiB, by the plan {sorted(wanted)}"]
    granted = Counter((card, share.mib) for card, shares in shares_of(pods).items() for share in shares)
    if not is_displaced and granted != planned:
        found.append(f"{name} has {dict(granted)}, by the plan {dict(planned)}")
    return found


def _count(quantity: str) -> int | None:
    digits, factor = (quantity[:-1], 1000) if quantity.endswith("k") else (quantity, 1)
    return int(digits) * factor if digits.isdigit() else None


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
