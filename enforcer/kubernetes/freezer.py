"""The freeze of a whole cluster: while a ConfigMap is there, no enforcer of it changes anything.

The guard looks for it before every batch. Who may make and delete the ConfigMap may freeze and thaw.
"""

from __future__ import annotations

from enforcer.safety.guard import FREEZE_NAME, FREEZE_NAMESPACE
from fleet.errors import Refused, Unavailable
from fleet.units import format_time
from wire.kubernetes.refusals import Conflict, Deed, Forbidden
from wire.kubernetes.write import FIELD_MANAGER, Call, WritingApi

_RESOURCE = "configmaps"
_TRIES_MAX = 5
_SOMEBODY = "somebody"
_PATH = f"/api/v1/namespaces/{FREEZE_NAMESPACE}/{_RESOURCE}"


class ClusterFreezer:
    """Makes and deletes the ConfigMap, in the name of the user that the API server takes us for.

    Each call raises:
        Misconfigured: the right is missing.
        Unavailable: the cluster can't be reached.
    """

    def __init__(self, api: WritingApi) -> None:
        self._api = api

    def freeze(self) -> str:
        """Stop every change; returns who froze, which is somebody else where it was frozen already.

        Raises:
            Refused: the namespace of gputide is not there, or the server will not take it.
            Unavailable: somebody lifts it again and again.
        """
        by = self._api.user()
        body = {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": FREEZE_NAME, "namespace": FREEZE_NAMESPACE},
            "data": {"by": by, "at": format_time(self._api.now())},
        }
        deed = Deed(verb="create", resource=_RESOURCE, namespace=FREEZE_NAMESPACE, name=FREEZE_NAME)
        call = Call(deed=deed, path=_PATH, method="POST", body=body, query={"fieldManager": FIELD_MANAGER})
        for _ in range(_TRIES_MAX):
            try:
                made = self._api.send(call)
            except Conflict:
                holder = self._holder()
                if holder is None:
                    continue  # somebody lifted it just now
                return holder
            if made is None:
                raise Refused(f"cannot freeze: the cluster has no namespace {FREEZE_NAMESPACE}")
            return by
        raise Unavailable(f"cannot freeze: {FREEZE_NAMESPACE}/{FREEZE_NAME} is lifted again and again; try once more")

    def _holder(self) -> str | None:
        """Who froze; None where nothing is frozen. Who may freeze and lift need not have the right to read."""
        deed = Deed(verb="get", resource=_RESOURCE, namespace=FREEZE_NAMESPACE, name=FREEZE_NAME)
        try:
            found = self._api.get(deed, f"{_PATH}/{FREEZE_NAME}")
        except Forbidden:
            return _SOMEBODY
        return None if found is None else str((found.get("data") or {}).get("by") or _SOMEBODY)

    def lift(self) -> bool:
        """Let changes go on; whether anything was frozen."""
        deed = Deed(verb="delete", resource=_RESOURCE, namespace=FREEZE_NAMESPACE, name=FREEZE_NAME)
        call = Call(deed=deed, path=f"{_PATH}/{FREEZE_NAME}", method="DELETE", body={})
        return self._api.send(call) is not None
