"""Reads the node for its agent: cards from the driver, use from HAMi's regions, grants from the API server.

The adapter of the agent's port `NodeReader`. Priorities and grants come from the API server only, because tenants can
write to their regions; regions report what is used.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from enforcer.agent.node_view import CardView, ContainerKey, NodeView, SliceView
from exporter.allocation.records import CardShare, PodRecord
from exporter.node.pods import NodePods
from exporter.nvml.pulse import CardPulse, CardPulses
from exporter.regions.columns import CardFacts, HamiReading, SliceOfRegion
from exporter.regions.reader import HamiReader
from fleet.inventory import Priority

_DRIVER_SHARE = 0.6
"""Share of the deadline that the driver may take."""


class HamiNodeReader:
    """Reads this node; used by one thread.

    Args:
        pulses: the driver; closed with this.
        pods: this node's pods by the API server, started; stopped with this.
        containers: root of all regions.
    """

    def __init__(self, pulses: CardPulses, pods: NodePods, containers: Path) -> None:
        self._pulses, self._pods = pulses, pods
        self._regions = HamiReader(containers)
        self._rows = _SliceRows(())
        self._slices: dict[tuple[str, str, str], _Slice] = {}

    def read(self, deadline_seconds: float) -> NodeView:
        """Cards and slices as they are now; see the port."""
        until = time.monotonic() + deadline_seconds
        pulses = self._pulses.look(_DRIVER_SHARE * deadline_seconds)
        now = time.time()
        reading = self._regions.read(
            {pulse.card: _facts(pulse) for pulse in pulses},
            now_seconds=now,
            deadline_seconds=max(0.01, until - time.monotonic()),
        )
        if self._rows.keys is not reading.slices.keys:
            self._rows = _SliceRows(reading.slices.keys)
        regions = _Regions(reading, self._rows)
        sizes = {pulse.card: pulse.framebuffer_bytes for pulse in pulses}
        slices = [
            self._slice(pod, share, sizes.get(share.card, 0), regions)
            for facts in self._pods.facts() or ()
            if not (pod := facts.record).is_over
            for share in pod.shares
        ]
        cards = tuple(
            CardView(
                card=pulse.card,
                framebuffer_bytes=pulse.framebuffer_bytes,
                framebuffer_free_bytes=pulse.framebuffer_free_bytes,
                duty_cycle_ratio=pulse.duty_cycle_ratio,
            )
            for pulse in pulses
        )
        if len(self._slices) > len(slices):
            there = {(entry.pod_uid, entry.container, entry.card) for entry in slices}
            self._slices = {place: known for place, known in self._slices.items() if place in there}
        return NodeView(at_seconds=now, cards=cards, slices=tuple(slices))

    def _slice(self, pod: PodRecord, share: CardShare, card_bytes: int, regions: _Regions) -> SliceView:
        """One slice; the same object as before where nothing of it changed, which is most of them most of the time."""
        place = (pod.uid, share.container, share.card)
        granted = card_bytes if share.framebuffer_bytes is None else share.framebuffer_bytes
        known = self._slices.get(place)
        if known is None or known.pod is not pod:
            self._slices[place] = known = _Slice(pod, share)
        used, limit, duty = regions.of(known.key, share.card)
        figures = (granted, used, limit, duty)
        if known.shown is None or known.figures != figures:
            known.figures = figures
            known.shown = SliceView(
                namespace=pod.namespace,
                pod=pod.pod,
                pod_uid=pod.uid,
                container=share.container,
                card=share.card,
                priority=known.priority,
                framebuffer_used_bytes=used,
                framebuffer_granted_bytes=granted,
                framebuffer_limit_bytes=limit,
                duty_cycle_ratio=duty,
            )
        return known.shown

    def close(self) -> None:
        """Close what it reads from."""
        self._pulses.close()
        self._pods.stop()
        self._regions.close()


class _Slice:
    """What is known of one container's slice from look to look."""

    def __init__(self, pod: PodRecord, share: CardShare) -> None:
        self.pod = pod
        self.key = ContainerKey(pod_uid=pod.uid, container=share.container)
        priorities = {needs.container: needs.priority for needs in pod.containers}
        self.priority = priorities.get(share.container, Priority.NORMAL)
        self.figures: tuple[int, int | None, int | None, float | None] = (0, None, None, None)
        self.shown: SliceView | None = None


class _SliceRows:
    """Rows of a reading by container and card, made anew only where its keys are others."""

    def __init__(self, keys: Sequence[SliceOfRegion]) -> None:
        self.keys = keys
        self.by_place = {
            (ContainerKey(pod_uid=key.container.pod_uid, container=key.container.container), key.card): row
            for row, key in enumerate(keys)
        }


class _Regions:
    """Use of each container by its region."""

    def __init__(self, reading: HamiReading, rows: _SliceRows) -> None:
        self._rows, slices = rows.by_place, reading.slices
        figures = (slices.framebuffer_used, slices.framebuffer_limit, slices.duty_cycle)
        self._figures = [column.tolist() for column in figures]
        silent = (reading.containers.keys[row] for row in np.flatnonzero(~reading.containers.has_region).tolist())
        self._silent = {ContainerKey(pod_uid=key.pod_uid, container=key.container) for key in silent}

    def of(self, key: ContainerKey, card: str) -> tuple[int | None, int | None, float | None]:
        """Framebuffer used, framebuffer limit, duty cycle; a container without a region never called CUDA."""
        if key in self._silent:
            return 0, None, 0.0
        row = self._rows.get((key, card))
        if row is None:
            return None, None, None
        used, limit, duty = self._figures
        return _integer(used[row]), _integer(limit[row]), _ratio(duty[row])


def _facts(pulse: CardPulse) -> CardFacts:
    return CardFacts(framebuffer_bytes=float(pulse.framebuffer_bytes), duty_cycle_ratio=pulse.duty_cycle_ratio)


def _integer(value: float) -> int | None:
    return None if math.isnan(value) else int(value)


def _ratio(value: float) -> float | None:
    return None if math.isnan(value) else value
