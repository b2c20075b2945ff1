"""Traps in the values of a Prometheus: what is not measured, what means something else, what can't be true.

Each is a generator over the scene; `prometheus` makes checks of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from fleet.schema import Measure
from fleet.sentences import listed, sentence
from fleet.series import meaning_of_name
from fleet.settings.provenance import ProvenanceSettings
from fleet.units import format_bytes_short
from gputide.doctor.finding import NAMES_MAX, Diagnosis, finding, otherwise, some, unchecked, well
from gputide.doctor.prometheus_scene import Scene
from gputide.doctor.prometheus_sources import sources_apart
from pipeline.history.scale import scale_of
from pipeline.history.source import HistorySource

SPINNING_DUTY_PERCENT, RESTING_RATIO = 95, 0.2
"""Above and below which a card spins: ranks of a collective show nearly 100 % with 10 to 20 % of SMs active."""
HELD_RATIO = 0.85
"""Share of a card's framebuffer from which a pod counts as one that allocates everything: vLLM takes 0.9 as a rule."""
BLANK_MIN = 9.2e18
"""DCGM's values for "no value" begin at 0x7ffffffffffffff0 (dcgm_fields.h)."""
FRAMEBUFFER_BYTES_MAX = float(1 << 41)
BUSY_PERCENT = 20
VANISHED_SECONDS = 7 * 86400.0
_DUTY, _SM, _USED, _FREE = (
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_PROF_SM_ACTIVE",
    "DCGM_FI_DEV_FB_USED",
    "DCGM_FI_DEV_FB_FREE",
)
_SIZES = (_FREE, "DCGM_FI_DEV_FB_TOTAL")
_SCALED = ("DCGM_FI_", "hami_", "HostGPU", "HostCore", "Device_", "vGPU_")


def measured(scene: Scene) -> Iterator[Diagnosis]:
    """Measures that nobody collects."""
    there = scene.measures
    if Measure.DUTY_CYCLE not in there and Measure.SM_ACTIVE not in there:
        yield finding("prometheus-duty-cycle-missing", sentence("doctor.found.neither"))
    elif Measure.SM_ACTIVE not in there:
        by = some(there[Measure.DUTY_CYCLE])
        yield finding("prometheus-sm-active-missing", sentence("doctor.found.activity_by", names=by))
    if Measure.FRAMEBUFFER_USED not in there:
        yield finding("prometheus-framebuffer-missing", sentence("doctor.found.no_framebuffer"))
    if Measure.POWER not in there:
        yield finding("prometheus-power-missing", sentence("doctor.found.no_power"))
    for code, one, others in (
        ("prometheus-framebuffer-free-missing", _USED, _SIZES),
        ("prometheus-encoder-missing", _DUTY, ("DCGM_FI_DEV_ENC_UTIL", "DCGM_FI_DEV_DEC_UTIL")),
        ("prometheus-xid-last-only", "DCGM_FI_DEV_XID_ERRORS", ("DCGM_EXP_XID_ERRORS_COUNT",)),
    ):
        if scene.has(one) and not scene.has(*others):
            yield finding(code, sentence("doctor.found.without", one=one, other=others[0]))
    yield otherwise(some((measure.value for measure in there), 20))


def facts(scene: Scene) -> Iterator[Diagnosis]:
    """Owners, requests and labels, by kube-state-metrics."""
    for code, names, needs_all in (
        ("prometheus-owners-missing", ("kube_pod_owner", "kube_replicaset_owner"), True),
        ("prometheus-requests-missing", ("kube_pod_container_resource_requests", "kube_node_status_allocatable"), True),
        ("prometheus-pod-labels-missing", ("kube_pod_labels", "kube_pod_annotations"), False),
    ):
        missing = [name for name in names if not scene.has(name)]
        if missing and (needs_all or len(missing) == len(names)):
            yield finding(code, sentence("doctor.found.no_series", names=some(missing)))
    yield otherwise(sentence("doctor.found.facts_fine"))


