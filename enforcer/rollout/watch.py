"""Watches pods that were just changed, by what the cluster says of them and by metrics.

The cluster says whether they are ready, restart or run out of framebuffer. Metrics add latency objectives, XID events
of their cards and framebuffer. A latency objective is what a pod promises (`enforcer.latency_objectives`), or PromQL
that the user gives: a series speaks of the pod in its labels `namespace` and `pod`, without `pod` of every watched pod
of its namespace, without either of all. Where the metrics can't be queried the watch does not say that all is well: it
is `Unavailable`, and the rollout waits.

Called by the rollout after the canary and after each stage; `verify` says after days what a plan was worth.

Series: our own exporter's, dcgm-exporter's and HAMi's (names before and after v2.9); sources in `fleet.series`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from enforcer.backends.hami_dialect import HAMI_DIALECT
from enforcer.cluster import ClusterReader, FollowingReader
from enforcer.instant_query import InstantQuery
from enforcer.latency_objectives import latencies, objective_seconds, objectives_of
from enforcer.manifest import Manifest
from enforcer.seat import seat_of_pod
from enforcer.trusted_series import SeriesQuestion, TrustedSeries
from fleet.provenance import Provenance
from fleet.sentences import Sentence, sentence
from wire.prometheus_query import Sample

_LISTED_FROM = 10
"""From so many pods of a namespace on, all of it is listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodHealth:
    """How one pod is.

    Attributes:
        pod_id: `namespace/pod`.
        restarts: container restarts since the pod was made.
        framebuffer_used_ratio: used / granted, 0-1; None where nothing measures it.
        is_preempted: the scheduler made it give way to another.
        cards: cards that it holds, as far as its annotations say so.
        objectives: what its requests may take, as its owner wrote it (`enforcer.latency_objectives.objectives_of`).
        objections: what else is measured that speaks against it.
    """

    pod_id: str
    is_ready: bool
    restarts: int
    is_oom_killed: bool
    framebuffer_used_ratio: float | None = None
    is_preempted: bool = False
    cards: tuple[str, ...] = ()
    objectives: tuple[tuple[str, str], ...] = ()
    objections: tuple[Sentence, ...] = ()


class Signals(Protocol):
    """Says how pods are."""

    def health(self, pods: Sequence[str]) -> tuple[PodHealth, ...]:
        """Health of pods (`namespace/pod`); a pod that is gone is left out.

        Raises:
            Unavailable: what measures can't be reached.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchPolicy:
    """What is too much.

    Attributes:
        framebuffer_used_ratio_max: used / granted, 0-1; servers that pre-allocate stay below it too.
    """

    restarts_max: int = 0
    framebuffer_used_ratio_max: float = 0.995


class ClusterSignals:
    """What the cluster itself knows of its pods (the port `Signals`): readiness, restarts, kills."""

    def __init__(self, reader: ClusterReader) -> None:
        self._reader = reader

    def health(self, pods: Sequence[str]) -> tuple[PodHealth, ...]:
        """Health of pods; see the port."""
        found = []
        spaces = Counter(pod_id.partition("/")[0] for pod_id in pods)
        asked = frozenset(pods)
        # Who follows what goes on has all pods at hand; of another, a list pays where many are asked for.
        is_cheap = isinstance(self._reader, FollowingReader)
        known = {
            namespace: {
                pod["metadata"]["name"]: pod
                for pod in self._reader.list_objects("Pod", namespace)
                if f"{namespace}/{pod['metadata']['name']}" in asked
            }
            for namespace, count in spaces.items()
            if is_cheap or count >= _LISTED_FROM
        }
        for pod_id in pods:
            namespace, _, name = pod_id.partition("/")
            listed = known.get(namespace)
            manifest = self._reader.get("Pod", namespace, name) if listed is None else listed.get(name)
            if manifest is not None:
                seat = seat_of_pod(manifest, HAMI_DIALECT)
                found.append(
                    PodHealth(
                        pod_id=pod_id,
                        is_ready=seat.is_ready,
                        restarts=seat.restarts,
                        is_oom_killed=seat.is_oom_killed,
                        is_preempted=_is_preempted(manifest),
                        cards=tuple(dict.fromkeys(part.card for part in seat.slices if part.card)),
                        objectives=objectives_of(manifest),
                    )
                )
        return tuple(found)


def _is_preempted(pod: Manifest) -> bool:
    """Whether the scheduler took the pod's place for another (kubernetes/api:core/v1/types.go, DisruptionTarget)."""
    told = pod.get("status", {}).get("conditions") or ()
    return any(
        entry.get("type") == "DisruptionTarget" and entry.get("reason") == "PreemptionByScheduler" for entry in told
    )


def complaints(health: Sequence[PodHealth], pods: Sequence[str], policy: WatchPolicy) -> tuple[Sentence, ...]:
    """What speaks against keeping a change.

    Returns:
        One sentence per pod and complaint; empty where all is well.
    """
    known = {entry.pod_id: entry for entry in health}
    found = [sentence("watch.gone", pod=pod) for pod in pods if pod not in known]
    for entry in health:
        pod = entry.pod_id
        found += [sentence("mark.because", what=pod, why=objection) for objection in entry.objections]
        if entry.is_preempted:
            found.append(sentence("watch.preempted", pod=pod))
        elif entry.is_oom_killed:
            found.append(sentence("watch.oom_killed", pod=pod))
        elif entry.restarts > policy.restarts_max:
            times, limit = str(entry.restarts), str(policy.restarts_max)
            found.append(sentence("watch.restarted", pod=pod, times=times, limit=limit))
        elif not entry.is_ready:
            found.append(sentence("watch.unready", pod=pod))
        used = entry.framebuffer_used_ratio
        if used is not None and used > policy.framebuffer_used_ratio_max:
            found.append(sentence("watch.framebuffer_full", pod=pod, used_ratio=used))
    return tuple(found)


