"""Reads a neutral trace straight into a history, up to a moment: no receiver, no warehouse, so that tests of the
analyzer depend on nothing else.
"""

import json
from datetime import datetime
from pathlib import Path

import numpy as np
import pandas as pd

from fleet.inventory import Card, CardId, CardModelName, Grant, Inventory, Priority
from fleet.schema import CARD_MEASURES, SLICE_MEASURES
from fleet.usage import CardKey, History, SliceKey, UsageGrid


def recorded(folder: Path, until: datetime | None = None) -> History:
    """The history that a trace holds up to `until` (its end if None); what happens later is not known."""
    pods, cards = pd.read_parquet(folder / "pods.parquet"), pd.read_parquet(folder / "cards.parquet")
    usage = pd.read_parquet(folder / "usage.parquet")
    times = np.sort(usage["ts"].unique())
    step_seconds = int(pd.Series(times).diff().mode()[0].total_seconds())
    since = pd.Timestamp(times[0]) - pd.Timedelta(seconds=step_seconds)
    end = pd.Timestamp(until or times[-1])
    steps = int((end - since).total_seconds()) // step_seconds
    grants = tuple(_grant(row, end) for row in pods.to_dict("records") if row["started_at"] <= end)
    identities = {(grant.pod, str(grant.card)): grant for grant in grants}
    pairs = list(dict.fromkeys(zip(usage["pod"], usage["card"], strict=True)))
    keys = [_slice_key(identities[pair]) for pair in pairs if pair in identities]
    numbers = {pair: number for number, pair in enumerate(pair for pair in pairs if pair in identities)}
    rows = [numbers.get(pair, -1) for pair in zip(usage["pod"], usage["card"], strict=True)]
    card_records = tuple(
        sorted(
            (
                Card(
                    card=CardId(row["card"]),
                    card_model=CardModelName(row["card_model"]),
                    framebuffer_bytes=int(row["framebuffer_bytes"]),
                    node=row["node"],
                    cluster=row["cluster"],
                )
                for row in cards.to_dict("records")
            ),
            key=lambda card: card.card,
        )
    )
    frame = (since, step_seconds, steps)
    inventory = Inventory(cluster=grants[0].cluster, as_of=end.to_pydatetime(), cards=card_records, grants=grants)
    slices = _grid(tuple(keys), usage, np.array(rows), frame, SLICE_MEASURES)
    return History(inventory=inventory, slices=slices, cards=_card_grid(folder, card_records, frame))


def _card_grid(folder, cards, frame):
    if not (folder / "card_usage.parquet").exists():
        return None
    usage = pd.read_parquet(folder / "card_usage.parquet")
    measured = set(usage["card"].astype(str))
    keys = tuple(
        CardKey(cluster=card.cluster, node=card.node, card=card.card, card_model=card.card_model)
        for card in cards
        if card.card in measured
    )
    numbers = {str(key.card): number for number, key in enumerate(keys)}
    rows = np.array([numbers[str(card)] for card in usage["card"]])
    return _grid(keys, usage, rows, frame, CARD_MEASURES)


def _grid(keys, usage, rows, frame, measures):
    since, step_seconds, steps = frame
    columns = ((usage["ts"] - since).dt.total_seconds().to_numpy() // step_seconds).astype(int) - 1
    inside = (rows >= 0) & (columns >= 0) & (columns < steps)
    mean = {}
    for column in measures:
        name = column.measure.value
        if name in usage and usage[name].notna().any():
            values = np.full((len(keys), steps), np.nan, np.float32)
            values[rows[inside], columns[inside]] = usage[name].to_numpy(float)[inside]
            mean[column.measure] = values
    return UsageGrid(
        keys=keys, since=since.to_pydatetime(), step_seconds=step_seconds, steps=steps, mean=mean, peak=mean
    )


def _grant(row, end):
    def number(name):
        return None if row.get(name) is None or pd.isna(row[name]) else row[name]

    ended = number("ended_at")
    pool = number("kv_cache_pool_bytes")
    labels = row.get("labels")
    if isinstance(labels, str):
        labels = json.loads(labels)
    return Grant(
        **{name: row[name] for name in ("cluster", "namespace", "pod", "container", "workload", "workload_kind")},
        node=row["node"],
        card=CardId(row["card"]),
        card_model=CardModelName(row["card_model"]),
        framebuffer_bytes=int(row["framebuffer_bytes"]),
        framebuffer_granted_bytes=int(row["framebuffer_granted_bytes"]),
        compute_granted_ratio=float(row["compute_granted_ratio"]),
        priority=Priority(row["priority"]),
        server=number("server"),
        kv_cache_pool_bytes=None if pool is None else int(pool),
        mig_profile=number("mig_profile"),
        labels=tuple(sorted(dict(labels).items())) if labels else (),
        started_at=row["started_at"].to_pydatetime(),
        # What the trace says of a moment that has not come yet is not known.
        ended_at=None if ended is None or ended >= end else ended.to_pydatetime(),
    )


def _slice_key(grant):
    return SliceKey(
        cluster=grant.cluster,
        namespace=grant.namespace,
        pod=grant.pod,
        container=grant.container,
        node=grant.node,
        card=grant.card,
        card_model=grant.card_model,
    )
