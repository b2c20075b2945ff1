"""What a scan did not find, and what that costs in advice. Called by `scanning.answer`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fleet.inventory import CardModelName
from fleet.money.book import PriceBook
from fleet.profiles import Profiles
from fleet.schema import Measure
from fleet.settings.settings import Settings
from fleet.units import format_count, format_percent
from fleet.usage import History
from gputide.answers.plan import no_price_words
from gputide.scanning.scan import Scanned

COVERAGE_MIN = 0.9
"""Below it missing samples are worth a word."""
_MEASURES = {
    Measure.SM_ACTIVE: (
        "duty cycle is used instead: an upper bound, so less is advised (enable DCGM_FI_PROF_SM_ACTIVE in "
        "dcgm-exporter)"
    ),
    Measure.FRAMEBUFFER_USED: "who holds how much framebuffer stays unknown: nothing can share a card",
    Measure.DUTY_CYCLE: "whether a card works at all stays unknown where SM active is missing too",
    Measure.KV_CACHE_USAGE: "what servers that pre-allocate really need stays unknown, with or without vLLM's metrics",
    Measure.ENCODER: "a transcoder look like idle pods (enable DCGM_FI_DEV_ENC_UTIL)",
    Measure.POWER: "energy of idle cards is not reported (enable DCGM_FI_DEV_POWER_USAGE)",
}
_NAMES = (
    (("kube_pod_owner",), "advice is for single pods and not for services (install kube-state-metrics)"),
    (
        ("kube_replicaset_owner",),
        "pods of one Deployment are distinguished by their ReplicaSet (let kube-state-metrics watch replicasets)",
    ),
    (
        ("kube_pod_container_resource_requests",),
        "whether moved pods find CPU and memory on another node, and which pods hold a card in silence",
    ),
    (("kube_node_status_allocatable",), "whether nodes have CPU and memory for pods that move there"),
    (
        ("kube_pod_labels", "kube_pod_annotations"),
        "opt-outs and other gputide.io labels of pods (kube-state-metrics: --metric-labels-allowlist)",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Missed:
    """One thing that a scan did not find.

    Attributes:
        what: what is missing.
        costs: what is not possible or less sure without it, and how to mend it.
    """

    what: str
    costs: str


def misses_of(scanned: Scanned, history: History, profiles: Profiles, settings: Settings) -> tuple[Missed, ...]:
    """Everything that is missing, what costs most first."""
    return (
        *_whose(scanned, history),
        *_measures(history),
        *_facts(scanned),
        *_doubts(scanned, profiles),
        *_prices(history, settings),
    )


def _whose(scanned: Scanned, history: History) -> Iterator[Missed]:
    if not history.slices.keys:
        yield Missed(
            what="pods on cards",
            costs="whose the cards are stays unknown: no advice at all (run dcgm-exporter with "
            "DCGM_EXPORTER_KUBERNETES=true, or HAMi's monitor)",
        )
    if scanned.seats.unplaced:
        yield Missed(
            what=f"the cards of {format_count(scanned.seats.unplaced)} pods that ask for some",
            costs="they are left out, and their cards may look free (dcgm-exporter does not run on their nodes, or "
            "several pods share a card in a way that it does not tell)",
        )
    if scanned.seats.unmeasured:
        yield Missed(
            what=f"what {format_count(scanned.seats.unmeasured)} pods do that share cards",
            costs="only their grants are known: they are left as they are (run HAMi's monitor, or gputide's exporter)",
        )
    if scanned.seats.unsized:
        yield Missed(
            what=f"framebuffer of {', '.join(sorted(scanned.seats.unsized)[:5])}",
            costs="cards of that model are left out (enable DCGM_FI_DEV_FB_FREE)",
        )


def _measures(history: History) -> Iterator[Missed]:
    measured = set(history.slices.mean) | (set(history.cards.mean) if history.cards is not None else set())
    for measure, costs in _MEASURES.items():
        if measure not in measured:
            yield Missed(what=f"measure {measure.value}", costs=costs)


def _facts(scanned: Scanned) -> Iterator[Missed]:
    for names, costs in _NAMES:
        if not any(name in scanned.names for name in names):
            yield Missed(what=" or ".join(names), costs=costs)
    for name, reason in sorted(scanned.facts.failed.items()):
        yield Missed(what=name, costs=f"could not be read: {reason}; what it tells of pods and owners is missing")


def _doubts(scanned: Scanned, profiles: Profiles) -> Iterator[Missed]:
    for name, scale in sorted(scanned.scales.items()):
        if scale.remark is not None:
            yield Missed(what=f"the unit of {name}", costs=f"{scale.remark}; check the rule that writes it")
    if profiles.coverage_ratio < COVERAGE_MIN:
        yield Missed(
            what=f"{format_percent(1 - profiles.coverage_ratio)} of the time",
            costs="what was not collected counts as unknown: advice is less sure, or withheld",
        )
    for text in scanned.work.partial:
        yield Missed(what="parts of answers", costs=f"the server said: {text}")
    if scanned.reading.bad_values:
        yield Missed(
            what=f"{format_count(scanned.reading.bad_values)} samples outside their range",
            costs="they are left out, as if they had not been collected",
        )
    for name, count in sorted(scanned.reading.nameless.items()):
        yield Missed(
            what=f"{format_count(count)} series of {name}",
            costs="their labels don't say whom they speak of: they are left out",
        )


def unpriced_models(history: History, settings: Settings) -> tuple[CardModelName, ...]:
    """Card models of which some card of a fleet has no price when the history ends, sorted."""
    inventory = history.inventory
    prices = PriceBook(settings, inventory.nodes).at(inventory.as_of)
    return tuple(sorted({card.card_model for card in inventory.cards if prices.of(card).amortised is None}))


def _prices(history: History, settings: Settings) -> Iterator[Missed]:
    unpriced = unpriced_models(history, settings)
    if unpriced:
        yield Missed(what=f"prices of {', '.join(unpriced[:5])}", costs=f"money: {no_price_words(unpriced)}")
