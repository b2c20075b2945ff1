"""Recording rules that say what the figures mean: who is idle, who is doubted, what was promised for this hour.

The words are those of the analyzer, from the same settings, in PromQL: an estimate by Prometheus alone, that needs no
gputide at all. Where gputide itself said something (`gputide run export savings`, the exporters' cross-checks) that
counts.
"""

from __future__ import annotations

from dashboards.grafana.rule import RuleGroup, recording
from dashboards.grafana.sources import CARD_LABELS, SLICE_KEY, either, first_of
from fleet.settings.settings import AnalyzerSettings

STEP_SECONDS = 240
"""Step of the series that long windows look back on: a day has 360 of them, not 1,440.

Prometheus takes no sample that is five minutes old for the present (`query.lookback-delta`): at this step there is no
gap, though an evaluation comes late, and an alert that must hold for a while does not begin anew.
"""
WORKLOAD_LABELS = "cluster, namespace, workload, workload_kind"
"""What a series of a workload is distinguished by."""

_CHECKED_LABELS = "cluster, namespace, pod, container, node, card, card_model, counter, check"


def derived_groups(analyzer: AnalyzerSettings) -> tuple[RuleGroup, ...]:
    """The groups, in the order in which one builds on the other."""
    return (
        RuleGroup(name="gputide-steps", interval=f"{STEP_SECONDS}s", rules=recording(_step_rules())),
        RuleGroup(name="gputide-states", interval="2m", rules=recording(_state_rules(analyzer))),
        RuleGroup(name="gputide-promises", interval=f"{STEP_SECONDS}s", rules=recording(_promise_rules(analyzer))),
    )


def _step_rules() -> dict[str, str]:
    return {
        "gputide:card:activity_ratio:max5m": "max_over_time(gputide:card:activity_ratio[5m])",
        "gputide:workload:activity_ratio:max5m": (
            f"max by ({WORKLOAD_LABELS}) (\n  max_over_time(gputide:slice:activity_ratio[5m])\n"
            f"  * on ({SLICE_KEY}) group_left (workload, workload_kind)\n"
            f"  max by ({SLICE_KEY}, workload, workload_kind) (gputide:slice:workload)\n)"
        ),
    }


def _state_rules(analyzer: AnalyzerSettings) -> dict[str, str]:
    window = f"[{analyzer.idle_seconds}s]"
    return {
        "gputide:card:tenants": (
            f"count by ({CARD_LABELS}) (\n"
            "  (gputide:card:framebuffer_used_bytes or on (card) gputide:card:activity_ratio) * 0\n"
            "  + on (card) group_right (cluster, node, card_model)\n"
            "  group by (namespace, pod, card) (gputide:slice:granted)\n)"
        ),
        "gputide:card:framebuffer_left_ratio": (
            "1 - gputide:card:framebuffer_used_bytes\n"
            "/ on (card) group_left () max by (card) (gputide:card:framebuffer_capacity_bytes)"
        ),
        "gputide:counter:distrusted": _distrusted(),
        "gputide:card:idle": (
            f"(max_over_time(gputide:card:activity_ratio:max5m{window}) <= {analyzer.idle_ratio_max:g})\n"
            f"and (count_over_time(gputide:card:activity_ratio:max5m{window})"
            f" >= {analyzer.idle_coverage_min * analyzer.idle_seconds / STEP_SECONDS:g})"
        ),
        "gputide:card:activity_ratio:p95_1d": "quantile_over_time(0.95, gputide:card:activity_ratio:max5m[1d])",
        "gputide:card:state": _state_of_cards(analyzer),
        "gputide:fleet:cards": "count by (cluster, card_model, state) (gputide:card:state)",
        "gputide:card:idle_held_bytes": (
            f"(gputide:card:framebuffer_used_bytes > {analyzer.idle_held_bytes_min})\nand on (card) gputide:card:idle\n"
            'and on (card) gputide:card:state{state="idle_held"}'
        ),
        "gputide:card:low_beside_high": _low_beside_high(analyzer),
        # A shared card counts for each of its tenants with its share of them.
        "gputide:namespace:cards": (
            "sum by (cluster, namespace, state) (\n"
            "  group by (cluster, namespace, pod, card) (gputide:slice:granted)\n"
            "  / on (card) group_left (state)\n"
            "  (max by (card) (gputide:card:tenants) * on (card) group_left (state)"
            " max by (card, state) (gputide:card:state))\n)"
        ),
        "gputide:namespace:quota": _quotas(),
    }


