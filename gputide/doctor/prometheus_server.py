"""How a Prometheus itself fares: its clock, how long it keeps what, its bounds, its rules, its targets.

Endpoints of the server's own state are Prometheus' alone; Thanos, Mimir and VictoriaMetrics tell less, and then a check
says so. Source: prometheus/prometheus:docs/querying/api.md (status, rules), docs/configuration/configuration.md.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import yaml

from fleet.sentences import listed, sentence
from fleet.series import known_names, meaning_of_name
from gputide.doctor.finding import Diagnosis, finding, otherwise, some, unchecked, well
from gputide.doctor.prometheus_scene import Scene

SKEW_SECONDS_MAX = 5.0
INTERVAL_SECONDS_MAX = 60.0
HISTORY_DAYS = (14, 7, 1)
"""Two weeks show rhythms of the week twice; a day is the least for any advice."""
SAMPLES_MIN = 5_000_000
TIMEOUT_SECONDS_MIN = 30.0
_SENT_BEHIND_SECONDS = 300.0
_DURATION = re.compile(r"(\d+)(ms|y|w|d|h|m|s)", re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "y": 31536000.0}
_REGEX_LENGTH_MAX = 2000
# Repeats of what repeats take the server's engine no time, and ours for ever.
_NESTED = re.compile(r"[+*}][^()]*\)+[+*{]")


def clock(scene: Scene) -> Iterator[Diagnosis]:
    """The server's clock against this one, and samples against the server's."""
    before = time.time()
    told = scene.ask.number("vector(time())")
    after = time.time()
    if told is not None:
        skew = told - (before + after) / 2
        if abs(skew) - (after - before) / 2 > SKEW_SECONDS_MAX:
            said = "doctor.found.ahead" if skew > 0 else "doctor.found.late_clock"
            yield finding("prometheus-clock-skew", sentence(said, seconds=f"{abs(skew):.0f}"))
    base = scene.base
    if base is not None and told is not None:
        ahead = scene.ask.vector(
            f"count(count_over_time({scene.ask.selector(base)}[1h]))", at_seconds=told + 3600.0 + SKEW_SECONDS_MAX
        )
        if ahead:
            text = sentence("doctor.found.ahead_series", series=f"{ahead[0].value:.0f}", metric=base)
            yield finding("prometheus-samples-in-future", text)
    yield otherwise(sentence("doctor.found.same_time"))


def kept(scene: Scene) -> Iterator[Diagnosis]:
    """How far back samples of cards go, and how often they are taken."""
    flags = scene.ask.state("/api/v1/status/flags")
    retention = flags.get("storage.tsdb.retention.time", "") if isinstance(flags, dict) else ""
    told = sentence("doctor.found.no_retention")
    if retention and retention != "0s":
        told = sentence("doctor.found.retention", retention=retention)
    base = scene.base
    if base is None:
        yield unchecked(sentence("doctor.found.no_dcgm_told", told=told))
        return
    days = _days_of(scene, base)
    if days < HISTORY_DAYS[0]:
        more = min(one for one in HISTORY_DAYS if one > days)
        text = sentence("doctor.found.goes_back", metric=base, days=days, next=more, told=told)
        yield finding("prometheus-history-short", text)
    yield otherwise(sentence("doctor.found.two_weeks", metric=base, told=told))


def _days_of(scene: Scene, base: str) -> int:
    for days in HISTORY_DAYS:
        if scene.ask.vector(f"count(last_over_time({scene.ask.selector(base)}[1h] offset {days}d))"):
            return days
    return 0


def interval(scene: Scene) -> Iterator[Diagnosis]:
    """How often cards are scraped."""
    some_cards = [seen.card for seen in scene.cards][:5]
    if scene.base is None or not some_cards:
        yield unchecked(sentence("doctor.found.no_dcgm"))
        return
    cards = "|".join(re.escape(card) for card in some_cards).replace("\\", "\\\\")
    matcher = f'UUID=~"{cards}"'
    gaps = [
        later - earlier
        for times in scene.ask.times(f"{scene.ask.selector(scene.base, matcher)}[30m]")
        for earlier, later in pairwise(times)
    ]
    if not gaps:
        yield unchecked(sentence("doctor.found.no_two_samples"))
        return
    median = statistics.median(gaps)
    text = sentence("doctor.found.interval", seconds=f"{median:.0f}")
    if median > INTERVAL_SECONDS_MAX:
        yield finding("prometheus-interval-long", text, **scene.exporter)
    yield otherwise(text)


def limits(scene: Scene) -> Iterator[Diagnosis]:
    """Bounds of queries."""
    flags = scene.ask.state("/api/v1/status/flags")
    if not isinstance(flags, dict) or "query.max-samples" not in flags:
        yield unchecked(sentence("doctor.found.no_bounds"))
        return
    samples, timeout = _number(flags["query.max-samples"]), seconds_of(str(flags.get("query.timeout", "")))
    text = f"query.max-samples={flags['query.max-samples']} query.timeout={flags.get('query.timeout')}"
    is_tight = (samples is not None and samples < SAMPLES_MIN) or (
        timeout is not None and timeout < TIMEOUT_SECONDS_MIN
    )
    yield finding("prometheus-query-limit", text) if is_tight else well(text)


def rules(scene: Scene, url: str) -> Iterator[Diagnosis]:
    """Rules that fail."""
    told = scene.ask.state("/api/v1/rules")
    groups = told.get("groups") if isinstance(told, dict) else None
    if not isinstance(groups, list):
        yield unchecked(sentence("doctor.found.no_rules"))
        return
    listed = [group.get("rules") for group in groups if isinstance(group, dict)]
    every = [rule for rules_of in listed if isinstance(rules_of, list) for rule in rules_of if isinstance(rule, dict)]
    failing = [rule for rule in every if rule.get("lastError")]
    if failing:
        first = failing[0]
        name, error = str(first.get("name")), str(first.get("lastError"))
        text = sentence("doctor.found.rules_fail", failing=len(failing), rules=len(every), name=name, error=error)
        yield finding("prometheus-recording-lags", text, url=url)
    yield otherwise(sentence("doctor.found.rules", rules=len(every)))


def remote_write(scene: Scene, url: str) -> Iterator[Diagnosis]:
    """Samples that the server sends on, to `gputide run receive` or others."""
    ask = scene.ask
    if not ask.vector('count({__name__=~"prometheus_remote_storage_.+"})'):
        yield unchecked(sentence("doctor.found.not_scraped"))
        return
    lost = ask.vector(
        "sum by (remote_name, url) (increase({__name__=~"
        '"prometheus_remote_storage_samples_(failed|dropped)_total"}[1h])) > 0'
    )
    behind = ask.vector(
        "max by (instance) (prometheus_remote_storage_highest_timestamp_in_seconds) - on (instance) group_right () "
        f"prometheus_remote_storage_queue_highest_sent_timestamp_seconds > {_SENT_BEHIND_SECONDS:.0f}"
    )
    if lost or behind:
        parts = [sentence("doctor.found.samples_failed", samples=f"{one.value:.0f}") for one in lost[:3]]
        parts += [sentence("doctor.found.behind", seconds=f"{one.value:.0f}") for one in behind[:3]]
        yield finding("prometheus-remote-write-fails", listed(parts, len(parts), clauses=True), url=url)
    yield otherwise(sentence("doctor.found.nothing_failed"))


def dropped(scene: Scene) -> Iterator[Diagnosis]:
    """Rules of scrapes that take a metric out that is missing."""
    told = scene.ask.state("/api/v1/status/config")
    text = told.get("yaml") if isinstance(told, dict) else None
    if not isinstance(text, str):
        yield unchecked(sentence("doctor.found.no_config"))
        return
    try:
        config = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - both are safe
    except (yaml.YAMLError, RecursionError, ValueError):
        yield unchecked(sentence("doctor.found.no_yaml"))
        return
    there = scene.measures
    wanted = [
        name
        for name in known_names()
        if (meaning := meaning_of_name(name)) is not None and meaning.measure not in (None, *there)
    ]
    jobs = config.get("scrape_configs") if isinstance(config, dict) else None
    for job in jobs if isinstance(jobs, list) else []:
        if not isinstance(job, dict):
            continue
        gone = [name for name in wanted if _is_dropped(name, job.get("metric_relabel_configs"))]
        if gone:
            text = sentence("doctor.found.drops", names=some(gone))
            yield finding("prometheus-metric-dropped", text, subject=str(job.get("job_name", "?")))
    yield otherwise(sentence("doctor.found.no_drop"))


def targets(scene: Scene) -> Iterator[Diagnosis]:
    """Exporters of cards whose scrapes fail."""
    if scene.base is None:
        yield unchecked(sentence("doctor.found.no_dcgm"))
        return
    ask = scene.ask
    day = f"last_over_time({ask.selector(scene.base)}[1d])"
    down = ask.vector(f"({ask.selector('up')} == 0) and on (instance, job) count by (instance, job) ({day})")
    if down:
        names = {reading.labels.get("instance", "?") for reading in down}
        text = sentence("doctor.found.targets_down", targets=len(names), names=some(names))
        yield finding("prometheus-target-down", text, subject=some(names), instance=min(names), **scene.exporter)
    yield otherwise(sentence("doctor.found.targets_fine"))


def seconds_of(text: str) -> float | None:
    """Prometheus' word for a time, such as `2m` or `1h30m`, in seconds; None where it is none."""
    parts = _DURATION.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(int(number) * _SECONDS[unit] for number, unit in parts)


def _is_dropped(name: str, rules_of_job: Any) -> bool:
    """Whether rules take a metric out by its name (docs/configuration/configuration.md, relabel_config)."""
    for rule in rules_of_job if isinstance(rules_of_job, list) else []:
        if not isinstance(rule, dict) or rule.get("source_labels") != ["__name__"]:
            continue
        pattern = str(rule.get("regex", "(.*)"))
        action = str(rule.get("action", "replace")).lower()
        if action not in ("drop", "keep") or len(pattern) > _REGEX_LENGTH_MAX or _NESTED.search(pattern):
            continue
        try:
            is_match = re.fullmatch(pattern, name) is not None
        except re.error:
            continue
        if is_match == (action == "drop"):
            return True
    return False


def _number(text: object) -> float | None:
    try:
        return float(str(text))
    except ValueError:
        return None
