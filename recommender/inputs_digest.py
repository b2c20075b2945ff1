"""What tells one plan's inputs from another's: a digest of everything that a plan is made from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from fleet.capabilities.register import Capabilities
from fleet.priority_holds import NOBODY, Holders
from fleet.settings.settings import Settings
from fleet.usage import CardGrid, History, SliceGrid
from recommender.past_outcomes import OwnPast


def inputs_digest(history: History, settings: Settings, capability: Capabilities, past: OwnPast) -> str:
    """SHA-256 of everything a plan is made from: inventory, usage, settings, backend, own past."""
    digest = hashlib.sha256()
    digest.update(repr(history.inventory).encode())
    _digest_grid(digest.update, history.slices)
    if history.cards is not None:
        _digest_grid(digest.update, history.cards)
    digest.update(settings.model_dump_json().encode())
    digest.update(repr(capability).encode())
    digest.update(b"" if past.interference is None else repr(past.interference).encode())
    digest.update(b"" if past.calibration_ratio == 1.0 else repr(past.calibration_ratio).encode())
    digest.update(b"" if not past.absences else repr(sorted(past.absences.items())).encode())
    digest.update(b"" if past.night_evictions_per_hour is None else repr(past.night_evictions_per_hour).encode())
    digest.update(b"" if past.holders == NOBODY else repr(_sorted_holders(past.holders)).encode())
    return digest.hexdigest()


def _sorted_holders(holders: Holders) -> list[list[str]]:
    """The same text in every process, where sets have no order."""
    places = (holders.agents, holders.strict, holders.gated, holders.ungated, holders.graphs_pause)
    return [sorted(nodes) for nodes in places]


def _digest_grid(update: Callable[[bytes], None], grid: SliceGrid | CardGrid) -> None:
    update(repr((grid.keys, grid.since, grid.step_seconds, grid.steps)).encode())
    for table in (grid.mean, grid.peak):
        for measure in sorted(table):
            update(measure.value.encode())
            update(np.ascontiguousarray(table[measure]).tobytes())
