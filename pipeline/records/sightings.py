"""Sightings: what the labels of info series say, as text columns, and as inventory records.

`series_table` refuses labels that could not be read back (`fault_of_sighting`); the warehouse makes the inventory of
them (`inventory_of`). Label sets: `GRANT_LABELS`, `CARD_INFO_LABELS`, `NODE_INFO_LABELS`, `SERVER_LABELS` in
`fleet.schema`; empty text means absent. What a server says counts for grants of its own pod alone.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from fleet.catalogue import CardModel, find_model
from fleet.errors import Corrupt
from fleet.inventory import (
    PROVIDER_ID_LENGTH_MAX,
    Card,
    CardId,
    CardModelName,
    Grant,
    Inventory,
    Node,
    Priority,
    Quota,
)
from fleet.kv_cache import Pool, model_known, pool_per_card
from fleet.object_names import NAME_WORDS, can_own, is_label, is_name
from fleet.schema import ALLOCATIONS, INVENTORY_CARDS, INVENTORY_NODES, QUOTAS, SERVERS, Table
from fleet.series import SeriesIdentity
from fleet.server_series import ServerFacts
from fleet.servers import MODEL_LABEL, known_server, server_of, server_rank
from fleet.tiers import tier_of
from fleet.units import MIB

SILENT_SECONDS = 2 * 3600
"""A grant that was last seen this long before the newest sighting of its cluster has ended: sightings come hourly."""

_NEVER = datetime(1970, 1, 1, tzinfo=UTC)
_AT_ONCE_MS = 600_000
"""Two servers that were last seen within this time of each other ran at once, one before the other if not."""
_SERVER_BOUNDS = (("pool_blocks", 2**40), ("block_tokens", 2**20), ("pool_bytes", 2**44))
_SERVER_TEXT_MAX = 512


def fault_of_sighting(table: Table, row: Sequence[str]) -> str | None:
    """Why the labels of an info series can't be read back; None where they can.

    Args:
        row: texts of its key columns, in order.
    """
    seen = dict(zip(table.keys, row, strict=True)) | {"first_seen": 0, "last_seen": 0, "ended_at": None}
    try:
        if table is ALLOCATIONS:
            _grant(seen, newest_ms=0, as_of=_NEVER)
        elif table is INVENTORY_CARDS:
            _card(seen)
        elif table is QUOTAS:
            _quota(seen)
        elif table is SERVERS:
            _check_server(seen)
        else:
            _node(seen)
    except Corrupt as exc:
        return str(exc)
    return None


def server_row(identity: SeriesIdentity, said: ServerFacts) -> dict[str, str]:
    """The columns of `SERVERS` of one series of an inference server."""
    named = {name: getattr(identity, name) or "" for name in ("cluster", "namespace", "pod", "container")}
    return named | {name: getattr(said, name) for name in SERVERS.keys if name not in named}


def sighted_text(fact: str, value: float) -> str:
    """A sample's value as the text of a sighting; bytes in whole MiB: the last digits of a size are no news.

    Negative, infinite and huge values have texts that `fault_of_sighting` refuses.
    """
    if not math.isfinite(value):
        return str(value)
    return f"{round(value / MIB) * MIB if fact == 'pool_bytes' else round(value)}"


def inventory_of(
    rows: Mapping[str, Sequence[Mapping[str, Any]]], *, cluster: str, as_of: datetime | None, time_zone: str
) -> Inventory:
    """The inventory of one cluster from merged sightings.

    A grant has ended where its stale marker came after its last sighting, or where it was last seen more than
    `SILENT_SECONDS` before the newest sighting of the cluster. What was first seen after `as_of` is left out, and a
    later end is not known yet.

    Args:
        rows: per table name (of `INVENTORY_TABLES`) one mapping per label set.
        as_of: the moment; None for the newest sighting.
        time_zone: IANA name.

    Raises:
        Corrupt: stored labels can't be read.
    """
    # A tenant's server has no say in what time it is.
    newest = max(
        (row["last_seen"] for name, table in rows.items() if name != SERVERS.name for row in table), default=None
    )
    if as_of is None:
        as_of = _NEVER if newest is None else _moment(newest)
    limit_ms = round(as_of.timestamp() * 1000)
    newest_ms = min(newest if newest is not None else limit_ms, limit_ms)
    known = {name: [row for row in table if row["first_seen"] <= limit_ms] for name, table in rows.items()}
    grants = _told_once(
        [_grant(row, newest_ms=newest_ms, as_of=as_of) for row in _by_age(known.get(ALLOCATIONS.name, ()))]
    )
    grants = _with_servers(grants, known.get(SERVERS.name, ()))
    cards = {card.card: card for card in map(_card, _by_age(known.get(INVENTORY_CARDS.name, ())))}
    nodes: dict[str, Node] = {}
    for node in map(_node, _by_age(known.get(INVENTORY_NODES.name, ()))):
        # A node's own exporter does not know its provider's id.
        is_silent = node.provider_id is None and node.node in nodes
        nodes[node.node] = replace(node, provider_id=nodes[node.node].provider_id) if is_silent else node
    return Inventory(
        cluster=cluster,
        as_of=as_of,
        time_zone=time_zone,
        cards=tuple(cards[name] for name in sorted(cards)),
        nodes=tuple(nodes[name] for name in sorted(nodes)),
        grants=tuple(sorted(grants, key=lambda grant: (grant.namespace, grant.pod, grant.card, grant.started_at))),
        quotas=_standing_quotas(known.get(QUOTAS.name, ()), newest_ms=newest_ms, as_of=as_of),
    )


def _told_once(grants: Sequence[Grant]) -> list[Grant]:
    """One grant where two sightings that last differ in nothing but labels.

    Two exporters report one slice, and only that of the cluster knows who scales the workload.

    Args:
        grants: what was seen last comes last, and goes before where both name a label.
    """
    found: list[Grant] = []
    place: dict[Grant, int] = {}
    for grant in grants:
        same = replace(grant, labels=())
        if grant.ended_at is None and same in place:
            before = found[place[same]]
            labels = tuple(sorted({**dict(before.labels), **dict(grant.labels)}.items()))
            found[place[same]] = replace(grant, labels=labels)
            continue
        if grant.ended_at is None:
            place[same] = len(found)
        found.append(grant)
    return found


def _by_age(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Oldest first, so that what was seen last is what counts."""
    return sorted(rows, key=lambda row: (row["last_seen"], row["first_seen"]))


