"""Which pods a change of something else reaches: pods by node, owner, claim and group; claims by device.

Called by `exporter.allocation.state` for every object that comes, changes or goes. Where two objects claim the same
name, the first in order counts, whichever came first.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Generic, TypeVar

from exporter.allocation.records import (
    AutoscalerRecord,
    Key,
    OwnedRecord,
    OwnerLinkRecord,
    PodRecord,
    PublishedRecord,
    Record,
)
from fleet.autoscaling import Autoscaler, AutoscalerKind
from fleet.gpu_policy import POLICIES_MAX, GpuPolicy
from fleet.grammars.claims import ClaimAllocation, PublishedDevice

DeviceKey = tuple[str, str, str]
"""Driver, pool and name of a device that a driver publishes."""

_Place = TypeVar("_Place", bound=Hashable)
_Entry = TypeVar("_Entry", bound=Hashable)


class Index:
    """Finds what belongs to what; knows no rows."""

    def __init__(self) -> None:
        # By node, controller's UID, claim, KAI's group and namespace; claims by the device that they were given.
        self.pods_on: Links[str, Key] = Links()
        self.pods_of_owner: Links[str, Key] = Links()
        self.pods_of_claim: Links[Key, Key] = Links()
        self.pods_of_group: Links[str, Key] = Links()
        self.pods_in: Links[str, Key] = Links()
        self.claims_of: Links[DeviceKey, Key] = Links()
        # Reservation pods with the card of each group; slices with the devices of each node.
        self._reservations: Links[str, tuple[Key, str]] = Links()
        self._reserved_on: Links[str, tuple[Key, str]] = Links()
        self._slices_of: Links[DeviceKey, Key] = Links()
        self._slices_on: Links[str, Key] = Links()
        self._slices: dict[Key, PublishedRecord] = {}
        self._owners: dict[str, OwnerLinkRecord] = {}
        # By kind before name: of two that scale one workload, KEDA's goes first.
        self._autoscalers: Links[tuple[str, str, str], tuple[int, Key]] = Links()
        self._autoscaler_of: dict[tuple[int, Key], Autoscaler] = {}
        self._policies_in: Links[str, Key] = Links()

    def change(self, key: Key, before: Record | None, after: Record | None) -> None:
        """Forgets what an object was linked to, and notes what it is linked to now."""
        for record, is_there in ((before, False), (after, True)):
            match record:
                case PodRecord():
                    self._link_pod(key, record, is_there=is_there)
                case OwnedRecord() if is_there:
                    self._owners[record.uid] = record.owner
                case OwnedRecord():
                    self._owners.pop(record.uid, None)
                case ClaimAllocation():
                    self._link_claim(key, record, is_there=is_there)
                case PublishedRecord():
                    self._link_slice(key, record, is_there=is_there)
                case AutoscalerRecord():
                    self._link_autoscaler(key, record, is_there=is_there)
                case GpuPolicy():
                    self._policies_in.set(record.namespace, key, is_there=is_there)

    def owner_of(self, link: OwnerLinkRecord) -> OwnerLinkRecord:
        """The owner of an owner; that owner itself where nobody owns it, or it is not known."""
        return self._owners.get(link.uid, link)

    def policies_in(self, namespace: str) -> Iterator[Key]:
        """Policies of a namespace; no more than one beyond `POLICIES_MAX`, which says that there are more."""
        return islice(self._policies_in.at(namespace), POLICIES_MAX + 1)

    def autoscaler_of(self, namespace: str, kind: str, name: str) -> Autoscaler | None:
        """Who scales a workload; None where nobody does."""
        found = min(self._autoscalers.at((namespace, kind, name)), default=None)
        return None if found is None else self._autoscaler_of[found]

    def card_of_group(self, group: str) -> str | None:
        """The card that a reservation pod holds for a group; None where there is none."""
        found = min(self._reservations.at(group), default=None)
        return None if found is None else found[1]

    def reserved_on(self, node: str) -> list[str]:
        """Cards of a node that reservation pods hold, sorted."""
        return sorted({card for _, card in self._reserved_on.at(node)})

    def device(self, device: DeviceKey) -> PublishedDevice | None:
        """What a driver publishes of a device; None where it publishes none of this name."""
        slice_key = min(self._slices_of.at(device), default=None)
        if slice_key is None:
            return None
        return next((one for one in self._slices[slice_key].devices if device_key(one) == device), None)

    def published_on(self, node: str) -> list[PublishedDevice]:
        """Devices that drivers publish for a node, in the order of their slices' names."""
        return [device for key in sorted(self._slices_on.at(node)) for device in self._slices[key].devices]

    def published_nodes(self) -> list[str]:
        """Nodes for which drivers publish devices."""
        return self._slices_on.places()

    def _link_autoscaler(self, key: Key, record: AutoscalerRecord, *, is_there: bool) -> None:
        entry = (list(AutoscalerKind).index(record.autoscaler.kind), key)
        self._autoscalers.set((record.namespace, record.target_kind, record.target), entry, is_there=is_there)
        if is_there:
            self._autoscaler_of[entry] = record.autoscaler
        else:
            del self._autoscaler_of[entry]

    def _link_pod(self, key: Key, pod: PodRecord, *, is_there: bool) -> None:
        self.pods_in.set(pod.namespace, key, is_there=is_there)
        if pod.node is not None:
            self.pods_on.set(pod.node, key, is_there=is_there)
            for _, card in pod.reserves:
                self._reserved_on.set(pod.node, (key, card), is_there=is_there)
        if pod.owner is not None:
            self.pods_of_owner.set(pod.owner.uid, key, is_there=is_there)
        for _, claim in pod.claims:
            self.pods_of_claim.set((pod.namespace, claim), key, is_there=is_there)
        for share in pod.groups:
            for group in share.groups:
                self.pods_of_group.set(group, key, is_there=is_there)
        for group, card in pod.reserves:
            self._reservations.set(group, (key, card), is_there=is_there)

    def _link_claim(self, key: Key, claim: ClaimAllocation, *, is_there: bool) -> None:
        for device in claim.devices:
            self.claims_of.set((device.driver, device.pool, device.device), key, is_there=is_there)

    def _link_slice(self, key: Key, published: PublishedRecord, *, is_there: bool) -> None:
        if published.node is not None:
            self._slices_on.set(published.node, key, is_there=is_there)
        for device in published.devices:
            self._slices_of.set(device_key(device), key, is_there=is_there)
        if is_there:
            self._slices[key] = published
        else:
            del self._slices[key]


def device_key(device: PublishedDevice) -> DeviceKey:
    """Driver, pool and name of a device."""
    return device.driver, device.pool, device.device


class Links(Generic[_Place, _Entry]):
    """What is linked to each place; a place without links takes no memory."""

    def __init__(self) -> None:
        # A dictionary takes less than half of what a set does for the one entry that most places have.
        self._entries: dict[_Place, dict[_Entry, None]] = {}

    def set(self, place: _Place, entry: _Entry, *, is_there: bool) -> None:
        """Links an entry to a place, or takes it away."""
        if is_there:
            self._entries.setdefault(place, {})[entry] = None
            return
        entries = self._entries.get(place)
        if entries is not None:
            entries.pop(entry, None)
            if not entries:
                del self._entries[place]

    def places(self) -> list[_Place]:
        """Every place that something is linked to."""
        return list(self._entries)

    def at(self, place: _Place) -> AbstractSet[_Entry]:
        """What is linked to a place."""
        entries = self._entries.get(place)
        return frozenset() if entries is None else entries.keys()
