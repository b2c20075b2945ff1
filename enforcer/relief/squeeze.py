"""Puts low priority to sleep from afar: writes what is paused into the nodes' orders, beside what stands there.

The orders of a node (`enforcer.agent.orders`) are one key of a ConfigMap; they count until they expire, so a relief
that dies leaves nobody asleep for longer than that. Every write is conditional on the version that was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta

from enforcer.agent.node_view import ContainerKey
from enforcer.agent.orders import Orders, orders_text, parse_orders
from enforcer.cluster import ClusterReader, ClusterWriter, FieldChange
from enforcer.manifest import Manifest
from fleet.errors import Corrupt, Refused

_RACES_MAX = 4


class OrdersWriter:
    """Writes the pauses of nodes."""

    def __init__(self, reader: ClusterReader, writer: ClusterWriter, *, namespace: str, name: str) -> None:
        self._reader, self._writer = reader, writer
        self._key = ("ConfigMap", namespace, name)

    def pause(self, wanted: Mapping[str, frozenset[ContainerKey]], seconds: float) -> None:
        """Have exactly these containers of some nodes sleep.

        Args:
            wanted: by node; none for a node on which everybody may wake.

        Raises:
            Refused: somebody else writes the orders all the time, or admission denied them.
            Unavailable: the cluster can't be reached.
        """
        for number in range(_RACES_MAX):
            found = self._reader.get(*self._key)
            data = {} if found is None else found.get("data") or {}
            texts = {node: self._text(data.get(node), keys, seconds) for node, keys in sorted(wanted.items())}
            if found is None:
                _, namespace, name = self._key
                manifest: Manifest = {
                    "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": namespace, "name": name},
                    "data": texts,
                }  # fmt: skip
                if self._writer.make(manifest):
                    return
                continue
            fields = [FieldChange(field=f"data[{node}]", value=text) for node, text in texts.items()]
            try:
                self._writer.patch(*self._key, fields, found["metadata"]["resourceVersion"])
            except Refused:
                if number == _RACES_MAX - 1:
                    raise
                continue
            return
        raise Refused(f"cannot write the orders {self._key[1]}/{self._key[2]}: somebody else makes them all the time")

    def _text(self, standing: str | None, keys: frozenset[ContainerKey], seconds: float) -> str:
        """The orders of a node with these pauses; limits and manner of others are kept."""
        now = self._reader.now()
        paused = tuple(sorted(keys, key=lambda key: (key.pod_uid, key.container)))
        fresh = Orders(issued_at=now, expires_at=now + timedelta(seconds=seconds), paused=paused)
        try:
            old = None if standing is None else parse_orders(standing)
        except Corrupt:
            # What no agent can read counts for nothing.
            old = None
        if old is None:
            return orders_text(fresh)
        # Agents take no orders that are older than those they have.
        issued_at = max(now, old.issued_at)
        fresh = replace(fresh, issued_at=issued_at, expires_at=issued_at + timedelta(seconds=seconds))
        if old.expires_at > now and (old.limits or old.give_way is not None):
            fresh = replace(
                fresh, limits=old.limits, give_way=old.give_way, expires_at=max(old.expires_at, fresh.expires_at)
            )
        return orders_text(fresh)