def _grant(row: Mapping[str, Any], *, newest_ms: int, as_of: datetime) -> Grant:
    framebuffer_bytes = _integer(row, "framebuffer_bytes")
    granted_bytes = _integer(row, "framebuffer_granted_bytes")
    compute_ratio = _real(row, "compute_granted_ratio")
    if framebuffer_bytes is None:
        raise Corrupt(f"cannot read sighting of pod {row['pod']!r}: framebuffer_bytes is missing")
    labels = _pairs(row, "labels")
    tier = tier_of(dict(labels))
    priority = row["priority"] or (Priority.NORMAL if tier is None else tier.priority)
    if priority not in set(Priority):
        raise Corrupt(f"cannot read sighting of pod {row['pod']!r}: priority {priority!r} is none")
    if compute_ratio is not None and compute_ratio > 1.0:
        raise Corrupt(f"cannot read sighting of pod {row['pod']!r}: compute_granted_ratio={compute_ratio} exceeds 1")
    if not is_label(row["namespace"]) or not is_name(row["pod"]):
        raise Corrupt(
            f"cannot read sighting of pod {row['pod'][:200]!r} of namespace {row['namespace'][:200]!r}: Kubernetes has "
            f"no such names: {NAME_WORDS}"
        )
    kind, workload = row["workload_kind"] or "Pod", row["workload"] or row["pod"]
    if not can_own(kind, workload):
        kind, workload = "Pod", row["pod"]
    started_at = _time(row, "started_at") or _moment(row["first_seen"])
    whole_bytes, whole_ratio = framebuffer_bytes, 1.0
    if row["mig_profile"]:
        whole_bytes, whole_ratio = _instance(row["mig_profile"], find_model(row["card_model"]), framebuffer_bytes)
    return Grant(
        cluster=row["cluster"],
        namespace=row["namespace"],
        pod=row["pod"],
        container=row["container"],
        workload=workload,
        workload_kind=kind,
        node=row["node"],
        card=CardId(row["card"]),
        card_model=CardModelName(row["card_model"]),
        framebuffer_bytes=framebuffer_bytes,
        framebuffer_granted_bytes=whole_bytes if granted_bytes is None else granted_bytes,
        compute_granted_ratio=whole_ratio if compute_ratio is None else compute_ratio,
        priority=Priority(priority),
        server=_server(row["server"], dict(labels)),
        kv_cache_pool_bytes=_integer(row, "kv_cache_pool_bytes"),
        mig_profile=row["mig_profile"] or None,
        cpu_request_cores=_real(row, "cpu_request_cores"),
        memory_request_bytes=_integer(row, "memory_request_bytes"),
        labels=labels,
        replicas_min=_integer(row, "replicas_min"),
        started_at=started_at,
        ended_at=_ended_at(row, newest_ms=newest_ms, as_of=as_of),
    )


