"""The ordinary part of a synthetic fleet: what a cluster of many teams runs, in the proportions in which it is found.

Called by `exporter.synthetic.writer` until the cards asked for are bought. Each family gives the advice something to
find: off-peak pairs, servers that pre-allocate, cards that are far too big, cards that nobody uses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from exporter.synthetic.fleet import A10G, A100, A6000, H100, L20, L40S, NODE_KINDS, FleetBuilder, Workload
from exporter.synthetic.shapes import Shape
from fleet.inventory import ISOLATION_LABEL, LATENCY_CRITICAL_LABEL, OPT_OUT_LABEL, CardModelName, Priority
from fleet.units import GIB

DAY_SERVICES = (
    "search/query-understanding", "ads/creative-scoring", "vision/image-moderation", "speech/asr-streaming",
    "support/ticket-routing", "payments/invoice-ocr", "search/spell-correction", "ads/audience-lookup",
    "vision/visual-search", "speech/call-summaries", "support/agent-assist", "payments/merchant-matching",
)  # fmt: skip
NIGHT_SERVICES = (
    "search/index-enrichment", "ads/audience-refresh", "vision/photo-dedup", "speech/transcript-backfill",
    "support/ticket-clustering", "payments/chargeback-scan", "search/crawl-classifier",
)  # fmt: skip
LANGUAGE_MODELS = (
    "search/llama-8b-answers", "ads/mistral-7b-copywriter", "vision/llava-captions", "speech/qwen-7b-dialogue",
    "support/llama-8b-chat", "payments/qwen-14b-documents", "search/qwen-7b-rewriter", "research/deepseek-coder",
)  # fmt: skip
EMBEDDERS = (
    "search/embedder-multilingual", "ads/item-embedder", "vision/clip-embedder", "speech/speaker-embedder",
    "support/faq-embedder", "payments/merchant-embedder",
)  # fmt: skip
TRAINING_JOBS = (
    "research/finetune-llama-8b", "research/pretrain-vit-large", "research/finetune-whisper-zh",
    "research/distil-reranker", "research/pretrain-bert-ads", "research/finetune-qwen-14b",
)  # fmt: skip
NOTEBOOKS = (
    "research/jupyter-anna", "research/jupyter-bowen", "research/jupyter-carlos", "research/jupyter-deepa",
    "research/jupyter-elif", "research/jupyter-felix", "research/jupyter-grace", "research/jupyter-haruto",
    "research/jupyter-ines", "research/jupyter-jiayi", "research/jupyter-kofi", "research/jupyter-lena",
)  # fmt: skip
RETIRED_SERVICES = (
    "search/reranker-v1", "ads/ctr-model-2024", "vision/tagging-v2", "speech/tts-legacy", "support/sentiment-pilot",
)  # fmt: skip
WIDE_SERVICES = (
    "search/graph-embedding", "ads/online-learner", "vision/video-captions", "speech/diarization",
)  # fmt: skip
TRANSCODERS = ("vision/video-thumbnails", "vision/clip-transcoder", "vision/live-transcoder")
BIDDERS = ("ads/bid-ranker", "payments/fraud-scoring", "ads/bid-pricing", "search/query-ranker")
NEWCOMERS = ("vision/receipt-ocr", "support/voice-intent", "search/image-embedder", "payments/address-parser")
UNUSED_SERVICES = ("payments/risk-sandbox", "vision/label-assist", "research/gpu-shell")
"""Names of each family, `namespace/name`: a fleet that needs more of them counts on (`-2`, `-3` …)."""

Family = Callable[[FleetBuilder, np.random.Generator, int], None]
"""Adds the workload with this number, on cards of its own."""


def _named(names: tuple[str, ...], number: int, **changes: object) -> Workload:
    namespace, name = names[number % len(names)].split("/")
    turn = number // len(names)
    suffix = f"-{turn + 1}" if turn else ""
    return replace(Workload(namespace=namespace, name=f"{name}{suffix}"), **changes)  # type: ignore[arg-type]


def _day_service(fleet: FleetBuilder, random: np.random.Generator, number: int) -> None:
    """A service that works office hours; every third is asked to be kept apart from others."""
    labels = ((ISOLATION_LABEL, "hard"),) if number % 3 == 0 else ()
    workload = _named(DAY_SERVICES, number, labels=labels)
    _replicas(fleet, workload, int(random.integers(2, 5)), A10G, _daily(random, fleet, peak_hour=13.5))


def _night_service(fleet: FleetBuilder, random: np.random.Generator, number: int) -> None:
    """A service that works while the others sleep: the other half of an off-peak pair."""
    workload = _named(NIGHT_SERVICES, number, priority=Priority.NORMAL)
    _replicas(fleet, workload, int(random.integers(2, 4)), A10G, _daily(random, fleet, peak_hour=1.5))


def _daily(random: np.random.Generator, fleet: FleetBuilder, *, peak_hour: float) -> Shape:
    peak = random.uniform(0.35, 0.65)
    return Shape(
        service=fleet.service_number(),
        quiet_ratio=0.02 * peak,
        peak_ratio=peak,
        peak_hour=peak_hour + random.uniform(-1.5, 1.5),
        sharpness=random.uniform(4.0, 8.0),
        weekend_factor=random.uniform(0.3, 1.0),
        framebuffer_bytes=random.uniform(5, 9) * GIB,
        framebuffer_load_bytes=random.uniform(0.5, 2) * GIB,
        requests_per_second=random.uniform(20, 200),
    )


def _language_model(fleet: FleetBuilder, random: np.random.Generator, number: int) -> None:
    """A server that takes nine tenths of its card at start, whatever it needs."""
    model = A100 if number % 2 else H100
    held = 0.9 * 80 * GIB
    weights = random.uniform(14, 34) * GIB
    workload = _named(LANGUAGE_MODELS, number, server="vllm", kv_cache_pool_bytes=round(held - weights))
    peak = random.uniform(0.2, 0.75)
    shape = Shape(
        service=fleet.service_number(),
        quiet_ratio=0.15 * peak,
        peak_ratio=peak,
        peak_hour=random.uniform(9, 20),
        sharpness=random.uniform(1.5, 3.0),
        weekend_factor=0.6,
        framebuffer_bytes=held,
        kv_idle_ratio=0.03,
        kv_load_ratio=random.uniform(0.1, 0.5),
        requests_per_second=random.uniform(2, 30),
    )
    _replicas(fleet, workload, int(random.integers(2, 5)), model, shape)


def _oversized(fleet: FleetBuilder, random: np.random.Generator, number: int) -> None:
    """An embedding server that needs a few GiB and was given eighty."""
    _replicas(fleet, _named(EMBEDDERS, number), 2, A100, _small(random, fleet))


def _small(random: np.random.Generator, fleet: FleetBuilder) -> Shape:
    return Shape(
        service=fleet.service_number(),
        quiet_ratio=0.03,
        peak_ratio=random.uniform(0.1, 0.2),
        sharpness=1.0,
        framebuffer_bytes=random.uniform(2, 5) * GIB,
        framebuffer_load_bytes=GIB,
    )


def _training(fleet: FleetBuilder, random: np.random.Generator, number: int) -> None:
    """Training of long life and low priority, on one to four cards of one pod."""
    workload = _named(TRAINING_JOBS, number, kind="Job", container="trainer", server="pytorch", priority=Priority.LOW)
    level = random.uniform(0.5, 0.92)
    shape = Shape(
        service=fleet.service_number(),
        quiet_ratio=level,
        peak_ratio=level,
        noise_ratio=0.04,
        framebuffer_bytes=random.uniform(30, 60) * GIB,
    )
    for _ in range((1, 4, 2)[number % 3]):
        fleet.grant(workload, fleet.buy(A100), shape)


def _notebook(fleet: FleetBuilder, random: np.random.Generator, number: int) -> None:
    """A notebook that holds its card for the sake of some hours a week."""
    workload = _named(
        NOTEBOOKS, number, kind="Notebook", container="notebook", server="jupyter", priority=Priority.NORMAL
    )
    level = random.uniform(0.3, 0.6)
    shape = Shape(
        service=fleet.service_number(),
        quiet_ratio=level,
        peak_ratio=level,
        noise_ratio=0.4,
        session_probability=0.35,
        framebuffer_bytes=random.uniform(2, 18) * GIB,
    )
    fleet.grant(workload, fleet.buy(L20), shape)


def _idle_held(fleet: FleetBuilder, random: np.random.Generator, number: int) -> None:
    """A service that nobody calls any more, with its model still loaded; one in four asks to be left alone."""
    labels = ((OPT_OUT_LABEL, "true"),) if number % 4 == 3 else ()
    workload = _named(RETIRED_SERVICES, number, labels=labels)
    shape = Shape(service=fleet.service_number(), framebuffer_bytes=random.uniform(4, 30) * GIB)
    _replicas(fleet, workload, 2, L40S, shape)


def _partly_idle(fleet: FleetBuilder, random: np.random.Generator, number: int) -> None:
    """A pod that asked for four cards and uses one."""
    workload = _named(WIDE_SERVICES, number, priority=Priority.NORMAL)
    busy = Shape(
        service=fleet.service_number(), quiet_ratio=0.3, peak_ratio=0.7, framebuffer_bytes=random.uniform(20, 40) * GIB
    )
    for position in range(4):
        shape = busy if position == 0 else replace(busy, quiet_ratio=0.0, peak_ratio=0.0, framebuffer_bytes=0.5 * GIB)
        fleet.grant(workload, fleet.buy(H100), shape)


def _transcoder(fleet: FleetBuilder, random: np.random.Generator, number: int) -> None:
    """Video: media engines at work, SMs asleep."""
    workload = _named(TRANSCODERS, number, server=None, priority=Priority.NORMAL)
    shape = Shape(
        service=fleet.service_number(),
        quiet_ratio=0.001,
        peak_ratio=0.006,
        peak_hour=20.0,
        encoder_ratio=random.uniform(0.5, 0.8),
        decoder_ratio=random.uniform(0.2, 0.5),
        framebuffer_bytes=2 * GIB,
    )
    _replicas(fleet, workload, 2, L40S, shape)


def _critical(fleet: FleetBuilder, random: np.random.Generator, number: int) -> None:
    """A busy service whose latency is money."""
    workload = _named(BIDDERS, number, labels=((LATENCY_CRITICAL_LABEL, "true"),), replicas_min=2)
    shape = Shape(
        service=fleet.service_number(),
        quiet_ratio=0.35,
        peak_ratio=random.uniform(0.75, 0.9),
        sharpness=1.5,
        noise_ratio=0.05,
        framebuffer_bytes=60 * GIB,
        framebuffer_load_bytes=10 * GIB,
        requests_per_second=random.uniform(200, 900),
    )
    _replicas(fleet, workload, 2, H100, shape)


def _never_used(fleet: FleetBuilder, random: np.random.Generator, number: int) -> None:
    """A grant that never touched CUDA: a card's worth of nothing, and no series that would say so."""
    workload = _named(UNUSED_SERVICES, number, priority=Priority.NORMAL)
    fleet.grant(workload, fleet.buy(L40S), Shape(is_seen=False))
    fleet.watched.append(fleet.cards[-1].card)


