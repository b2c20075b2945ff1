"""Sources of a Prometheus that contradict each other about a card's framebuffer, and since when.

Called by `prometheus_values`, which makes a finding of them, and by the web app for its health page.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from fleet.contradictions import Contradiction, Statement, contradictions
from fleet.provenance import Provenance
from fleet.series import meaning_of_name
from gputide.doctor.prometheus_scene import OTHER_CARD_NAMES, Scene, Seen, seen_in
from pipeline.history.source import HistorySource

FRAMEBUFFER_NAMES = ("DCGM_FI_DEV_FB_USED", *OTHER_CARD_NAMES)
"""Metrics by which whole cards' framebuffer in use is reported."""
LOOK_BACK_HOURS = 168
_CARDS_MAX = 50
"""Cards of which it is asked since when; what they share is seen on these."""
_MEAN = "avg_over_time({}[1h])"
_HOUR_MS = 3_600_000


def sources_apart(scene: Scene, rule: Provenance) -> tuple[Contradiction, ...]:
    """Cards of which sources that may speak for them say now what can't both be true."""
    said: dict[str, list[Statement]] = defaultdict(list)
    nodes: dict[str, str] = {}
    for name in FRAMEBUFFER_NAMES:
        for seen in _of_cards(name, scene.seen(name, _MEAN), scene, rule):
            said[seen.card].append(_statement(name, seen))
            nodes[seen.card] = nodes.get(seen.card) or seen.node
    return tuple(replace(one, node=nodes[one.card]) for one in contradictions(said))


def with_since(
    found: Sequence[Contradiction], scene: Scene, rule: Provenance, history: HistorySource, now: datetime
) -> tuple[Contradiction, ...]:
    """The same contradictions with the hour since which each lasts without a break, looking back a week."""
    end = int(now.timestamp() * 1000) // _HOUR_MS
    asked = {one.card for one in found[:_CARDS_MAX]}
    said: dict[int, dict[str, list[Statement]]] = defaultdict(lambda: defaultdict(list))
    for name in FRAMEBUFFER_NAMES if asked else ():
        cards = [seen for seen in scene.seen(name) if seen.card in asked]
        if not cards:
            continue
        expression = _MEAN.format(history.selector(name, _matcher(cards)))
        block = history.computed(
            expression, since_ms=(end - LOOK_BACK_HOURS) * _HOUR_MS, until_ms=end * _HOUR_MS, step_ms=_HOUR_MS
        )
        for place, labels in enumerate(block.labels):
            for at in range(int(block.starts[place]), int(block.starts[place + 1])):
                of_hour = seen_in(name, labels, float(block.values[at]))
                for seen in _of_cards(name, () if of_hour is None else (of_hour,), scene, rule):
                    said[int(block.ts_ms[at]) // _HOUR_MS][seen.card].append(_statement(name, seen))
    apart = {hour: {one.card for one in contradictions(cards)} for hour, cards in said.items()}
    return tuple(replace(one, since=_since(one.card, apart, end)) for one in found)


def _since(card: str, apart: Mapping[int, Collection[str]], end: int) -> datetime | None:
    hour = end
    while card in apart.get(hour, ()):
        hour -= 1
    # A mean stands at the end of its hour.
    return None if hour <= end - LOOK_BACK_HOURS else datetime.fromtimestamp(hour * _HOUR_MS / 1000, UTC)


def _of_cards(name: str, series: Sequence[Seen], scene: Scene, rule: Provenance) -> list[Seen]:
    """Those that speak of a whole card and may, in bytes."""
    meaning = meaning_of_name(name)
    return [
        replace(seen, value=seen.value * meaning.factor)
        for seen in series
        if meaning is not None
        and not any(seen.labels.get(label) for label in ("GPU_I_ID", "vgpu", "pod_uid"))
        and rule.stranger(name, seen.labels, scene.targets) is None
    ]


def _statement(name: str, seen: Seen) -> Statement:
    return Statement(used_bytes=seen.value, metric=name, job=seen.labels.get("job") or "?")


def _matcher(cards: Sequence[Seen]) -> str:
    """A matcher of these cards, by the label in which their source has the id."""
    label = next(name for name, value in cards[0].labels.items() if value == cards[0].card)
    ids = "|".join(sorted({re.escape(seen.card) for seen in cards})).replace("\\", "\\\\").replace('"', '\\"')
    return f'{label}=~"{ids}"'