def _instance(profile: str, model: CardModel | None, card_bytes: int) -> tuple[int, float]:
    """Framebuffer and share of compute of a MIG instance; of an unknown one the whole card's."""
    family = None if model is None else model.mig
    found = None if family is None else next((item for item in family.profiles if item.name == profile), None)
    if family is None or found is None:
        return card_bytes, 1.0
    share = found.memory_slices / family.memory_slices
    granted = round(card_bytes * share) if found.framebuffer_bytes is None else found.framebuffer_bytes
    return granted, found.compute_slices / family.compute_slices


def _server(text: str, labels: Mapping[str, str]) -> str | None:
    """What runs in a container, of a server's name or of the image that a recording rule has in its place."""
    if known_server(text) is not None:
        return text
    return server_of(text, (), labels) or (None if "/" in text or ":" in text else text or None)


def _with_servers(grants: list[Grant], rows: Sequence[Mapping[str, Any]]) -> list[Grant]:
    """Grants with what the servers in their pods say of themselves, where their own sightings don't say it."""
    said: dict[tuple[str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        said[row["namespace"], row["pod"]].append(row)
    beside: dict[tuple[str, str], list[Grant]] = defaultdict(list)
    for grant in grants:
        beside[grant.namespace, grant.pod].append(grant)
    return [
        _with_server(grant, beside[pod], said[pod]) if (pod := (grant.namespace, grant.pod)) in said else grant
        for grant in grants
    ]


def _with_server(grant: Grant, beside: Sequence[Grant], rows: Sequence[Mapping[str, Any]]) -> Grant:
    is_alone = len({other.container for other in beside}) == 1
    began_ms = round(grant.started_at.timestamp() * 1000)
    ended_ms = math.inf if grant.ended_at is None else grant.ended_at.timestamp() * 1000
    own = [
        row
        for row in rows
        if (is_alone or row["container"] == grant.container)
        and row["last_seen"] >= began_ms
        and row["first_seen"] <= ended_ms
    ]
    if not own:
        return grant
    cards = {
        other.card
        for other in beside
        if other.container == grant.container
        and (grant.ended_at is None or other.started_at < grant.ended_at)
        and (other.ended_at is None or other.ended_at > grant.started_at)
    }
    server = grant.server or _server_said(own)
    if grant.kv_cache_pool_bytes is not None:
        return replace(grant, server=server)
    pool = _pool(own, dict(grant.labels).get(MODEL_LABEL), len(cards))
    if pool is None or not 0 < pool.least <= grant.framebuffer_granted_bytes:
        return replace(grant, server=server)
    most = min(pool.most, grant.framebuffer_granted_bytes)
    return replace(
        grant,
        server=server,
        kv_cache_pool_bytes=pool.least,
        kv_cache_pool_max_bytes=most if most > pool.least else None,
    )


def _server_said(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """The server that was seen last; of several at once the engine, and not what routes requests to it."""
    newest = max(row["last_seen"] for row in rows)
    names = {row["server"] for row in rows if row["last_seen"] >= newest - _AT_ONCE_MS}
    return min(names - {""}, key=server_rank, default=None)


def _pool(rows: Sequence[Mapping[str, Any]], labelled: str | None, cards: int) -> Pool | None:
    """A server's KV cache on each of its cards; None where nothing is sure of it, not even the least.

    Args:
        rows: what the server says.
        labelled: the model by the pod's label.
    """
    told = _newest([row for row in rows if row["pool_bytes"] != "0"], "pool_bytes")
    if told is not None:
        size = _integer(told, "pool_bytes") or 0
        return Pool(size, size)
    blocks, sized = _newest(rows, "pool_blocks", "block_tokens", "cache_dtype", "model"), _newest(rows, "block_tokens")
    each = blocks if blocks is not None and blocks["block_tokens"] else sized
    named, typed = _newest(rows, "model"), _newest(rows, "cache_dtype")
    is_split = (named is None and any(row["model"] for row in rows)) or (
        typed is None and any(row["cache_dtype"] for row in rows)
    )
    model = model_known(None if named is None else named["model"], labelled)
    if blocks is None or each is None or model is None or is_split:
        return None
    tokens = (_integer(blocks, "pool_blocks") or 0) * (_integer(each, "block_tokens") or 0)
    return pool_per_card(
        model=model, cache_dtype="" if typed is None else typed["cache_dtype"], tokens=tokens, cards=cards
    )


def _newest(rows: Sequence[Mapping[str, Any]], *columns: str) -> Mapping[str, Any] | None:
    """What was said last of some columns; None where nothing was, or two servers say different things at once."""
    saying = [row for row in rows if row[columns[0]]]
    newest = max(saying, key=lambda row: row["last_seen"], default=None)
    if newest is None:
        return None
    rivals = [
        row
        for row in saying
        if any(row[column] != newest[column] for column in columns)
        and row["last_seen"] >= max(newest["first_seen"], newest["last_seen"] - _AT_ONCE_MS)
    ]
    return None if rivals else newest


def _check_server(row: Mapping[str, Any]) -> None:
    for name, most in _SERVER_BOUNDS:
        value = _integer(row, name)
        if value is not None and value > most:
            raise Corrupt(f"cannot read sighting of pod {row['pod']!r}: {name}={value} exceeds {most}")
    if max(len(row[name]) for name in SERVERS.keys) > _SERVER_TEXT_MAX:
        raise Corrupt(f"cannot read sighting of pod {row['pod'][:200]!r}: a text exceeds {_SERVER_TEXT_MAX} characters")


def _ended_at(row: Mapping[str, Any], *, newest_ms: int, as_of: datetime) -> datetime | None:
    ended_ms, last_ms = row["ended_at"], row["last_seen"]
    if ended_ms is not None and ended_ms >= last_ms:
        ended = _moment(ended_ms)
        return ended if ended <= as_of else None
    if newest_ms - last_ms > SILENT_SECONDS * 1000:
        return _moment(last_ms)
    return None


def _card(row: Mapping[str, Any]) -> Card:
    framebuffer_bytes = _integer(row, "framebuffer_bytes")
    if framebuffer_bytes is None:
        raise Corrupt(f"cannot read sighting of card {row['card']!r}: framebuffer_bytes is missing")
    return Card(
        card=CardId(row["card"]),
        card_model=CardModelName(row["card_model"]),
        framebuffer_bytes=framebuffer_bytes,
        node=row["node"],
        cluster=row["cluster"],
        mig_mode=_boolean(row, "mig_mode"),
        is_owned=_boolean(row, "is_owned"),
    )


def _node(row: Mapping[str, Any]) -> Node:
    provider_id = row["provider_id"] or None
    if provider_id is not None and len(provider_id) > PROVIDER_ID_LENGTH_MAX:
        raise Corrupt(
            f"cannot read sighting of node {row['node'][:200]!r}: provider_id has {len(provider_id)} characters, more "
            f"than {PROVIDER_ID_LENGTH_MAX}"
        )
    return Node(
        node=row["node"],
        cluster=row["cluster"],
        cpu_cores=_real(row, "cpu_cores"),
        memory_bytes=_integer(row, "memory_bytes"),
        taints=_strings(row, "taints"),
        labels=_pairs(row, "labels"),
        provider_id=provider_id,
    )


def _quota(row: Mapping[str, Any]) -> Quota:
    if not row["kind"] or not row["name"] or not row["resource"]:
        raise Corrupt(f"cannot read sighting of quota {row['name']!r}: kind, name or resource is missing")
    return Quota(
        cluster=row["cluster"],
        kind=row["kind"],
        namespace=row["namespace"],
        name=row["name"],
        parent=row["parent"] or None,
        resource=row["resource"],
        deserved=_real(row, "deserved"),
        limit=_real(row, "quota_limit"),
        held=_real(row, "held"),
    )


def _standing_quotas(rows: Sequence[Mapping[str, Any]], *, newest_ms: int, as_of: datetime) -> tuple[Quota, ...]:
    """Of each quota and resource what was seen last, unless it has gone since."""
    found: dict[tuple[str, ...], Quota | None] = {}
    for row in _by_age(rows):
        quota = _quota(row)
        stands = _ended_at(row, newest_ms=newest_ms, as_of=as_of) is None
        found[quota.kind, quota.namespace, quota.name, quota.resource] = quota if stands else None
    return tuple(quota for _, quota in sorted(found.items()) if quota is not None)


def _integer(row: Mapping[str, Any], name: str) -> int | None:
    value = _real(row, name)
    if value is None:
        return None
    if value != int(value):
        raise Corrupt(f"cannot read {name}={row[name]!r}: not a whole number")
    text = row[name]
    return int(text) if text.isascii() and text.isdigit() else int(value)


def _real(row: Mapping[str, Any], name: str) -> float | None:
    text = row[name]
    if not text:
        return None
    try:
        value = float(text)
    except ValueError as exc:
        raise Corrupt(f"cannot read {name}={text!r}: not a number") from exc
    if not math.isfinite(value) or value < 0 or value >= 2**63:
        raise Corrupt(f"cannot read {name}={text!r}: not a finite number of 0 or more")
    return value


def _boolean(row: Mapping[str, Any], name: str) -> bool | None:
    text = row[name].lower()
    if text not in ("", "true", "false"):
        raise Corrupt(f"cannot read {name}={row[name]!r}: neither true nor false")
    return None if not text else text == "true"


def _time(row: Mapping[str, Any], name: str) -> datetime | None:
    text = row[name]
    if not text:
        return None
    if text.isascii() and text.isdigit() and len(text) <= 11:
        return _moment(int(text) * 1000)  # kube-state-metrics' value
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as exc:
        raise Corrupt(f"cannot read {name}={text!r}: not an ISO 8601 time") from exc
    if moment.tzinfo is None:
        raise Corrupt(f"cannot read {name}={text!r}: without a time zone")
    try:
        return moment.astimezone(UTC)
    except OverflowError as exc:
        raise Corrupt(f"cannot read {name}={text!r}: beyond the calendar") from exc


def _pairs(row: Mapping[str, Any], name: str) -> tuple[tuple[str, str], ...]:
    value = _json(row, name)
    if value is None:
        return ()
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise Corrupt(f"cannot read {name}={row[name][:200]!r}: not a JSON object of texts")
    return tuple(sorted(value.items()))


def _strings(row: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = _json(row, name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise Corrupt(f"cannot read {name}={row[name][:200]!r}: not a JSON list of texts")
    return tuple(value)


def _json(row: Mapping[str, Any], name: str) -> object:
    if not row[name]:
        return None
    try:
        return json.loads(row[name])
    except (json.JSONDecodeError, RecursionError) as exc:
        raise Corrupt(f"cannot read {name}={row[name][:200]!r}: not JSON") from exc


def _moment(epoch_ms: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=epoch_ms)


INVENTORY_TABLES = (ALLOCATIONS, INVENTORY_CARDS, INVENTORY_NODES, QUOTAS, SERVERS)
"""The tables that hold sightings."""