def _unallocated(fleet: FleetBuilder, random: np.random.Generator, number: int) -> None:
    """A card that was granted to nobody."""
    fleet.buy((A10G, A100, L40S)[number % 3])


FAMILIES: tuple[tuple[Family, int], ...] = (
    (_day_service, 7),
    (_night_service, 5),
    (_language_model, 5),
    (_oversized, 3),
    (_training, 3),
    (_notebook, 6),
    (_idle_held, 3),
    (_partly_idle, 1),
    (_transcoder, 1),
    (_critical, 2),
    (_never_used, 1),
    (_unallocated, 3),
)
"""Families and how many workloads of each make one round."""


def add_mix(fleet: FleetBuilder, random: np.random.Generator, card_count: int) -> None:
    """Adds workloads in rounds until the fleet has `card_count` cards; the last cards stand empty."""
    # Families take turns within a round, so that a fleet of any size holds each of them.
    turns = [family for turn in range(7) for family, count in FAMILIES if turn < count]
    numbers: dict[Family, int] = {}
    position = 0
    while len(fleet.cards) <= card_count - 4:
        family = turns[position % len(turns)]
        numbers[family] = numbers.get(family, -1) + 1
        family(fleet, random, numbers[family])
        position += 1
    while len(fleet.cards) < card_count:
        fleet.buy(A10G)


def add_newcomers(fleet: FleetBuilder, random: np.random.Generator, since_days: float) -> None:
    """Adds a node that nobody uses until teams deploy new services on it, each replica with a whole card.

    One card of it stays free: where every card is taken, nothing can change places without a gap.
    """
    node_cards = NODE_KINDS[A6000].cards
    shapes = [replace(_daily(random, fleet, peak_hour=13.5), begins_days=since_days) for _ in NEWCOMERS]
    for position in range(node_cards - 1):
        replica, number = divmod(position, len(NEWCOMERS))
        workload = _named(NEWCOMERS, number)
        fleet.grant(workload, fleet.buy(A6000), shapes[number], replica=replica, lived_days=(since_days, None))
    fleet.buy(A6000)


def _replicas(fleet: FleetBuilder, workload: Workload, count: int, model: CardModelName, shape: Shape) -> None:
    for replica in range(count):
        fleet.grant(workload, fleet.buy(model), shape, replica=replica)
