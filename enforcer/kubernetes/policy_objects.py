"""Policies as they lie in the cluster, and what becomes of each, written into its status and as events.

Fulfils `enforcer.policy_follower.PolicyStore`. The status is applied by our own field manager, and only where it
changed, so that a cluster at rest is asked for two lists and nothing else.

Source: kubernetes/website:content/en/docs/reference/using-api/server-side-apply.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from enforcer.kubernetes.custom_resources import API_VERSION, VERSION, condition_body
from enforcer.kubernetes.events import Event, write_event
from enforcer.kubernetes.kinds import kind_named
from enforcer.manifest import Manifest
from enforcer.policy_follower import PolicyCondition, PolicyStatus, StoredPolicy
from enforcer.wishes import POLICY_KINDS
from fleet.errors import GputideError, Unavailable
from fleet.gpu_policy import gpu_policy
from fleet.logs import logger
from wire.kubernetes.refusals import Deed
from wire.kubernetes.write import APPLY_PATCH, FIELD_MANAGER, Call, WritingApi

_log = logger("enforcer.kubernetes.policy_objects")


class PolicyObjects:
    """The `ClusterGpuPolicy` and `GpuPolicy` objects of one cluster; mutable: it remembers those that it listed."""

    def __init__(self, api: WritingApi, list_objects: Callable[[str], Sequence[Manifest]]) -> None:
        self._api = api
        self._list_objects = list_objects
        self._found: dict[str, Manifest] = {}

    def listed(self) -> tuple[StoredPolicy, ...]:
        """See `PolicyStore`."""
        found = [(gpu_policy(manifest), manifest) for kind in POLICY_KINDS for manifest in self._list_objects(kind)]
        self._found = {policy.title: manifest for policy, manifest in found}
        return tuple(
            StoredPolicy(policy=policy, generation=int(manifest["metadata"].get("generation") or 0))
            for policy, manifest in found
        )

    def report(self, statuses: Mapping[str, PolicyStatus]) -> None:
        """See `PolicyStore`."""
        for title, status in statuses.items():
            manifest = self._found.get(title)
            if manifest is None:
                continue
            try:
                self._report_one(title, manifest, status)
            except Unavailable:
                raise
            except GputideError as exc:
                _log.warning("status of a policy was not written", policy=title, why=str(exc))

    def _report_one(self, title: str, manifest: Manifest, status: PolicyStatus) -> None:
        before = manifest.get("status")
        before = before if isinstance(before, dict) else {}
        body = self._body(before, status)
        if body == before:
            return
        kind, metadata = kind_named(manifest["kind"]), manifest["metadata"]
        namespace, name = str(metadata.get("namespace") or ""), str(metadata["name"])
        head = {"name": name, **({"namespace": namespace} if namespace else {})}
        deed = Deed(verb="patch", resource=f"{kind.plural}/status.{kind.group}", namespace=namespace, name=name)
        content = {"apiVersion": API_VERSION, "kind": kind.kind, "metadata": head, "status": body}
        self._api.send(
            Call(deed=deed, path=f"{kind.path(VERSION, namespace or None, name)}/status", method="PATCH",
                 query={"fieldManager": FIELD_MANAGER, "force": "true"}, body=content, content_type=APPLY_PATCH)
        )  # fmt: skip
        self._found[title] = {**manifest, "status": body}
        held = _by_type(before)
        for one in status.conditions:
            was = held.get(one.type, {})
            if one.is_news and (was.get("status"), was.get("message")) != (str(one.is_true), one.message):
                event = Event(reason=one.reason, message=one.message, is_warning=one.is_bad)
                write_event(self._api, manifest, event)

    def _body(self, before: Manifest, status: PolicyStatus) -> Manifest:
        held = _by_type(before)
        return {
            "observedGeneration": status.generation,
            "workloads": status.standing.workloads,
            "inForce": [
                {"field": one.field, "value": one.value, "workloads": one.workloads} for one in status.standing.in_force
            ],
            **({"plan": status.plan} if status.plan else {}),
            "conditions": [self._condition(one, held.get(one.type), status.generation) for one in status.conditions],
        }

    def _condition(self, one: PolicyCondition, before: Manifest | None, generation: int) -> Manifest:
        return condition_body(
            one.type, one.reason, one.message, is_true=one.is_true, generation=generation, before=before,
            now=self._api.now(),
        )  # fmt: skip


def _by_type(status: Manifest) -> dict[str, Manifest]:
    conditions: Any = status.get("conditions")
    return {str(one.get("type")): one for one in conditions or () if isinstance(one, dict)}
