"""The alerts: what a person should learn without looking at a dashboard.

Each stands on `gputide:…` names or on gputide's own processes; `needs` says who gives them, and becomes part of the
annotations, so that who gets an alert knows where it came from.
"""

from __future__ import annotations

from dashboards.grafana.rule import AlertRule, RuleGroup, Severity
from fleet.settings.settings import Settings

PROGRAM_XIDS = (13, 31, 43, 45, 68, 109)
"""Codes that a program causes and that leave the card healthy.

Source: NVIDIA/k8s-device-plugin:internal/rm/health.go, the codes that it does not take a card out of service for.
"""
TEMPERATURE_CELSIUS_MAX = 85
"""NVIDIA's data centre cards slow down at 85 to 92 degrees, by model."""
LAG_SECONDS_MAX = 900
"""Three windows of five minutes."""

_STALLED_SECONDS = {"relief": 300, "agent": 300, "tide": 7200}
"""Without a success for longer than this a process stalls; a step of the tide may wait an hour for services."""

_OF_CARD = "card {{ $labels.card }} on {{ $labels.node }}"
_ANY = "dcgm-exporter, HAMi or gputide run export node"


def alert_groups(settings: Settings) -> tuple[RuleGroup, ...]:
    """The groups: cards, services, gputide's own pipeline."""
    labels = {"product": "gputide"}
    return (
        RuleGroup(name="gputide-alerts-cards", interval="1m", rules=_cards(settings), labels=labels),
        RuleGroup(name="gputide-alerts-services", interval="1m", rules=_services(), labels=labels),
        RuleGroup(name="gputide-alerts-pipeline", interval="1m", rules=(*_pipeline(), *_processes()), labels=labels),
    )


def _cards(settings: Settings) -> tuple[AlertRule, ...]:
    codes = " or ".join(f"gputide:card:xid_last15m == {code}" for code in PROGRAM_XIDS)
    return (
        AlertRule(
            alert="GputideCardsIdleHeld",
            expression="count by (cluster, card_model) (gputide:card:idle_held_bytes)",
            hold="1h",
            severity=Severity.INFO,
            summary="{{ $value }} cards {{ $labels.card_model }} hold framebuffer and did nothing for "
            f"{settings.analyzer.idle_seconds / 3600:g} h",
            description="Pods hold these cards without using them. `gputide plan make` says which of them may be "
            "stopped, shared or scaled in, and at what risk.",
            needs=_ANY,
        ),
        AlertRule(
            alert="GputideFramebufferLow",
            expression=f"(gputide:card:framebuffer_left_ratio < {settings.low_priority.watermark_ratio:g})\n"
            "and on (card) (gputide:card:tenants > 1)",
            hold="5m",
            severity=Severity.WARNING,
            summary=f"{_OF_CARD} is shared and has {{{{ $value | humanizePercentage }}}} of its framebuffer left",
            description="The next allocation of any of its tenants may fail. Take low priority off the card, or lower "
            "the grants; the limit is low_priority.watermark_ratio.",
            needs=f"{_ANY}; the tenants of a card need pod labels (DCGM_EXPORTER_KUBERNETES), HAMi or "
            "gputide run export node",
        ),
        AlertRule(
            alert="GputideCardHot",
            expression=f"gputide:card:temperature_celsius > {TEMPERATURE_CELSIUS_MAX}",
            hold="10m",
            severity=Severity.WARNING,
            summary=f"{_OF_CARD} has {{{{ $value }}}} °C",
            description="Near the point where the driver slows the card down. Look at air flow and at neighbours.",
            needs=_ANY,
        ),
        AlertRule(
            alert="GputideCardXid",
            expression=f"gputide:card:xid_last15m unless on (card) ({codes})",
            hold="",
            severity=Severity.CRITICAL,
            summary=f"{_OF_CARD} reported XID {{{{ $value }}}}",
            description="The driver reports a fault of the card or its link: look the code up in NVIDIA's XID guide, "
            "move its pods and cordon the card.",
            needs="gputide run export node, or dcgm-exporter with DCGM_FI_DEV_XID_ERRORS",
        ),
        AlertRule(
            alert="GputideProgramXid",
            expression=codes,
            hold="",
            severity=Severity.INFO,
            summary=f"a program on {_OF_CARD} caused XID {{{{ $value }}}}",
            description="A program did what the card can't do (a bad address, an illegal instruction). The card is "
            "healthy; the pod's owner should look.",
            needs="gputide run export node, or dcgm-exporter with DCGM_FI_DEV_XID_ERRORS",
        ),
        AlertRule(
            alert="GputideCounterUntrusted",
            expression="count by (cluster, check, counter) (gputide:counter:distrusted)",
            hold="30m",
            severity=Severity.WARNING,
            summary="{{ $value }} series of {{ $labels.counter }} fail the cross-check {{ $labels.check }}",
            description="No advice is given on these pods while their counters contradict each other; the table of "
            "checks is in docs/metrics/checks.md.",
            needs="gputide run export node; two of the checks are also made from dcgm-exporter and HAMi together",
        ),
    )


