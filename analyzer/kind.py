"""What a workload is for: by its Kubernetes kind and server, and by its behaviour where those are silent.

Called by `analyzer.profile`; the class pools workloads for the calibration of confidence and shapes advice (a notebook
may be stopped, a training job must not be squeezed).
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.inventory import Grant, Priority
from fleet.profiles import WorkloadClass
from fleet.servers import Use, known_server

NOTEBOOK_KINDS = frozenset({"notebook", "workspace", "jupyterserver"})
TRAINING_KINDS = frozenset(
    {"job", "pytorchjob", "tfjob", "mpijob", "paddlejob", "xgboostjob", "jaxjob", "rayjob", "trainjob", "vcjob"}
)
SERVING_KINDS = frozenset({"inferenceservice", "seldondeployment", "rayservice", "leaderworkerset"})
VIDEO_LEAD_RATIO = 0.05
"""Video engines busier than this, and than the SMs, make a transcoder."""
STEADY_RATIO_MIN = 0.4
"""Median demand of a training loop, which never waits for users."""
STEADY_SPREAD_MAX = 2.0
"""How far its p95 lies above its median, at most."""


def workload_class(
    grants: Sequence[Grant],
    *,
    compute_p50: float | None,
    compute_p95: float | None,
    video_p95: float | None,
    serves_requests: bool,
    period_hours: int | None,
) -> WorkloadClass:
    """Classifies one workload.

    Args:
        grants: its grants, at least one; the last one's kind and server speak.
        compute_p50: median demand, 0-1, None where unknown.
        compute_p95: 95th percentile of demand.
        video_p95: 95th percentile of the busier video engine, None where not collected.
        serves_requests: a request rate above zero was seen.
    """
    latest = grants[-1]
    kind, server = latest.workload_kind.lower(), known_server(latest.server)
    use = None if server is None else server.use
    if kind in NOTEBOOK_KINDS or use is Use.NOTEBOOK:
        return WorkloadClass.NOTEBOOK
    transcodes = video_p95 is not None and video_p95 > max(VIDEO_LEAD_RATIO, compute_p95 or 0.0)
    if use is Use.TRANSCODING or transcodes:
        return WorkloadClass.TRANSCODING
    if kind == "cronjob" or (kind in TRAINING_KINDS and use is Use.SERVING):
        return WorkloadClass.NEAR_LINE
    if kind in TRAINING_KINDS:
        return WorkloadClass.TRAINING
    if kind in SERVING_KINDS or use is Use.SERVING or serves_requests:
        return WorkloadClass.NEAR_LINE if latest.priority is Priority.LOW else WorkloadClass.INFERENCE
    if use is Use.TRAINING:
        return WorkloadClass.TRAINING
    return _by_behaviour(compute_p50, compute_p95, period_hours)


def _by_behaviour(compute_p50: float | None, compute_p95: float | None, period_hours: int | None) -> WorkloadClass:
    if compute_p50 is None or compute_p95 is None:
        return WorkloadClass.UNKNOWN
    if period_hours is not None:
        return WorkloadClass.INFERENCE
    if compute_p50 >= STEADY_RATIO_MIN and compute_p95 <= STEADY_SPREAD_MAX * compute_p50:
        return WorkloadClass.TRAINING
    return WorkloadClass.UNKNOWN
