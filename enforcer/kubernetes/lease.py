"""One enforcer at a time, by a Lease of the cluster that its holder renews.

Fulfils `enforcer.cluster.Lease`. Clocks of two machines differ, so the time that another holder wrote is never held
against ours: a lease has run out when it has not changed for its own length while we looked. So one who comes new to a
lease that is held waits that long once.

Source: kubernetes/client-go:tools/leaderelection/leaderelection.go, kubernetes/api:coordination/v1 (LeaseSpec).
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from enforcer.kubernetes.kinds import kind_named
from enforcer.manifest import Manifest
from fleet.errors import Misconfigured
from fleet.units import parse_time
from wire.kubernetes.refusals import Conflict, Deed
from wire.kubernetes.write import FIELD_MANAGER, Call, WritingApi

LEASE_NAME = "enforcer"
CONTROLLER_LEASE_NAME = "controller"
"""Held by the one controller that acts; others stand by."""
PLANNER_LEASE_NAME = "planner"
"""Held by the one process that makes plans when policies change; others stand by."""

_AS_MANAGER: Mapping[str, str] = {"fieldManager": FIELD_MANAGER}

_TRIES = 10
_RENEW_SHARE = 1 / 3
"""A lease that is held is renewed after this share of its length, and believed until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The lease as it was seen to change last, by our monotonic clock; `holder` is empty where nobody holds it."""

    holder: str
    resource_version: str
    seconds: float
    at: float
    is_ours: bool


class Leases:
    """The Lease objects of one namespace."""

    def __init__(self, api: WritingApi, namespace: str, setting: str) -> None:
        self._api, self._namespace, self._setting = api, namespace, setting
        self._kind = kind_named("Lease")

    def get(self, name: str) -> Manifest | None:
        """A lease; None where there is none."""
        return self._api.get(self._deed("get", name), self._kind.path("v1", self._namespace, name))

    def put(
        self, name: str, before: Manifest | None, after: Mapping[str, Any], query: Mapping[str, str] = _AS_MANAGER
    ) -> Manifest:
        """Make a lease, or write the one that was read, on the condition that it is as it was.

        Args:
            before: as it was read; None to make it.
            after: its `spec`, and what else of `metadata` it shall have.

        Raises:
            Conflict: somebody wrote it since.
            Misconfigured: a right or the namespace is missing.
        """
        known = before or {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
        fixed = known.get("metadata") or {"name": name, "namespace": self._namespace}
        lease = {**known, **after, "metadata": {**fixed, **after.get("metadata", {})}}
        deed, method = self._deed("update", name), "PUT"
        path = self._kind.path("v1", self._namespace, name)
        if before is None:
            deed, method, path = self._deed("create", ""), "POST", self._kind.path("v1", self._namespace)
        made = self._api.send(Call(deed=deed, path=path, method=method, query=query, body=lease))
        if made is None:
            raise Misconfigured(
                f"cannot {deed}: there is no namespace {self._namespace!r}; make it, or name another by {self._setting}"
            )
        return made

    def _deed(self, verb: str, name: str) -> Deed:
        return Deed(verb=verb, resource="leases.coordination.k8s.io", namespace=self._namespace, name=name)


class KubernetesLease:
    """The lease of one cluster's enforcer; for several threads.

    Each call raises `Misconfigured` where a right or the namespace is missing, and `Unavailable` where the cluster
    can't be reached.

    Args:
        clock: monotonic seconds.
        wall: UTC, for those who read the lease.
    """

    def __init__(self, api: WritingApi, namespace: str, *, name: str = LEASE_NAME) -> None:
        self._api = api
        self._leases = Leases(api, namespace, "enforcer.namespace")
        self._name = name
        self._lock = threading.Lock()
        self._seen: _Seen | None = None

    def acquire(self, holder: str, seconds: float) -> bool:
        """See `Lease`."""
        with self._lock:
            seen = self._seen
            if seen is not None and seen.is_ours and seen.holder == holder:
                is_fresh = time.monotonic() - seen.at < seconds * _RENEW_SHARE
                if is_fresh and seen.seconds == math.ceil(seconds):
                    return True
            # Again where it changed between look and write: heads of ledgers are noted on it, too.
            for _ in range(_TRIES):
                found = self._look()
                if found is not None and (self._seen is None or not self._is_free(self._seen, holder)):
                    return False
                if self._write(found, holder, seconds):
                    return True
            return False

    def release(self, holder: str) -> None:
        """See `Lease`."""
        with self._lock:
            found = self._look()
            if found is not None and self._seen is not None and self._seen.holder == holder:
                self._write(found, "", 1.0)

    def holder(self) -> str | None:
        """Who has renewed it within its length, by the API server's clock; None where nobody has."""
        with self._lock:
            found = self._look()
        spec = (found or {}).get("spec") or {}
        renewed, seconds = spec.get("renewTime"), spec.get("leaseDurationSeconds")
        if not spec.get("holderIdentity") or renewed is None or not isinstance(seconds, int):
            return None
        is_live = self._api.now() - parse_time(str(renewed)) < timedelta(seconds=seconds)
        return str(spec["holderIdentity"]) if is_live else None

    def _look(self) -> Manifest | None:
        found = self._leases.get(self._name)
        if found is not None:
            self._see(found)
        return found

    def _see(self, lease: Manifest) -> None:
        version = str(lease["metadata"]["resourceVersion"])
        if self._seen is not None and self._seen.resource_version == version:
            return
        self._seen = _seen_of(lease, time.monotonic(), is_ours=False)

    def _is_free(self, seen: _Seen, holder: str) -> bool:
        return seen.holder in ("", holder) or time.monotonic() - seen.at > seen.seconds

    def _write(self, found: Manifest | None, holder: str, seconds: float) -> bool:
        began, before = time.monotonic(), (found or {}).get("spec") or {}
        try:
            made = self._leases.put(self._name, found, {"spec": self._spec(before, holder, seconds)})
        except Conflict:
            return False
        # Others may have seen it from the moment on at which it was sent.
        self._seen = _seen_of(made, began, is_ours=True)
        return True

    def _spec(self, before: dict[str, Any], holder: str, seconds: float) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        is_other = holder != (before.get("holderIdentity") or "")
        spec = {**before, "holderIdentity": holder, "leaseDurationSeconds": math.ceil(seconds), "renewTime": now}
        if not holder:
            # The server takes no empty name.
            del spec["holderIdentity"]
        if is_other:
            spec["acquireTime"] = now
            spec["leaseTransitions"] = int(before.get("leaseTransitions") or 0) + 1
        return spec


def _seen_of(lease: Manifest, at: float, *, is_ours: bool) -> _Seen:
    spec = lease.get("spec") or {}
    seconds = spec.get("leaseDurationSeconds")
    return _Seen(
        holder=str(spec.get("holderIdentity") or ""),
        resource_version=str(lease["metadata"]["resourceVersion"]),
        seconds=float(seconds) if isinstance(seconds, int) else 0.0,
        at=at,
        is_ours=is_ours,
    )
