"""A real Prometheus that holds days of a fleet's history: what `gputide scan` is measured and tested against.

The fleet has the metrics that dcgm-exporter and kube-state-metrics write, in their units: cards of eight to a node,
nine of ten held by a pod of a Deployment; of four such pods one is idle and holds framebuffer, one works in office
hours, and two are busy. Samples go in by remote write, in order of time, as a Prometheus that scraped them has them.
"""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gputide.operate.engine_process import kill_process, start_process, wait_until
from gputide.operate.engines import free_port
from pipeline.remote_write.decode import Version
from pipeline.remote_write.encode import LabelSets

MODEL = "NVIDIA A10"
FRAMEBUFFER_MIB = 23_028
CARDS_PER_NODE = 8
STEP_SECONDS = 30
FACT_SECONDS = 240
"""How often facts are sent: within the five minutes for which Prometheus carries a value on."""
_SAMPLES_PER_BODY = 100_000
_STEPS_PER_BODY_MAX = 40
"""Twenty minutes: Prometheus takes no sample that is an hour older than the newest."""
_DAY_MS = 86_400_000
Relabel = Callable[[Mapping[str, str]], dict[str, str]]
"""Labels of a series as they were written → as a store has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScannedFleet:
    """A fleet and its history.

    Attributes:
        cards: number of cards.
        days: days of history.
        until_ms: its end, epoch milliseconds, a whole minute.
        extra: labels of every series, such as that of a cluster.
        relabel: what the labels of a series are in the store.
        offset_ms: how long after the end of a step it is scraped, less than a step.
        every: one of so many scrapes is there.
        lost_ms: parts of the history, from and to, of which no scrape is there.
    """

    cards: int
    days: float
    until_ms: int
    extra: tuple[tuple[str, str], ...] = ()
    relabel: Relabel = dict
    offset_ms: int = 0
    every: int = 1
    lost_ms: tuple[tuple[int, int], ...] = ()

    @property
    def since_ms(self) -> int:
        """Start of the history: nothing is at it or before."""
        return self.until_ms - round(self.days * _DAY_MS)

    @property
    def step_ends_ms(self) -> NDArray[np.int64]:
        """Ends of the steps of which a scrape is there."""
        step_ms = STEP_SECONDS * 1000
        ends: NDArray[np.int64] = np.arange(self.since_ms // step_ms + 1, self.until_ms // step_ms + 1) * step_ms
        is_there = ends // step_ms % self.every == 0
        for start_ms, end_ms in self.lost_ms:
            is_there &= (ends <= start_ms) | (ends > end_ms)
        found: NDArray[np.int64] = ends[is_there]
        return found

    def usage_labels(self) -> list[dict[str, str]]:
        """Labels of the series of cards: four metrics of each card, metric by metric."""
        return [{"__name__": name, **self._card(card)} for name in _USAGE for card in range(self.cards)]

    def usage(self, ts_ms: NDArray[np.int64]) -> NDArray[np.float64]:
        """Values of all series of cards at some times, shape (series, times)."""
        card, hour = np.arange(self.cards)[:, np.newaxis], (ts_ms // 3_600_000) % 24
        # Integers that repeat after a while: busy between 40 and 90 %, the same for the same card and time.
        noise = (card * 7919 + ts_ms // (STEP_SECONDS * 1000) * 31) % 51
        kind = np.where(card % 10 == 9, -1, card % 4)
        busy = np.where(kind >= 2, 40 + noise, 0)
        office = np.where((kind == 1) & (hour >= 8) & (hour < 18), 5 + noise % 20, 0)
        duty = (busy + office).astype(np.float64)
        held = np.where(kind < 0, 0, 2_000 + 1_000 * (card % 7)) + np.where(duty > 0, noise, 0)
        used = held.astype(np.float64) + 300.0
        return np.concatenate((duty, np.round(duty * 0.006, 3), used, FRAMEBUFFER_MIB - used))

    def fact_labels(self) -> list[dict[str, str]]:
        """Labels of the series of kube-state-metrics, and of what Prometheus itself writes of its target."""
        found = [{"__name__": "up", "job": "dcgm-exporter"}]
        for card in self.held():
            pod, owner = self.pod(card), {"owner_is_controller": "true", "namespace": "team"}
            found += [
                {"__name__": "kube_pod_owner", "pod": pod, "owner_kind": "ReplicaSet", "owner_name": pod[:-2], **owner},
                {"__name__": "kube_pod_info", "pod": pod, "namespace": "team", "node": self.node(card)},
                {"__name__": "kube_pod_created", "pod": pod, "namespace": "team"},
                {
                    "__name__": "kube_replicaset_owner",
                    "replicaset": pod[:-2],
                    "owner_kind": "Deployment",
                    "owner_name": pod.rsplit("-", 2)[0],
                    **owner,
                },
            ]
        return [{**labels, **dict(self.extra)} for labels in found]

    def facts(self) -> NDArray[np.float64]:
        """Values of the series of kube-state-metrics, which never change."""
        created = self.since_ms // 1000 - 86_400
        return np.array([created if item["__name__"] == "kube_pod_created" else 1.0 for item in self.fact_labels()])

    def held(self) -> list[int]:
        """Cards that somebody holds."""
        return [card for card in range(self.cards) if card % 10 != 9]

    def pod(self, card: int) -> str:
        """Pod on a card."""
        return f"svc-{card:05d}-{card * 48271 % 0xFFFFFF:06x}-a"

    def node(self, card: int) -> str:
        """Node of a card."""
        return f"node-{card // CARDS_PER_NODE:04d}"

    def _card(self, card: int) -> dict[str, str]:
        labels = {
            "UUID": f"GPU-{card:08d}",
            "gpu": str(card % CARDS_PER_NODE),
            "modelName": MODEL,
            "Hostname": self.node(card),
            "job": "dcgm-exporter",
            **dict(self.extra),
        }
        if card % 10 != 9:
            labels |= {"namespace": "team", "pod": self.pod(card), "container": "main"}
        return labels


_USAGE = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_SM_ACTIVE", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE")


def bodies_of(fleet: ScannedFleet) -> Iterator[bytes]:
    """Remote-write bodies (version 1) of the whole history, in order of time."""
    usage, facts = (
        LabelSets([fleet.relabel(labels) for labels in sets]) for sets in (fleet.usage_labels(), fleet.fact_labels())
    )
    fact_values = fleet.facts()
    step_ms = STEP_SECONDS * 1000
    ends = fleet.step_ends_ms
    body_ms = step_ms * max(1, min(_STEPS_PER_BODY_MAX, _SAMPLES_PER_BODY // len(usage)))
    for start_ms in range(fleet.since_ms // step_ms * step_ms, fleet.until_ms, body_ms):
        times = ends[(ends > start_ms) & (ends <= start_ms + body_ms)]
        looks = times[times % (FACT_SECONDS * 1000) == 0]
        yield _body(usage, times + fleet.offset_ms, fleet.usage(times))
        yield _body(facts, looks + fleet.offset_ms, np.repeat(fact_values[:, np.newaxis], len(looks), axis=1))


def _body(sets: LabelSets, times: NDArray[np.int64], values: NDArray[np.float64]) -> bytes:
    series = np.repeat(np.arange(len(sets), dtype=np.int64), len(times))
    return sets.encode(Version.V1, series, np.tile(times, len(sets)), values.ravel())


@contextmanager
def prometheus_with(
    program: Path, folder: Path, fleets: Sequence[ScannedFleet], *flags: str, config: str = "{}\n"
) -> Iterator[str]:
    """Run a Prometheus that holds the fleets' histories; yields its address.

    Args:
        program: the server.
        folder: for its data.
        fleets: histories; with the same times, or one after another.
        flags: further flags.
        config: its configuration.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prometheus.yml").write_text(config, encoding="utf-8")
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        str(program), "--config.file=prometheus.yml", "--storage.tsdb.path=data",
        f"--web.listen-address={url.removeprefix('http://')}", "--web.enable-remote-write-receiver",
        "--storage.tsdb.retention.time=1000d", *flags,
    ]  # fmt: skip
    server = start_process("prometheus", command, folder=folder, log=folder / "log", environ=os.environ)
    try:
        wait_until(lambda: _is_ready(url), server, seconds_max=60)
        for together in zip(*(bodies_of(fleet) for fleet in fleets), strict=False):
            for body in together:
                send_body(url, body)
        yield url
    finally:
        kill_process(server)


def send_body(url: str, body: bytes) -> None:
    """Send one body to a server."""
    headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
    request = urllib.request.Request(f"{url}/api/v1/write", data=body, headers=headers, method="POST")
    with urllib.request.urlopen(request, timeout=120) as answer:
        answer.read()


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
