"""The traps of GPU counters that a trace can carry, each once, on a workload that is named like any other.

Tools that read counters alone fall into every one of them. `TRAPS` says of each workload what must not be concluded;
tests of the analyzer and the recommender assert on it. Called by `exporter.synthetic.writer`. Three known traps are not
of a trace's making and have no workload: stale free-memory readings inside multi-process containers, XID gauges that
hold the last code only, and bursts between two scrapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from exporter.synthetic.fleet import A10G, A100, B200, H100, L40S, FleetBuilder, Workload
from exporter.synthetic.shapes import FOREVER_DAYS, Shape
from fleet.inventory import LATENCY_CRITICAL_LABEL, WARM_REPLICAS_LABEL, CardModelName, Priority
from fleet.units import GIB

TRAPS: Mapping[str, str] = {
    # Duty cycle of 97 % at 3 % SM active. Never conclude that the card is busy: most of it is free.
    "tiny-kernels": "search/reranker",
    # Four cards at a duty cycle of 100 % and 15 % SM active, waiting for each other. Never conclude that high duty
    # cycle proves useful work, nor that the cards are idle.
    "nccl-spin": "research/pretrain-moe-16b",
    # 90 % of the framebuffer used at all times, 5 % of the KV cache in use. Never conclude that the framebuffer is
    # needed.
    "preallocated": "payments/qwen-7b-assistant",
    # A grant without a single row, on a card that reports 0. Never conclude that nothing is wasted there.
    "never-touched-cuda": "vision/annotation-tool",
    # The container's counters at 0 while its card, of which it is the only tenant, is busy. Never conclude that the
    # service is idle.
    "blackwell-zero": "research/llama-70b-chat",
    # Two pods share a card, one of them has rows. Never conclude that the silent one is idle.
    "one-of-two-reports": "speech/tts-neural",
    # No duty cycle under MIG, SM active well above 0. Never conclude that the instance is idle.
    "mig-no-duty": "search/query-classifier",
    # No SM active anywhere, a duty cycle of half. Never conclude how much of the card's compute is free.
    "no-prof-counters": "ads/click-predictor",
    # Compute counters end days before the trace does, framebuffer goes on. Never conclude that the service fell idle.
    "counter-vanished": "payments/card-ocr",
    # Rows go on after the grant ended. Never conclude that the pod lives: samples are not the inventory.
    "ghost-series": "vision/poster-generator",
    # Four replicas at 30 % each. Never conclude that the workload needs more than one card's compute.
    "per-pod-not-sum": "speech/wake-word",
    # Started three hours before the end, nothing yet. Never conclude that it is idle.
    "young-pod": "search/snippet-generator",
    # A new pod every few hours, each too young to judge, none ever busy. Never conclude that nothing can be said: the
    # owner has been idle for days.
    "crash-loop": "ads/lookalike-audience",
    # Three hours of nothing every day between hours of training. Never conclude that it is idle.
    "loading-phases": "research/finetune-clip",
    # Nothing at all, by design, with replicas to be kept warm. Never conclude that it may be removed.
    "warm-standby": "payments/fraud-scoring-standby",
    # No rows in the last two days. Never conclude that it stopped working: nobody looked.
    "outage": "vision/logo-detection",
    # The pod's card was swapped, so its series end and others begin. Never conclude that one card fell idle, or that
    # the history is too short.
    "card-replaced": "support/intent-detection",
    # Low priority work at 0 by day beside a busy service. Never conclude that it is idle: it yields, and works at
    # night.
    "offline-squeezed": "research/offline-eval",
    # SM active near 0, the encoder busy. Never conclude that it is idle.
    "transcoder": "vision/video-transcoder",
    # The card and its pod report nothing any more from one moment on. Never conclude that it is idle.
    "dead-card": "speech/asr-batch",
}
"""By trap the workload, `namespace/name`, that shows it: what its counters show, and what must not be concluded."""

_BUSY = Shape(quiet_ratio=0.1, peak_ratio=0.55, framebuffer_bytes=14 * GIB, framebuffer_load_bytes=4 * GIB)


def add_traps(fleet: FleetBuilder) -> None:
    """Adds every workload of `TRAPS`, on cards of its own."""
    _add_lying_counters(fleet)
    _add_missing_rows(fleet)
    _add_lives(fleet)
    _add_quiet_by_design(fleet)


def _workload(trap: str, **changes: object) -> Workload:
    namespace, name = TRAPS[trap].split("/")
    return replace(Workload(namespace=namespace, name=name), **changes)  # type: ignore[arg-type]


def _alone(fleet: FleetBuilder, trap: str, model: CardModelName, shape: Shape, **changes: object) -> None:
    card = fleet.buy(model)
    fleet.grant(_workload(trap, **changes), card, replace(shape, service=fleet.service_number()))


def _add_lying_counters(fleet: FleetBuilder) -> None:
    _alone(
        fleet,
        "tiny-kernels",
        A10G,
        Shape(quiet_ratio=0.03, peak_ratio=0.03, duty_floor_ratio=0.97, framebuffer_bytes=3 * GIB),
    )
    spin = _workload("nccl-spin", kind="Job", container="trainer", server="pytorch", priority=Priority.NORMAL)
    shape = Shape(
        service=fleet.service_number(),
        quiet_ratio=0.15,
        peak_ratio=0.15,
        duty_floor_ratio=1.0,
        framebuffer_bytes=60 * GIB,
    )
    for _ in range(4):
        fleet.grant(spin, fleet.buy(H100), shape)
    pool = 50 * GIB
    _alone(
        fleet,
        "preallocated",
        A100,
        Shape(
            quiet_ratio=0.1, peak_ratio=0.4, framebuffer_bytes=0.9 * 80 * GIB, kv_idle_ratio=0.02, kv_load_ratio=0.05
        ),
        server="vllm",
        kv_cache_pool_bytes=pool,
    )
    _alone(fleet, "blackwell-zero", B200, replace(_BUSY, quiet_ratio=0.5, peak_ratio=0.7, visible_factor=0.0))
    fleet.watched.append(fleet.cards[-1].card)
    mig = fleet.buy(A100, mig_mode=True)
    fleet.grant(
        _workload("mig-no-duty"),
        mig,
        replace(_BUSY, service=fleet.service_number(), has_duty=False, peak_ratio=0.3),
        share=0.5,
        mig_profile="3g.40gb",
    )
    _alone(fleet, "no-prof-counters", A10G, replace(_BUSY, peak_ratio=0.25, has_sm=False))
    _alone(fleet, "counter-vanished", A10G, replace(_BUSY, counters_end_days=max(1.0, fleet.days - 3)))
    _alone(
        fleet,
        "transcoder",
        L40S,
        Shape(
            quiet_ratio=0.001,
            peak_ratio=0.004,
            encoder_ratio=0.7,
            decoder_ratio=0.4,
            framebuffer_bytes=2 * GIB,
            noise_ratio=0.05,
        ),
        server=None,
    )


def _add_missing_rows(fleet: FleetBuilder) -> None:
    _alone(fleet, "never-touched-cuda", L40S, Shape(is_seen=False), server=None)
    fleet.watched.append(fleet.cards[-1].card)
    shared = fleet.buy(A100)
    pair = _workload("one-of-two-reports")
    service = fleet.service_number()
    for number in range(2):
        shape = replace(_BUSY, service=service, peak_ratio=0.4, is_seen=number == 0)
        fleet.grant(pair, shared, shape, replica=number, share=0.5)
    _alone(fleet, "outage", A10G, replace(_BUSY, ends_days=max(1.0, fleet.days - 2)))
    _alone(fleet, "dead-card", A100, replace(_BUSY, ends_days=max(0.5, fleet.days - 1.3)))


def _add_lives(fleet: FleetBuilder) -> None:
    end = float(fleet.days)
    ghost, card = _workload("ghost-series"), fleet.buy(A10G)
    shape = replace(_BUSY, service=fleet.service_number(), ends_days=0.6 * end)
    fleet.grant(ghost, card, shape, lived_days=(0.0, 0.4 * end))
    young, card = _workload("young-pod"), fleet.buy(A10G)
    fleet.grant(
        young,
        card,
        Shape(service=fleet.service_number(), framebuffer_bytes=5 * GIB, begins_days=end - 0.125),
        lived_days=(end - 0.125, None),
    )
    loop, card = _workload("crash-loop"), fleet.buy(A10G)
    hours, count = 4, 18
    first = max(0.0, end - count * hours / 24)
    for number in range(min(count, int(end * 24 / hours))):
        begin, until = first + number * hours / 24, first + (number + 1) * hours / 24
        fleet.grant(
            loop,
            card,
            Shape(service=fleet.service_number(), framebuffer_bytes=GIB, begins_days=begin, ends_days=until),
            replica=number,
            lived_days=(begin, until),
        )
    moved = _workload("card-replaced")
    service = fleet.service_number()
    periods: tuple[tuple[float, float | None], ...] = ((0.0, end / 2), (end / 2, None))
    for begins, ends in periods:
        shape = replace(_BUSY, service=service, begins_days=begins, ends_days=ends or FOREVER_DAYS)
        fleet.grant(moved, fleet.buy(A10G), shape, lived_days=(begins, ends))


def _add_quiet_by_design(fleet: FleetBuilder) -> None:
    replicas = _workload("per-pod-not-sum")
    service = fleet.service_number()
    for number in range(4):
        shape = Shape(service=service, quiet_ratio=0.3, peak_ratio=0.3, framebuffer_bytes=12 * GIB)
        fleet.grant(replicas, fleet.buy(A10G), shape, replica=number)
    _alone(
        fleet,
        "loading-phases",
        A100,
        Shape(quiet_ratio=0.7, peak_ratio=0.8, pause_hours=3.0, framebuffer_bytes=50 * GIB),
        kind="Job",
        container="trainer",
        server="pytorch",
        priority=Priority.NORMAL,
    )
    _alone(
        fleet,
        "warm-standby",
        A100,
        Shape(framebuffer_bytes=20 * GIB),
        labels=((LATENCY_CRITICAL_LABEL, "true"), (WARM_REPLICAS_LABEL, "1")),
        replicas_min=1,
    )
    shared = fleet.buy(A100)
    online = Shape(
        service=fleet.service_number(), quiet_ratio=0.05, peak_ratio=0.9, sharpness=2.0, framebuffer_bytes=30 * GIB
    )
    fleet.grant(Workload(namespace="search", name="answer-extraction"), shared, online, share=0.5)
    offline = Shape(
        service=fleet.service_number(), quiet_ratio=0.0, peak_ratio=0.7, peak_hour=2.0, sharpness=12.0,
        framebuffer_bytes=20 * GIB,
    )  # fmt: skip
    squeezed = _workload("offline-squeezed", kind="Job", server="pytorch", priority=Priority.LOW)
    fleet.grant(squeezed, shared, offline, share=0.5)