def profiled_cards(scene: Scene) -> Iterator[Diagnosis]:
    """Cards without profiling counters beside others that have them, and MIG instances without activity."""
    ask = scene.ask
    if scene.has(_DUTY) and scene.has(_SM):
        bare = ask.vector(f"{ask.selector(_DUTY)} unless on (UUID) {ask.selector(_SM)}")
        cards = {reading.labels.get("UUID", "?") for reading in bare}
        if cards:
            text = sentence("doctor.found.no_sm", cards=len(cards), names=some(cards))
            yield finding("prometheus-sm-active-partial", text, subject=some(cards))
    cut = {seen.card for seen in scene.cards if seen.labels.get("GPU_I_ID")}
    if cut:
        names = f"DCGM_FI_PROF_GR_ENGINE_ACTIVE|{_SM}"
        active = {reading.labels.get("UUID") for reading in ask.vector(ask.selector(names, 'GPU_I_ID!=""'))}
        if cut - active:
            text = sentence("doctor.found.cut", bare=len(cut - active), cut=len(cut), names=some(cut - active))
            yield finding("prometheus-mig-without-activity", text, subject=some(cut - active))
    yield otherwise(sentence("doctor.found.activity_fine"))


def spinning(scene: Scene) -> Iterator[Diagnosis]:
    """Cards that look busy and are not."""
    ask = scene.ask
    if not scene.has(_DUTY) or not scene.has(_SM):
        yield unchecked(sentence("doctor.found.not_both"))
        return
    found = ask.vector(
        f"avg_over_time({ask.selector(_DUTY)}[1h]) >= {SPINNING_DUTY_PERCENT} and on (UUID) "
        f"avg_over_time({ask.selector(_SM)}[1h]) <= {RESTING_RATIO}"
    )
    cards = {reading.labels.get("UUID", "?") for reading in found}
    if cards:
        text = sentence("doctor.found.spinning", cards=len(cards), names=some(cards))
        yield finding("prometheus-duty-cycle-spins", text, subject=some(cards))
    yield otherwise(sentence("doctor.found.none_spins"))


def preallocated(scene: Scene) -> Iterator[Diagnosis]:
    """Framebuffer that is held whole and never changes: no exporter can show how much of it is used."""
    ask = scene.ask
    if not scene.has(_USED) or not scene.has(_FREE):
        yield unchecked(sentence("doctor.found.not_both_of", one=_USED, other=_FREE))
        return
    used = ask.selector(_USED)
    held = ask.vector(
        f"(max_over_time({used}[1h]) == min_over_time({used}[1h])) and "
        f"({used} / ignoring (__name__) ({used} + ignoring (__name__) {ask.selector(_FREE)}) >= {HELD_RATIO})"
    )
    cards = {reading.labels.get("UUID", "?") for reading in held}
    if cards:
        text = sentence("doctor.found.still", cards=len(cards), ratio=f"{HELD_RATIO:.0%}", names=some(cards))
        yield finding("prometheus-preallocated", text, subject=some(cards))
    yield otherwise(sentence("doctor.found.none_still"))


def contradicting(scene: Scene, settings: ProvenanceSettings) -> Iterator[Diagnosis]:
    """Cards of whose framebuffer exporters that are trusted say what can't both be true."""
    apart = {
        one.card: f"{one.card}: "
        + ", ".join(
            f"{said.metric} ({said.job}) {format_bytes_short(said.used_bytes)}" for said in (one.least, one.most)
        )
        for one in sources_apart(scene, settings.rule)
    }
    if apart:
        text = sentence("doctor.found.apart", cards=len(apart), names=some(apart.values()))
        yield finding("prometheus-sources-contradict", text, subject=some(apart))
    yield otherwise(sentence("doctor.found.none_apart"))


def units(scene: Scene, history: HistorySource, url: str) -> Iterator[Diagnosis]:
    """Metrics in another unit than their name's."""
    until_ms = round(time.time() * 1000)
    for name in sorted(name for name in scene.names if name.startswith(_SCALED) and meaning_of_name(name)):
        remark = scale_of(history, name, until_ms=until_ms).remark
        if remark is not None:
            yield finding("prometheus-unit-mixed", remark, subject=name, metric=name, url=url)
    yield otherwise(sentence("doctor.found.units_fine"))


