"""Writes a history as a neutral trace, for those who look into it elsewhere, with names hashed where that is asked.

Called by `gputide scan --record`. A hash is keyed by a secret that stays in the data folder: anybody who has the trace
can't try names out, and a second record of the same folder has the same names.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from exporter.trace.usage import Piece
from exporter.trace.writer import write_trace
from fleet.data_folder import DataFolder
from fleet.durable import write_durably
from fleet.errors import Corrupt
from fleet.inventory import CardId, CardModelName, Grant
from fleet.usage import CardGrid, History, SliceGrid

KEY_BYTES = 32
NAMELESS = "none"
"""Stands where a source leaves a name out: a trace has no empty names."""
_STEPS_PER_PIECE = 240
_HASH_LENGTH = 12

Hide = Callable[[str, str], str]
"""Kind of a name and the name → what is written."""


def record(history: History, target: Path, *, hide: Hide) -> tuple[int, int]:
    """Write a history as a trace folder; returns number of cards and of grants.

    Args:
        history: what was scanned; rows hold the means of its steps.
        target: folder; must not exist, or be empty.
        hide: what is written for a name (`shown` or `hasher`).

    Raises:
        Misconfigured: the folder holds something.
        Unavailable: it can't be written.
    """
    inventory = history.inventory
    card_of = {card.card: hide("card", card.card) for card in inventory.cards}
    pods = _pod_names(inventory.grants, hide)
    cluster = hide("cluster", inventory.cluster or NAMELESS)
    cards = [
        replace(
            card,
            card=CardId(card_of[card.card]),
            node=hide("node", card.node or NAMELESS),
            cluster=cluster,
            card_model=card.card_model or CardModelName(NAMELESS),
        )
        for card in inventory.cards
    ]
    nodes = [replace(node, node=hide("node", node.node), cluster=cluster, labels=()) for node in inventory.nodes]
    grants = [
        replace(
            grant,
            cluster=cluster,
            namespace=hide("namespace", grant.namespace or NAMELESS),
            pod=name,
            container=hide("container", grant.container or NAMELESS),
            workload=hide("workload", f"{grant.namespace}/{grant.workload}") if hide is not shown else grant.workload,
            node=hide("node", grant.node or NAMELESS),
            card=CardId(card_of[grant.card]),
            card_model=grant.card_model or CardModelName(NAMELESS),
        )
        for grant, name in zip(inventory.grants, pods, strict=True)
    ]
    slice_rows: dict[tuple[str, ...], int] = {}
    for number, grant in enumerate(inventory.grants):
        slice_rows.setdefault((grant.namespace, grant.pod, grant.container, grant.card), number)
    card_rows = {card.card: number for number, card in enumerate(inventory.cards)}
    write_trace(
        target,
        cards=cards,
        nodes=nodes,
        grants=grants,
        usage=_pieces(
            history.slices,
            [slice_rows.get((key.namespace, key.pod, key.container, key.card), -1) for key in history.slices.keys],
        ),
        card_usage=()
        if history.cards is None
        else _pieces(history.cards, [card_rows.get(key.card, -1) for key in history.cards.keys]),
    )
    return len(cards), len(grants)


def shown(kind: str, name: str) -> str:
    """Writes names as they are."""
    del kind
    return name


def hasher(folder: DataFolder) -> Hide:
    """Hashes names by the data folder's own key, which is made once.

    Raises:
        Corrupt: the key can't be read or written.
    """
    path = folder.scan_key
    if not path.exists():
        write_durably(path, secrets.token_bytes(KEY_BYTES))
    try:
        path.chmod(0o600)
        key = path.read_bytes()
    except OSError as exc:
        raise Corrupt(f"cannot read {path}: {exc.strerror}") from exc
    if len(key) != KEY_BYTES:
        raise Corrupt(f"cannot use {path}: {len(key)} bytes instead of {KEY_BYTES}; remove it to make another")

    def hide(kind: str, name: str) -> str:
        digest = hmac.new(key, f"{kind}\n{name}".encode(), hashlib.sha256).hexdigest()
        return f"{kind}-{digest[:_HASH_LENGTH]}"

    return hide


def _pod_names(grants: Sequence[Grant], hide: Hide) -> list[str]:
    """Names by which a pod's grants on one card are distinguished from another's: a trace has pod names only."""
    owners: dict[tuple[str, str], set[tuple[str, str]]] = {}
    for grant in grants:
        owners.setdefault((grant.pod, grant.card), set()).add((grant.namespace, grant.container))
    names = []
    for grant in grants:
        is_alone = len(owners[grant.pod, grant.card]) == 1
        if hide is shown:
            names.append(grant.pod if is_alone else f"{grant.namespace}.{grant.pod}.{grant.container}")
        else:
            text = f"{grant.namespace}/{grant.pod}"
            names.append(hide("pod", text if is_alone else f"{text}/{grant.container}"))
    return names


def _pieces(grid: SliceGrid | CardGrid, numbers: Sequence[int]) -> Iterator[Piece]:
    """Rows of a grid in order of time; rows of `-1` are left out."""
    rows = np.flatnonzero(np.array(numbers, dtype=np.int64) >= 0)
    keys = np.array(numbers, dtype=np.int32)[rows]
    ends = grid.step_ends_ms()
    for start in range(0, grid.steps, _STEPS_PER_PIECE):
        steps = slice(start, min(grid.steps, start + _STEPS_PER_PIECE))
        # Planes of a large fleet lie in files: of each no more is in memory than is looked at here.
        columns: dict[Any, Any] = {measure: values[rows, steps].T for measure, values in grid.mean.items()}
        if not columns or not len(rows):
            return
        is_there = ~np.isnan(np.stack(list(columns.values()))).all(axis=0)
        if not is_there.any():
            continue
        step, row = np.nonzero(is_there)
        yield Piece(
            keys=keys[row],
            ts_ms=ends[steps][step],
            values={measure: values[step, row].astype(np.float64) for measure, values in columns.items()},
        )