def _services() -> tuple[AlertRule, ...]:
    workload = "{{ $labels.namespace }}/{{ $labels.workload }}"
    return (
        AlertRule(
            alert="GputideOffPeakPromiseBroken",
            expression="gputide:workload:activity_ratio:max5m\n"
            "> on (cluster, namespace, workload, workload_kind) gputide:workload:off_peak_limit_ratio",
            hold="15m",
            severity=Severity.WARNING,
            summary=f"{workload} is at {{{{ $value | humanizePercentage }}}} in an hour in which it is always low",
            description="Somebody else may run on its cards by that promise. Relief acts by itself where it is "
            "switched on; else give the cards back: `gputide undo`.",
            needs="gputide run export savings; else two weeks of gputide:workload:activity_ratio:max5m",
        ),
        AlertRule(
            alert="GputideLowPriorityBesideHigh",
            expression="gputide:card:low_beside_high",
            hold="10m",
            severity=Severity.WARNING,
            summary=f"low priority computes {{{{ $value | humanizePercentage }}}} of {_OF_CARD} beside busy high "
            "priority",
            description="Low priority should have given way: look whether the backend enforces priority there "
            "(`gputide admin probe`) and whether the node agent runs.",
            needs="priorities from HAMi's or gputide's grants, or from kube_pod_info's priority_class",
        ),
        AlertRule(
            alert="GputidePlanHarms",
            expression="gputide_plan_services_over_harm_budget > 0\n"
            'and on (cluster, plan_id) gputide_plan_info{state="applied"}',
            hold="",
            severity=Severity.CRITICAL,
            summary="services over their harm budget in plan {{ $labels.plan_id }}: {{ $value }}",
            description="`gputide verify` names the services; `gputide undo --plan {{ $labels.plan_id }}` takes the "
            "plan back.",
            needs="gputide run export savings, after gputide verify",
        ),
        AlertRule(
            alert="GputidePlanSavesLess",
            expression="gputide_plan_cards_realised < on (cluster, plan_id) 0.8 * gputide_plan_cards_expected\n"
            'and on (cluster, plan_id) gputide_plan_info{state="applied"}',
            hold="",
            severity=Severity.WARNING,
            summary="plan {{ $labels.plan_id }} keeps only {{ $value }} cards free, below what was applied",
            description="Cards were granted again or never freed: `gputide verify` says which.",
            needs="gputide run export savings, after gputide verify",
        ),
        AlertRule(
            alert="GputidePlanWaits",
            expression='gputide_plan_cards_promised and on (cluster, plan_id) gputide_plan_info{state="waiting"}',
            hold="4h",
            severity=Severity.INFO,
            summary="plan {{ $labels.plan_id }} would free {{ $value }} cards and waits for approval",
            description="Look at it on the page Plan, or `gputide plan show --plan {{ $labels.plan_id }}`.",
            needs="gputide run export savings",
        ),
    )