def impossible(scene: Scene) -> Iterator[Diagnosis]:
    """Values that can't be true: DCGM's blanks, HAMi's underflows, zero on a busy card."""
    ask = scene.ask
    blank = ask.vector(f"count by (__name__) ({ask.selector('DCGM_FI_.+|DCGM_EXP_.+')} >= {BLANK_MIN:.0f})")
    if blank:
        names = some(reading.labels.get("__name__", "?") for reading in blank)
        text = sentence("doctor.found.in_names", names=names)
        yield finding("prometheus-blank-values", text, subject=names, **scene.exporter)
    for used, limit, labels, duty, host, card, space, pod_label in _HAMI:
        if scene.has(used):
            bound = f"{ask.selector(used)} > {FRAMEBUFFER_BYTES_MAX:.0f}"
            if scene.has(limit):
                bound += f" or {ask.selector(used)} > 2 * ({ask.selector(limit)} > 0)"
            wrong = ask.vector(bound)
            pods = {(one.labels.get(space, ""), one.labels.get(pod_label, "")) for one in wrong}
            if pods:
                most = f"{max(one.value for one in wrong):.4g}"
                text = sentence("doctor.found.impossible", metric=used, pods=some(map("/".join, pods)), bytes=most)
                namespace, pod = min(pods)
                code, subject = "prometheus-hami-memory-impossible", f"{namespace}/{pod}"
                yield finding(code, text, subject=subject, namespace=namespace, pod=pod)
        if scene.has(duty) and scene.has(host):
            zero = ask.vector(
                f"max_over_time({ask.selector(duty)}[1h]) == 0 and on ({card}) "
                f"avg_over_time({ask.selector(host)}[1h]) >= {BUSY_PERCENT} and on ({card}) "
                f"count by ({card}) (count by ({card}, {labels}) ({ask.selector(duty)})) == 1"
            )
            idle = {f"{one.labels.get(space, '')}/{one.labels.get(pod_label, '')}" for one in zero}
            if idle:
                text = sentence("doctor.found.zero", names=some(idle))
                yield finding("prometheus-hami-zero-while-busy", text, subject=some(idle))
    yield otherwise(sentence("doctor.found.possible"))


_HAMI = (
    (
        "hami_vgpu_memory_used_bytes", "hami_vgpu_memory_limit_bytes",
        "namespace, pod, exported_namespace, exported_pod",
        "hami_container_device_utilization_ratio", "hami_host_gpu_utilization_ratio", "device_uuid", "namespace", "pod",
    ),
    (
        "vGPU_device_memory_usage_in_bytes", "vGPU_device_memory_limit_in_bytes", "podnamespace, podname",
        "Device_utilization_desc_of_container", "HostCoreUtilization", "deviceuuid", "podnamespace", "podname",
    ),
)  # fmt: skip
"""Of both generations of HAMi's names: use, limit, labels of a pod, its activity, that of the card, labels."""


def untrusted(scene: Scene) -> Iterator[Diagnosis]:
    """Counters that gputide's exporter distrusts, with the check that they failed."""
    name = "gputide_counter_trusted"
    if not scene.has(name):
        yield unchecked(sentence("doctor.found.no_exporter"))
        return
    found = scene.ask.vector(f"{scene.ask.selector(name)} == 0")
    if not found:
        yield well(sentence("doctor.found.checks_passed"))
        return
    told = [one.labels for one in found]
    pairs = sorted({(labels.get("counter", "?"), labels.get("check", "?")) for labels in told})
    counters = listed([sentence("doctor.found.by", what=counter, by=failed) for counter, failed in pairs], NAMES_MAX)
    pods = some(f"{labels.get('namespace', '')}/{labels.get('pod', '')}" for labels in told if labels.get("pod"))
    first = next((labels for labels in told if labels.get("pod")), {})
    text = sentence("doctor.found.counters", counters=counters, of=pods or sentence("doctor.found.cards"))
    namespace, pod = first.get("namespace", "NAMESPACE"), first.get("pod", "POD")
    yield finding("prometheus-counter-untrusted", text, subject=pods, namespace=namespace, pod=pod)


def resets(scene: Scene) -> Iterator[Diagnosis]:
    """Drivers that were started anew."""
    name = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
    if not scene.has(name):
        yield unchecked(sentence("doctor.found.no_metric", metric=name))
        return
    found = scene.ask.vector(f"resets({scene.ask.selector(name)}[1d]) > 0")
    cards = {reading.labels.get("UUID", "?") for reading in found}
    if cards:
        text = sentence("doctor.found.resets", cards=len(cards), names=some(cards))
        yield finding("prometheus-driver-reset", text, subject=some(cards))
    yield otherwise(sentence("doctor.found.none_reset"))


def vanished(scene: Scene) -> Iterator[Diagnosis]:
    """Measures that were there a week ago, and are not any more under any name."""
    before = scene.names_since(VANISHED_SECONDS)
    there = scene.measures
    for name in sorted(before - scene.names):
        meaning = meaning_of_name(name)
        if meaning is not None and meaning.measure is not None and meaning.measure not in there:
            text = sentence("doctor.found.vanished", measure=meaning.measure.value)
            yield finding("prometheus-metric-vanished", text, subject=name, **scene.exporter)
    yield otherwise(sentence("doctor.found.nothing_vanished"))
