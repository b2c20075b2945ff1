"""The ways on which a fleet of `seen_fleet` reaches gputide from a real Prometheus: its rules, remote write, a scan."""

from __future__ import annotations

import http.client
import json
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bench.measured_run import ROOT, gputide
from bench.receiving import HEADERS, WRITE_PATH, receiving
from bench.seen_fleet import CLUSTER, LEARNED, START_S, STEP_S, UNTIL, Written
from bench.served_prometheus import promtool, serving
from fleet.data_folder import open_data_folder
from fleet.settings.settings import ClusterSettings, Settings
from fleet.units import format_time
from gputide.container.history import load_history
from pipeline.remote_write.decode import Version
from pipeline.remote_write.encode import LabelSets
from tests.engines.go_peers import GoPeers

HOURS_PER_BODY = 6
SENT = re.compile(r'regex: "(gputide:\(.+)"')
"""What `docs/receiver.md` lets a Prometheus without gputide's exporters send."""
NAMED = ("--set", f"cluster.name={CLUSTER}", "--now", format_time(UNTIL))
_RECORDED = re.compile(r"gputide:(?:pod:\w+|(?:card|slice|node):info)$")
_REFERENCE = re.compile(r"gputide:[a-z0-9_:]+")
_STALE = np.array([0x7FF0000000000002], dtype=np.uint64).view(np.float64)[0]


def sent_by_the_docs() -> re.Pattern[str]:
    """Names that the documentation lets through."""
    found = SENT.search((ROOT / "docs/receiver.md").read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit("docs/receiver.md names no series to send")
    return re.compile(found[1])


def record_rules(peers: GoPeers, folder: Path) -> None:
    """Let a Prometheus record the chart's rules over its history: those that build on others after them."""
    rules = yaml.safe_load((ROOT / "deploy/helm/gputide/files/rules.yaml").read_text(encoding="utf-8"))
    expressions = {
        rule["record"]: rule["expr"] for group in rules["groups"] for rule in group["rules"] if "record" in rule
    }
    wanted: dict[str, set[str]] = {}
    queue = [name for name in expressions if _RECORDED.match(name)]
    while queue:
        name = queue.pop()
        wanted[name] = {other for other in _REFERENCE.findall(expressions[name]) if other in expressions} - {name}
        queue += [other for other in wanted[name] if other not in wanted]
    done: set[str] = set()
    while len(done) < len(wanted):
        ready = [name for name, needs in wanted.items() if name not in done and needs <= done]
        group = {"name": "seen", "rules": [{"record": name, "expr": expressions[name]} for name in ready]}
        (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": [group]}), encoding="utf-8")
        with serving(peers, folder) as url:
            end = START_S + (LEARNED + 1) * STEP_S
            span = (f"--start={START_S + STEP_S}", f"--end={end}", f"--eval-interval={STEP_S}s")
            promtool(
                peers,
                folder,
                "rules",
                "--max-block-duration=168h",
                f"--url={url}",
                "--output-dir=tsdb",
                *span,
                "rules.yaml",
            )
        done.update(ready)


def recorded(url: str) -> Iterator[Written]:
    """What the rules recorded and a Prometheus would send on."""
    query = {"start": START_S + STEP_S, "end": START_S + LEARNED * STEP_S, "step": STEP_S}
    for name in _get(f"{url}/api/v1/label/__name__/values"):
        if _RECORDED.match(name):
            asked = urllib.parse.urlencode({"query": name, **query})
            for one in _get(f"{url}/api/v1/query_range?{asked}")["result"]:
                times = np.array([time for time, _ in one["values"]], dtype=np.int64)
                values = np.array([float(value) for _, value in one["values"]])
                yield Written(labels={"__name__": name, **one["metric"]}, times=times, values=values)


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=300) as answer:
        return json.load(answer)["data"]


def send(series: Sequence[Written], data: Path) -> None:
    """Send series to a receiver in order of time, each with a stale marker where it ends, and roll them up."""
    sets = LabelSets([one.labels for one in series])
    ended = [_with_ends(one) for one in series]
    with receiving(data, f"cluster.name={CLUSTER}") as receiver:
        connection = http.client.HTTPConnection(*receiver.address, timeout=120)
        span = HOURS_PER_BODY * 3600
        for start in range(START_S, START_S + LEARNED * STEP_S + STEP_S, span):
            parts = [np.flatnonzero((times > start) & (times <= start + span)) for times, _ in ended]
            numbers = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
            times = np.concatenate([one[0][part] for one, part in zip(ended, parts, strict=True)]) * 1000
            values = np.concatenate([one[1][part] for one, part in zip(ended, parts, strict=True)])
            connection.request("POST", WRITE_PATH, sets.encode(Version.V2, numbers, times, values), HEADERS)
            answer = connection.getresponse()
            said = answer.read()
            if answer.status != 204:
                raise SystemExit(f"the receiver answers {answer.status}: {said.decode()}")
    gputide(data, "--set", f"cluster.name={CLUSTER}", "run", "rollup", "--drain")


def _with_ends(one: Written) -> tuple[np.ndarray, np.ndarray]:
    """Times and values with Prometheus' marker a step after each last sample before a gap or the end."""
    last = np.flatnonzero(np.diff(one.times, append=np.iinfo(np.int64).max) > STEP_S)
    last = last[one.times[last] < START_S + LEARNED * STEP_S]
    return np.insert(one.times, last + 1, one.times[last] + STEP_S), np.insert(one.values, last + 1, _STALE)


def known(data: Path) -> dict[str, dict[str, float]]:
    """What a data folder knows of the fleet: of every field the share of objects that have it, of measures of steps."""
    settings = Settings(cluster=ClusterSettings(name=CLUSTER))
    history = load_history(open_data_folder(data, create=False), settings, UNTIL)
    inventory = history.inventory
    found = {
        kind: {field.name: _share([getattr(item, field.name) for item in items]) for field in fields(items[0])}
        for kind, items in (("grant", inventory.live_grants()), ("card", inventory.cards), ("node", inventory.nodes))
        if items
    }
    for kind, grid in (("slice", history.slices), ("of_card", history.cards)):
        if grid is not None:
            found[kind] = {measure: float(np.isfinite(values).mean()) for measure, values in grid.mean.items()}
    return found


def _share(values: Sequence[Any]) -> float:
    return sum(value not in (None, "", ()) for value in values) / len(values)


def plan_of(data: Path, *options: str) -> Path:
    """The plan that a user makes of a data folder."""
    path = data.parent / f"{data.name}.json"
    gputide(data, *options, "plan", "make", "--format", "json", "-o", str(path))
    return path
