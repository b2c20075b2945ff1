"""Heads of the ledgers of data folders, kept in the cluster: an annotation of the lease that its one enforcer holds.

Fulfils `enforcer.record.anchor.Anchor`. The account that changes the cluster may write that lease already, and it is
written on the condition that it is as it was read, so of two writers one goes again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from enforcer.kubernetes.lease import LEASE_NAME, Leases
from enforcer.manifest import Manifest
from enforcer.record.anchor import Head, anchors_of, heads_of, moved
from fleet.errors import Unavailable
from wire.kubernetes.refusals import Conflict
from wire.kubernetes.write import WritingApi

HEADS_ANNOTATION = "gputide.io/ledger-heads"
"""By data folder, the number and hash of the last entry of each of its ledgers, as JSON."""

_TRIES = 8


class LeaseAnchor:
    """The heads of one data folder's ledgers in a cluster.

    Args:
        owner: the folder, under the same name for as long as it is there.
    """

    def __init__(self, api: WritingApi, namespace: str, owner: str) -> None:
        self._leases = Leases(api, namespace, "enforcer.namespace")
        self._owner = owner

    def heads(self) -> Mapping[str, Head]:
        """See `Anchor`; none where there is no lease yet."""
        return heads_of(_content(self._leases.get(LEASE_NAME)).get(self._owner, {}), _PLACE)

    def move(self, name: str, before: Head, after: Head) -> None:
        """See `Anchor`."""
        self._change({name: (before, after)})

    def accept(self, heads: Mapping[str, Head]) -> None:
        """See `Anchor`."""
        self._change({name: (None, head) for name, head in heads.items()})

    def _change(self, moves: Mapping[str, tuple[Head | None, Head]]) -> None:
        for _ in range(_TRIES):
            found = self._leases.get(LEASE_NAME)
            content = _content(found)
            kept = content.get(self._owner, {})
            content[self._owner] = moved(kept, moves, _PLACE)
            if content[self._owner] == kept:
                return
            metadata = {} if found is None else dict(found["metadata"])
            annotations = {**(metadata.get("annotations") or {}), HEADS_ANNOTATION: json.dumps(content, sort_keys=True)}
            fixed = {"metadata": {"annotations": annotations}, **({"spec": {}} if found is None else {})}
            try:
                self._leases.put(LEASE_NAME, found, fixed)
            except Conflict:
                continue
            return
        raise Unavailable(f"cannot anchor ledgers in {_PLACE} now: others write it; call again")


_PLACE = f"annotation {HEADS_ANNOTATION} of lease {LEASE_NAME!r}"


def _content(lease: Manifest | None) -> dict[str, Any]:
    metadata = (lease or {}).get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, dict) else None
    text = annotations.get(HEADS_ANNOTATION) if isinstance(annotations, dict) else None
    return {} if text is None else anchors_of(str(text), _PLACE)
