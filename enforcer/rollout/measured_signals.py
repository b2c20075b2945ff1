"""What metrics say of pods that were just changed: latency objectives, XID events of their cards, framebuffer.

Added to what the cluster itself knows of them (`watch.ClusterSignals`). A latency objective is PromQL that the user
gives; a series speaks of the pod in its labels `namespace` and `pod`, without `pod` of every watched pod of its
namespace, without either of all. Where nobody can be asked the watch does not say that all is well: it is
`Unavailable`, and the rollout waits.

Series: our own exporter's, dcgm-exporter's and HAMi's (names before and after v2.9); sources in `fleet.series`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from enforcer.instant_query import InstantQuery, Sample
from enforcer.rollout.watch import PodHealth, Signals

XID_WINDOW = "5m"
"""How far back an XID event speaks against a change; a scrape interval of up to a minute is seen through."""
XID_QUERY = (
    f"max by (card) (increase(gputide_card_xid_events_total[{XID_WINDOW}])) > 0 or "
    f"max by (card) (label_replace((changes(DCGM_FI_DEV_XID_ERRORS[{XID_WINDOW}]) > 0) and "
    '(DCGM_FI_DEV_XID_ERRORS > 0), "card", "$1", "UUID", "(.+)")) > 0'
)
FRAMEBUFFER_QUERY = (
    "max by (namespace, pod) (gputide_slice_framebuffer_used_bytes / gputide_slice_framebuffer_granted_bytes) or "
    "max by (namespace, pod) (label_replace(label_replace(hami_vgpu_memory_used_bytes / hami_vgpu_memory_limit_bytes, "
    '"namespace", "$1", "podnamespace", "(.+)"), "pod", "$1", "podname", "(.+)")) or '
    "max by (namespace, pod) (label_replace(label_replace(vGPU_device_memory_usage_in_bytes / "
    'vGPU_device_memory_limit_in_bytes, "namespace", "$1", "podnamespace", "(.+)"), "pod", "$1", "podname", "(.+)"))'
)
_QUERY_SHOWN_MAX = 200


class MeasuredSignals:
    """The port `Signals` over two: the cluster, and metrics.

    Args:
        cluster: what the cluster knows.
        metrics: whoever answers PromQL.
        queries: latency objectives; whatever has a series is broken.
    """

    def __init__(self, cluster: Signals, metrics: InstantQuery, queries: Sequence[str] = ()) -> None:
        self._cluster, self._metrics, self._queries = cluster, metrics, tuple(queries)

    def health(self, pods: Sequence[str]) -> tuple[PodHealth, ...]:
        """Health of pods; see the port."""
        known = self._cluster.health(pods)
        broken = [(query, sample) for query in self._queries for sample in self._metrics.vector(query)]
        sick = {sample.labels.get("card", "") for sample in self._metrics.vector(XID_QUERY)}
        filled = {_pod(sample.labels): sample.value for sample in self._metrics.vector(FRAMEBUFFER_QUERY)}
        return tuple(
            replace(
                entry,
                framebuffer_used_ratio=filled.get(entry.pod_id, entry.framebuffer_used_ratio),
                objections=(
                    *entry.objections,
                    *(
                        f"its latency objective is broken ({sample.value:g}): {query[:_QUERY_SHOWN_MAX]}"
                        for query, sample in broken
                        if _speaks_of(sample, entry.pod_id)
                    ),
                    *(
                        f"its card {card} had an XID event in the last {XID_WINDOW}"
                        for card in entry.cards
                        if card in sick
                    ),
                ),
            )
            for entry in known
        )


def _speaks_of(sample: Sample, pod_id: str) -> bool:
    namespace, _, name = pod_id.partition("/")
    labels = sample.labels
    return labels.get("namespace", namespace) == namespace and labels.get("pod", name) == name


def _pod(labels: Mapping[str, str]) -> str:
    return f"{labels.get('namespace', '')}/{labels.get('pod', '')}"