def _quotas() -> str:
    summed = "sum by (cluster, namespace, resource, type) ("
    own = (
        f'{summed}\n  label_replace({_by_namespace("gputide_quota_limit")}, "type", "hard", "", "")\n'
        f'  or label_replace({_by_namespace("gputide_quota_used")}, "type", "used", "", "")\n)'
    )
    of_kubernetes = _by_namespace('kube_resourcequota{resource=~".*(gpu|vgpu|cuda|nvidia).*"}')
    return either([own, f"{summed}{of_kubernetes})"], "cluster, namespace")


def _state_of_cards(analyzer: AnalyzerSettings) -> str:
    """One of the analyzer's five words per card; free can be told only where anybody's grants are known."""
    known = "gputide:card:activity_ratio"
    granted = "on (card) gputide:slice:granted"
    untrusted = "on (card) gputide:counter:distrusted"
    # Where no exporter says who holds what, a card without a holder is not free: nobody knows.
    anybody = "and on (cluster) group by (cluster) (gputide:slice:granted)"
    trusted = f"and {granted} unless {untrusted}"
    low = f"(gputide:card:activity_ratio:p95_1d <= {analyzer.low_use_ratio:g} and on (card) {known})"
    states = (
        ("free", f"({known} unless {granted} {anybody})"),
        ("untrusted", f"({known} and {granted} and {untrusted})"),
        ("idle_held", f"(gputide:card:idle {trusted})"),
        ("low_use", f"({low} {trusted} unless on (card) gputide:card:idle)"),
        ("busy", f"({known} {trusted})"),
    )
    named = [
        f'label_replace(group by ({CARD_LABELS}) {vector}, "state", "{state}", "", "")' for state, vector in states
    ]
    return either(named, "card")


def _distrusted() -> str:
    """Counters that failed a cross-check: gputide's, else those that PromQL can make by itself."""
    own = 'gputide_counter_trusted{check!=""} == 0'
    for part in ("namespace", "pod", "container", "node"):
        own = first_of(f"({own})" if part == "namespace" else own, part, f"exported_{part}", part)
    above_card = (
        "min_over_time(gputide:slice:duty_cycle_ratio[15m])\n"
        "> on (card) group_left () (max by (card) (max_over_time(gputide:card:duty_cycle_ratio[15m])) + 0.1)"
    )
    sum_above_card = (
        "sum by (card) (gputide:slice:framebuffer_used_bytes)\n"
        "> on (card) (max by (card) (gputide:card:framebuffer_used_bytes) * 1.05 + 67108864)"
    )
    as_card = f"gputide:card:framebuffer_used_bytes * 0 + on (card) group_left () ({sum_above_card})"
    estimates = (
        f"group by ({_CHECKED_LABELS}) (\n"
        f'label_replace(label_replace({above_card}, "check", "container_above_card", "", ""), '
        '"counter", "duty_cycle_ratio", "", "")\n'
        f'or label_replace(label_replace({as_card}, "check", "containers_above_card", "", ""), '
        '"counter", "framebuffer_used_bytes", "", "")\n)'
    )
    return either([f"group by ({_CHECKED_LABELS}) ({own})", estimates], "card, check")


def _low_beside_high(analyzer: AnalyzerSettings) -> str:
    """Activity of low priority on cards where high priority is at work too: it should have given way."""

    def at_work(priority: str, floor: float) -> str:
        return (
            f"max by (card) (gputide:slice:activity_ratio and on ({SLICE_KEY})"
            f' gputide:slice:priority{{priority="{priority}"}}) > {floor:g}'
        )

    return (
        f"(gputide:card:activity_ratio * 0 + on (card) group_left () ({at_work('low', 0.05)}))\n"
        f"and on (card) ({at_work('high', analyzer.low_use_ratio)})"
    )


def _promise_rules(analyzer: AnalyzerSettings) -> dict[str, str]:
    """The limit that holds for a workload in this hour; no series where nothing is promised."""
    steps = "gputide:workload:activity_ratio:max5m"
    limit = f"{analyzer.off_peak_ratio:g} * quantile_over_time(0.95, {steps}[7d])"
    weeks = "\nand ".join(
        f"(max_over_time({steps}[1h] offset {hours}h30m) <= {limit})" for hours in (7 * 24 - 1, 14 * 24 - 1)
    )
    own = "gputide_workload_off_peak_limit_ratio"
    for label in ("namespace", "workload"):
        own = first_of(own, label, f"exported_{label}", label)
    return {
        "gputide:workload:off_peak_limit_ratio": (
            f"max by ({WORKLOAD_LABELS}) ({own})\n"
            # Two weeks in which this hour stayed low are as good a promise as Prometheus alone can make.
            f"or (({limit}) and {weeks})\n"
            "  unless on (namespace, workload) gputide_workload_cards"
        )
    }


def _by_namespace(selector: str) -> str:
    return first_of(selector, "namespace", "exported_namespace", "namespace")