XID_WINDOW = "5m"
"""How far back an XID event speaks against a change; a scrape interval of up to a minute is seen through."""
_OWN_XID, _DCGM_XID = "gputide_card_xid_events_total", "DCGM_FI_DEV_XID_ERRORS"
XID = {
    SeriesQuestion(name=_OWN_XID, expression=f"increase({_OWN_XID}[{XID_WINDOW}]) > 0", kept=("card",)): "card",
    SeriesQuestion(
        name=_DCGM_XID, expression=f"(changes({_DCGM_XID}[{XID_WINDOW}]) > 0) and ({_DCGM_XID} > 0)", kept=("UUID",)
    ): "UUID",
}
"""New XID events, each with the label that names the card."""


def _filled(used: str, granted: str) -> SeriesQuestion:
    return SeriesQuestion(name=used, expression=f"{used} / {granted}")


FRAMEBUFFER = {
    _filled("gputide_slice_framebuffer_used_bytes", "gputide_slice_framebuffer_granted_bytes"): ("namespace", "pod"),
    _filled("hami_vgpu_memory_used_bytes", "hami_vgpu_memory_limit_bytes"): ("podnamespace", "podname"),
    _filled("vGPU_device_memory_usage_in_bytes", "vGPU_device_memory_limit_in_bytes"): ("podnamespace", "podname"),
}
"""Framebuffer used / granted, each with the labels that name the pod; the first that answers for a pod counts."""
_QUERY_SHOWN_MAX = 200


class MeasuredSignals:
    """The port `Signals` over two: the cluster, and metrics.

    Args:
        queries: latency objectives; whatever has a series is broken, whichever pod wrote it.
        provenance: which targets may speak of others' cards and framebuffer.
    """

    def __init__(
        self,
        cluster: Signals,
        metrics: InstantQuery,
        queries: Sequence[str] = (),
        *,
        provenance: Provenance | None = None,
    ) -> None:
        self._cluster, self._metrics, self._queries = cluster, metrics, tuple(queries)
        self._series = TrustedSeries(metrics, provenance)

    def health(self, pods: Sequence[str]) -> tuple[PodHealth, ...]:
        """Health of pods; see the port."""
        known = self._cluster.health(pods)
        broken = [(query, sample) for query in self._queries for sample in self._metrics.vector(query)]
        sick = {
            sample.labels.get(card, "") for question, card in XID.items() for sample in self._series.vector(question)
        }
        promised = {label for entry in known for label, _ in entry.objectives}
        takes = {label: latencies(self._series, label) for label in sorted(promised)}
        filled = self._filled()
        return tuple(
            replace(
                entry,
                framebuffer_used_ratio=filled.get(entry.pod_id, entry.framebuffer_used_ratio),
                objections=(
                    *entry.objections,
                    *_too_slow(entry, takes),
                    *(
                        sentence("watch.slow", value=f"{sample.value:g}", query=query[:_QUERY_SHOWN_MAX])
                        for query, sample in broken
                        if _speaks_of(sample, entry.pod_id)
                    ),
                    *(sentence("watch.xid", card=card, window=XID_WINDOW) for card in entry.cards if card in sick),
                ),
            )
            for entry in known
        )

    def _filled(self) -> dict[str, float]:
        """Largest share of granted framebuffer that is used, by `namespace/pod`."""
        filled: dict[str, float] = {}
        for question, (namespace, pod) in FRAMEBUFFER.items():
            found: dict[str, float] = {}
            for sample in self._series.vector(question):
                name = f"{sample.labels.get(namespace, '')}/{sample.labels.get(pod, '')}"
                # Of a pod without a limit the share is infinite, and says nothing.
                if math.isfinite(sample.value):
                    found[name] = max(found.get(name, 0.0), sample.value)
            filled = found | filled
        return filled


def _two(pod_id: str) -> tuple[str, str]:
    namespace, _, name = pod_id.partition("/")
    return namespace, name


def _too_slow(entry: PodHealth, takes: Mapping[str, Mapping[tuple[str, str], float]]) -> Iterator[Sentence]:
    """What a pod's own objectives say of what is measured, by their labels; nothing where it answers nobody."""
    for label, text in entry.objectives:
        promised, seconds = objective_seconds(text), takes[label].get(_two(entry.pod_id))
        if promised is None:
            yield sentence("watch.objective_unreadable", label=label, text=text[:_QUERY_SHOWN_MAX])
        elif seconds is not None and seconds > promised:
            yield sentence("watch.slower", value=f"{seconds:g}", limit=f"{promised:g}", label=label)


def _speaks_of(sample: Sample, pod_id: str) -> bool:
    namespace, _, name = pod_id.partition("/")
    labels = sample.labels
    return labels.get("namespace", namespace) == namespace and labels.get("pod", name) == name
