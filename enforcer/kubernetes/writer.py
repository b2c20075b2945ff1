"""Changes objects of a real cluster: fields on a condition, evictions under disruption budgets, events.

Fulfils `enforcer.cluster.ClusterWriter`. Nothing is forced: a write depends on the version that was read, and carries
our name as its field manager, so that the server shows which fields are ours.

Source: kubernetes/website:content/en/docs/concepts/scheduling-eviction/api-eviction.md.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from enforcer.cluster import FieldChange, Owners, identity
from enforcer.kubernetes.events import Event, write_event
from enforcer.kubernetes.field_owners import disowned, owned_by_others
from enforcer.kubernetes.json_patch import json_patch
from enforcer.kubernetes.kinds import kind_named
from enforcer.kubernetes.reader import KubernetesReader, all_pages, whole
from enforcer.manifest import Manifest, set_field
from fleet.errors import Refused, Unavailable
from fleet.logs import logger
from wire.kubernetes.refusals import BudgetForbids, Conflict, Deed
from wire.kubernetes.write import FIELD_MANAGER, JSON_PATCH, Call, WritingApi

_RACES_MAX = 4


class KubernetesWriter:
    """A `ClusterWriter` of a real API server.

    Each call raises as the port has it, and `Misconfigured` where a right is missing.
    """

    def __init__(self, api: WritingApi, reader: KubernetesReader) -> None:
        self._api = api
        self._reader = reader
        self._log = logger("enforcer.kubernetes.writer")

    def patch(self, kind: str, namespace: str, name: str, fields: Sequence[FieldChange], resource_version: str) -> str:
        """See `ClusterWriter`."""
        written = self._patched(kind, namespace, name, fields, resource_version, is_dry=False)
        self._reader.remember(written)
        return str(written["metadata"]["resourceVersion"])

    def dry_run(
        self, kind: str, namespace: str, name: str, fields: Sequence[FieldChange], resource_version: str
    ) -> Manifest:
        """The object as the server would keep it, after defaults and admission; nothing is written.

        Raises:
            Refused: the server would not take it, for the same reasons as `patch`.
        """
        return self._patched(kind, namespace, name, fields, resource_version, is_dry=True)

    def evict(self, namespace: str, pod: str) -> bool:
        """See `ClusterWriter`; the pod that runs now is meant, and not one that its owner makes in its place.

        Raises:
            Refused: several budgets stand over the pod, which the server evicts under no condition.
        """
        running = self._reader.lately("Pod", namespace, pod) or self._reader.get("Pod", namespace, pod)
        if running is None:
            return True
        path = f"{kind_named('Pod').path('v1', namespace, pod)}/eviction"
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": running["metadata"]["uid"]}},
        }
        deed = Deed(verb="create", resource="pods/eviction", namespace=namespace, name=pod, word="evict:")
        try:
            self._api.send(Call(deed=deed, path=path, method="POST", body=eviction))
        except Conflict:
            # Between look and eviction another pod of that name took its place: the one that was meant is gone.
            return True
        except BudgetForbids as exc:
            self._log.info("a disruption budget forbids an eviction now", namespace=namespace, pod=pod, said=str(exc))
            return False
        self._reader.is_going(namespace, pod, str(running["metadata"]["uid"]))
        return True

    def make(self, manifest: Manifest) -> bool:
        """See `ClusterWriter`; fields that the server does not know are refused.

        Raises:
            Refused: as there; or the server does not serve the kind.
        """
        kind, namespace, name = identity(manifest)
        served = kind_named(kind)
        version = self._api.version_of(served)
        if version is None:
            raise Refused(f"cannot make {kind} {namespace}/{name}: {self._api.server} does not serve the kind")
        body = {**manifest, "apiVersion": f"{served.group}/{version}" if served.group else version}
        deed = Deed(verb="create", resource=served.resource, namespace=namespace, name=name)
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        try:
            self._api.send(Call(deed=deed, path=served.path(version, namespace), method="POST", body=body, query=query))
        except Conflict:
            return False
        return True

    def owners(self, kind: str, namespace: str, fields: Mapping[str, Sequence[str]]) -> Mapping[str, Owners]:
        """See `DisowningWriter`; one list of a namespace's metadata."""
        served = kind_named(kind)
        version = self._api.version_of(served)
        if version is None:
            return {}
        found = {}
        for page in all_pages(self._api, replace(served, metadata_only=True), version, namespace):
            for manifest in page.manifests:
                metadata: Manifest = dict[str, Any](manifest)["metadata"]
                if (name := str(metadata["name"])) in fields:
                    entries = metadata.get("managedFields") or ()
                    found[name] = owned_by_others(entries, FIELD_MANAGER, fields[name])
        return found

    def disown(self, kind: str, namespace: str, name: str, fields: Sequence[str], former: Owners) -> None:
        """See `DisowningWriter`; an object that changes all the time keeps its owners."""
        served = kind_named(kind)
        version = self._api.version_of(served)
        if version is None:
            return
        path = served.path(version, namespace, name)
        for _ in range(_RACES_MAX):
            deed = Deed(verb="get", resource=served.resource, namespace=namespace, name=name)
            found = self._api.get(deed, path)
            if found is None:
                return
            owners = found["metadata"].get("managedFields") or []
            left = disowned(owners, FIELD_MANAGER, fields, former)
            if not owners or left == owners:
                return
            operations = [
                {"op": "replace", "path": "/metadata/resourceVersion", "value": found["metadata"]["resourceVersion"]},
                {"op": "replace", "path": "/metadata/managedFields", "value": left},
            ]
            deed = Deed(verb="patch", resource=served.resource, namespace=namespace, name=name)
            query = {"fieldManager": FIELD_MANAGER}
            call = Call(
                deed=deed, path=path, method="PATCH", query=query, body=operations, content_type=JSON_PATCH
            )  # fmt: skip
            try:
                written = self._api.send(call)
            except Conflict:
                continue
            if written is not None:
                self._reader.remember(whole(written, served, version))
            return

    def record_event(self, kind: str, namespace: str, name: str, reason: str, message: str) -> None:
        """See `ClusterWriter`."""
        about = self._reader.get(kind, namespace, name)
        if about is None:  # an evicted pod
            served = kind_named(kind)
            group = "/".join(filter(None, (served.group, served.versions[0])))
            about = {"apiVersion": group, "kind": kind, "metadata": {"namespace": namespace, "name": name}}
        write_event(self._api, about, Event(reason=reason, message=message))

    def _patched(
        self,
        kind: str,
        namespace: str,
        name: str,
        fields: Sequence[FieldChange],
        resource_version: str,
        *,
        is_dry: bool,
    ) -> Manifest:
        for _ in range(_RACES_MAX):
            before = self._standing(kind, namespace, name, resource_version)
            try:
                return self._sent(before, fields, is_dry=is_dry)
            except Conflict:
                # A controller reported a status just now, or somebody changed it: the next look shows which.
                self._reader.get(kind, namespace, name)
        raise Unavailable(f"cannot change {kind} {namespace}/{name}: its status changes faster than it can be written")

    def _standing(self, kind: str, namespace: str, name: str, resource_version: str) -> Manifest:
        """The object that a change depends on, in the version that it has now."""
        before = self._reader.known(kind, namespace, name, resource_version)
        if before is not None:
            return before
        lately = self._reader.lately(kind, namespace, name)
        if lately is not None and self._reader.is_same(kind, namespace, name, resource_version):
            # Only its status moved on since, as a watch has shown.
            return lately
        before = self._reader.get(kind, namespace, name)
        if before is None:
            raise Refused(f"cannot change {kind} {namespace}/{name}: it is gone")
        version = before["metadata"]["resourceVersion"]
        if version != resource_version and not self._reader.is_same(kind, namespace, name, resource_version):
            raise Refused(
                f"cannot change {kind} {namespace}/{name}: it was changed since it was read: read "
                f"resourceVersion={resource_version}, now {version}; make a new plan with `gputide plan make`"
            )
        return before

    def _sent(self, before: Manifest, fields: Sequence[FieldChange], *, is_dry: bool) -> Manifest:
        kind, namespace, name = identity(before)
        after = copy.deepcopy(before)
        for change in fields:
            set_field(after, change.field, change.value)
        operations = json_patch(before, after, before["metadata"]["resourceVersion"])
        if not operations:
            return before
        served = kind_named(kind)
        version = str(before["apiVersion"]).rpartition("/")[2]
        deed = Deed(verb="patch", resource=served.resource, namespace=namespace, name=name)
        # A field that the server does not know would be dropped in silence otherwise.
        query = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}
        call = Call(
            deed=deed,
            path=served.path(version, namespace, name),
            method="PATCH",
            query=query | ({"dryRun": "All"} if is_dry else {}),
            body=operations,
            content_type=JSON_PATCH,
        )
        written = self._api.send(call)
        if written is None:
            raise Refused(f"cannot change {kind} {namespace}/{name}: it is gone")
        return whole(written, served, version)