def _pipeline() -> tuple[AlertRule, ...]:
    refused = "\nor ".join(
        f'label_replace(rate(gputide_receiver_{name}_total[5m]), "reason", "{reason}", "", "")'
        for name, reason in (
            *((f"refused_{reason}", reason) for reason in ("full", "unavailable", "rate", "busy")),
            ("samples_beyond_series_max", "series"),
        )
    )
    return (
        AlertRule(
            alert="GputideWarehouseBehind",
            expression=f"(gputide_warehouse_data_age_seconds > {LAG_SECONDS_MAX})\n"
            "unless on (cluster) gputide_cluster_silent_since_timestamp_seconds",
            hold="10m",
            severity=Severity.WARNING,
            summary="the newest window of {{ $labels.cluster }} is {{ $value | humanizeDuration }} old",
            description="Look along the chain: exporters, Prometheus' remote write, `gputide run receive`, bus, "
            "`gputide run rollup`. No plan is applied from history that is older than guard.history_age_max_seconds.",
            needs="gputide run export savings",
        ),
        AlertRule(
            alert="GputideClusterSilent",
            expression="gputide_cluster_silent_since_timestamp_seconds",
            hold="10m",
            severity=Severity.CRITICAL,
            summary="cluster {{ $labels.cluster }} sends nothing since {{ $value | humanizeTimestamp }}",
            description="Its figures are the last ones that came, and no plan of it is applied once its history is "
            "older than guard.history_age_max_seconds. Look at its Prometheus, its network, its token or certificate.",
            needs="gputide run export savings",
        ),
        AlertRule(
            alert="GputideRemoteWriteBehind",
            expression="prometheus_remote_storage_highest_timestamp_in_seconds\n"
            "- on (instance) group_right ()\n"
            'prometheus_remote_storage_queue_highest_sent_timestamp_seconds{url=~".*/api/v1/write.*"}\n'
            f"> {LAG_SECONDS_MAX}",
            hold="10m",
            severity=Severity.WARNING,
            summary="Prometheus is {{ $value | humanizeDuration }} behind in sending to {{ $labels.url }}",
            description="The receiver refuses or is too slow, or the network between them is: look at the receiver's "
            "refusals and at Prometheus' log.",
            needs="Prometheus scraping itself",
        ),
        AlertRule(
            alert="GputideReceiverRefuses",
            expression=f"sum by (instance, reason) (\n{refused}\n) > 0",
            hold="10m",
            severity=Severity.WARNING,
            summary="the receiver {{ $labels.instance }} refuses bodies: {{ $labels.reason }}",
            description="full: the bus has no room (bus.bytes_max) or the roll-up stands; rate, busy: a sender sends "
            "more than its share; unavailable: storage fails. Senders try again, so nothing is lost yet. "
            "series: new series beyond receiver.series_max, whose samples are lost.",
            needs="gputide run receive",
        ),
        AlertRule(
            alert="GputideReceiverCorruptBodies",
            expression="rate(gputide_receiver_corrupt_bodies_total[15m]) > 0",
            hold="15m",
            severity=Severity.WARNING,
            summary="the receiver {{ $labels.instance }} gets bodies that it can't decode",
            description="Who sends them stands in its log; these samples are lost.",
            needs="gputide run receive",
        ),
        AlertRule(
            alert="GputideExporterStale",
            expression="gputide_exporter_data_age_seconds > 120",
            hold="5m",
            severity=Severity.WARNING,
            summary="the exporter {{ $labels.instance }} shows figures that are {{ $value | humanizeDuration }} old",
            description="A card or the driver hangs: `gputide doctor` on the node says which.",
            needs="gputide run export node",
        ),
    )


def _processes() -> tuple[AlertRule, ...]:
    stalled = "\nor ".join(
        f"(label_replace(time() - gputide_{process}_last_success_timestamp_seconds, "
        f'"process", "{process}", "", "") > {seconds})'
        for process, seconds in _STALLED_SECONDS.items()
    )
    return (
        AlertRule(
            alert="GputideRollupStalled",
            expression=f"time() - gputide_rollup_last_success_timestamp_seconds > {LAG_SECONDS_MAX}",
            hold="5m",
            severity=Severity.WARNING,
            summary="the roll-up {{ $labels.instance }} has taken nothing in for {{ $value | humanizeDuration }}",
            description="It runs and every step fails: gputide_rollup_step_failures_total and its log say why. Nothing "
            "is lost while the bus has room.",
            needs="gputide run rollup with exporter.own_listen",
        ),
        AlertRule(
            alert="GputideEnforcerStalled",
            expression=stalled,
            hold="5m",
            severity=Severity.WARNING,
            summary="{{ $labels.process }} at {{ $labels.instance }} has not succeeded for "
            "{{ $value | humanizeDuration }}",
            description="relief: overloaded cards stay overloaded. tide: services may stay scaled in after the night; "
            "`gputide run tide abort --yes` gives everything back. agent: low priority no longer gives way on its "
            "node. The process' log says why.",
            needs="gputide run relief, tide and agent with exporter.own_listen",
        ),
        AlertRule(
            alert="GputidePodsUnpinned",
            expression='increase(gputide_admission_reviews_total{result="unpinned"}[15m]) > 0',
            hold="",
            severity=Severity.WARNING,
            summary="{{ $value }} pods did not get their planned seats in 15 minutes",
            description="A planned card or node is lost, or the webhook can't read the cluster: its log and the pods' "
            "annotation gputide.io/unpinned say why. The pods run wherever a card fits.",
            needs="gputide run admission with exporter.own_listen",
        ),
    )
