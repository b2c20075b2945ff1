"""Recording rules that give each figure one name and one shape, whichever exporter gives it.

Everything else here (derived series, alerts, panels) reads `gputide:…` names only, so it works with gputide's exporter,
with dcgm-exporter and HAMi alone, and with a mixture.
"""

from __future__ import annotations

from dashboards.grafana.inventory import inventory_rules
from dashboards.grafana.rule import RuleGroup, recording
from dashboards.grafana.sources import (
    MIB,
    SLICE_KEY,
    SLICE_LABELS,
    dcgm_card,
    dcgm_card_sum,
    dcgm_slice,
    either,
    hami_card,
    hami_slice,
    own_card,
    own_slice,
    pod_names,
    priority_requests,
)
from fleet.schema import Measure
from fleet.server_series import (
    MESH_READINGS,
    OBJECTIVE_READINGS,
    SERVER_READINGS,
    reading_expression,
    recorded_name,
    servers_expression,
)

INTERVAL = "1m"
"""How often the figures are taken over."""
_PERCENT = 0.01


def normalised_groups() -> tuple[RuleGroup, ...]:
    """The groups, cards before slices before what servers do in pods."""
    return (
        RuleGroup(name="gputide-cards", interval=INTERVAL, rules=recording(_card_rules())),
        RuleGroup(name="gputide-slices", interval=INTERVAL, rules=recording(_slice_rules())),
        RuleGroup(name="gputide-inventory", interval=INTERVAL, rules=recording(inventory_rules())),
        RuleGroup(
            name="gputide-servers",
            interval=INTERVAL,
            rules=recording(
                {recorded_name(measure): _of_servers(measure) for measure in SERVER_READINGS}
                | {name: _of_objective(name) for name in OBJECTIVE_READINGS}
            ),
        ),
    )


def _card_rules() -> dict[str, str]:
    # Who else than gputide's exporter says it, in this order.
    others = {
        "duty_cycle_ratio": [
            dcgm_card("DCGM_FI_DEV_GPU_UTIL", _PERCENT),
            # Under MIG there is no GPU_UTIL: the busiest instance says whether anybody works on the card.
            dcgm_card('DCGM_FI_PROF_GR_ENGINE_ACTIVE{GPU_I_ID!=""}'),
            hami_card("hami_host_gpu_utilization_ratio", "HostCoreUtilization", _PERCENT),
        ],
        "sm_active_ratio": [dcgm_card("DCGM_FI_PROF_SM_ACTIVE")],
        "encoder_ratio": [dcgm_card("DCGM_FI_DEV_ENC_UTIL", _PERCENT)],
        "decoder_ratio": [dcgm_card("DCGM_FI_DEV_DEC_UTIL", _PERCENT)],
        "framebuffer_used_bytes": [
            dcgm_card_sum("DCGM_FI_DEV_FB_USED", MIB),
            hami_card("hami_host_gpu_memory_used_bytes", "HostGPUMemoryUsage"),
        ],
        "framebuffer_capacity_bytes": [
            dcgm_card_sum("DCGM_FI_DEV_FB_TOTAL", MIB),
            # default-counters.csv has neither FB_TOTAL nor the driver's reserve.
            _used_and("FB_FREE", "FB_RESERVED"),
            _used_and("FB_FREE"),
            # What HAMi may grant of the card: more than the card has where memory is oversubscribed.
            hami_card("hami_gpu_memory_limit_bytes", "GPUDeviceMemoryLimit"),
        ],
        "power_watts": [
            dcgm_card("DCGM_FI_DEV_POWER_USAGE"),
            hami_card("hami_host_gpu_power_usage_watts", "gputide_no_older_name"),
        ],
        "temperature_celsius": [
            dcgm_card("DCGM_FI_DEV_GPU_TEMP"),
            hami_card("hami_host_gpu_temperature_celsius", "gputide_no_older_name"),
        ],
    }
    return {
        **{
            f"gputide:card:{measure}": _card(own_card(f"gputide_card_{measure}"), *vectors)
            for measure, vectors in others.items()
        },
        # dcgm-exporter keeps the last code for ever and counts nothing: the same code twice is not seen there.
        "gputide:card:xid_last15m": _card(
            f"({own_card('gputide_card_last_xid')})\nand on (card)\n"
            f"(max by (card) (increase(gputide_card_xid_events_total[15m])) > 0)",
            f"({dcgm_card('DCGM_FI_DEV_XID_ERRORS')} > 0)\nand on (card)\n"
            f"({dcgm_card('changes(DCGM_FI_DEV_XID_ERRORS[15m])')} > 0)",
        ),
        # A card is at work when any of its engines is.
        "gputide:card:activity_ratio": (
            "max by (cluster, node, card, card_model) (\n"
            + "\nor\n".join(
                f'  label_replace(gputide:card:{measure}, "engine", "{measure}", "", "")'
                for measure in ("duty_cycle_ratio", "sm_active_ratio", "encoder_ratio", "decoder_ratio")
            )
            + "\n)"
        ),
    }


def _slice_rules() -> dict[str, str]:
    others = {
        "duty_cycle_ratio": [
            hami_slice("hami_container_device_utilization_ratio", "Device_utilization_desc_of_container", _PERCENT),
            dcgm_slice("DCGM_FI_DEV_GPU_UTIL", _PERCENT),
            dcgm_slice("DCGM_FI_PROF_GR_ENGINE_ACTIVE"),
        ],
        "sm_active_ratio": [dcgm_slice("DCGM_FI_PROF_SM_ACTIVE")],
        "framebuffer_used_bytes": [
            hami_slice("hami_vgpu_memory_used_bytes", "vGPU_device_memory_usage_in_bytes"),
            dcgm_slice("DCGM_FI_DEV_FB_USED", MIB),
        ],
        "framebuffer_granted_bytes": [
            hami_slice("hami_vgpu_memory_allocated_bytes", "vGPUMemoryAllocated"),
            hami_slice("hami_vgpu_memory_limit_bytes", "vGPU_device_memory_limit_in_bytes"),
        ],
        "compute_granted_ratio": [hami_slice("hami_vgpu_core_allocated_ratio", "vGPUCoreAllocated", _PERCENT)],
    }
    measured = ("framebuffer_granted_bytes", "framebuffer_used_bytes", "duty_cycle_ratio")
    granted = [own_slice("gputide_slice_info"), *(f"gputide:slice:{name}" for name in measured)]
    return {
        **{
            f"gputide:slice:{measure}": _slice(own_slice(f"gputide_slice_{measure}"), *vectors)
            for measure, vectors in others.items()
        },
        "gputide:slice:activity_ratio": (
            f"max by ({SLICE_LABELS}) (\n"
            '  label_replace(gputide:slice:duty_cycle_ratio, "engine", "duty_cycle", "", "")\n'
            'or\n  label_replace(gputide:slice:sm_active_ratio, "engine", "sm_active", "", "")\n)'
        ),
        "gputide:slice:granted": _slice(*(f"group by ({SLICE_LABELS}) ({vector})" for vector in granted)),
        "gputide:slice:workload": _workload_of_slices(),
        "gputide:slice:priority": _priority_of_slices(),
    }


def _of_servers(measure: Measure) -> str:
    """What servers say themselves, and of pods on cards that say nothing what Istio's proxy counts there."""
    vectors = [servers_expression(measure) or ""]
    if measure in MESH_READINGS:
        mesh = "\nor\n".join(map(reading_expression, MESH_READINGS[measure]))
        vectors.append(f"({mesh})\nand on (cluster, namespace, pod)\ngputide:slice:granted")
    return "\nor\n".join(vectors)


def _of_objective(name: str) -> str:
    return "\nor\n".join(map(reading_expression, OBJECTIVE_READINGS[name]))


def _workload_of_slices() -> str:
    """Who a slice works for: gputide's word, else the pod's owner by kube-state-metrics, else the pod itself.

    The ReplicaSet of a Deployment is called DEPLOYMENT-HASH.
    """
    owner = pod_names('kube_pod_owner{owner_kind!="", owner_kind!="<none>"}')
    named = f'label_join({owner}, "gputide_owner", "/", "owner_kind", "owner_name")'
    for label, pattern in (
        ("workload", "[^/]+/(.+)"),
        ("workload_kind", "([^/]+)/.+"),
        ("workload", "ReplicaSet/(.+)-[a-z0-9]+"),
    ):
        named = f'label_replace({named}, "{label}", "$1", "gputide_owner", "{pattern}")'
    named = f'label_replace({named}, "workload_kind", "Deployment", "gputide_owner", "ReplicaSet/.+-[a-z0-9]+")'
    owners = (
        f"topk by (cluster, namespace, pod) (1, group by (cluster, namespace, pod, workload, workload_kind) ({named}))"
    )
    return either(
        [
            own_slice('gputide_slice_info{workload!=""}', ", workload, workload_kind"),
            f"gputide:slice:granted * on (cluster, namespace, pod) group_left (workload, workload_kind)\n({owners})",
            (
                'label_replace(label_replace(gputide:slice:granted, "workload", "$1", "pod", "(.+)"), '
                '"workload_kind", "Pod", "", "")'
            ),
        ],
        SLICE_KEY,
    )


def _priority_of_slices() -> str:
    """High or low, where anybody says so: the grant, HAMi's library (0 is high), else the pod's priority class.

    Classes are named by each company; those that say it in their name are understood.
    """
    told = own_slice('gputide_slice_info{priority=~"high|low"}', ", priority")
    by_request = f"group by (cluster, namespace, pod, container, priority) ({priority_requests()})"
    classes = " or ".join(
        f'label_replace({pod_names(_of_class(pattern))}, "priority", "{word}", "", "")'
        for word, pattern in (
            ("low", "(?i).*(low|batch|preempt|best-?effort|spot|offline).*"),
            ("high", "(?i).*(high|critical|online|latency).*"),
        )
    )
    by_class = f"topk by (cluster, namespace, pod) (1, group by (cluster, namespace, pod, priority) ({classes}))"
    return either(
        [
            told,
            f"gputide:slice:granted * on (cluster, namespace, pod, container) group_left (priority)\n({by_request})",
            f"gputide:slice:granted * on (cluster, namespace, pod) group_left (priority)\n({by_class})",
        ],
        SLICE_KEY,
    )


def _of_class(pattern: str) -> str:
    return f'kube_pod_info{{priority_class=~"{pattern}"}}'


def _used_and(*parts: str) -> str:
    return "\n".join(
        [
            f"({dcgm_card_sum('DCGM_FI_DEV_FB_USED', MIB)})",
            *(
                f"+ on (card) group_left ()\nsum by (card) ({dcgm_card_sum(f'DCGM_FI_DEV_{part}', MIB)})"
                for part in parts
            ),
        ]
    )


def _card(*vectors: str) -> str:
    return either(vectors, "card")


def _slice(*vectors: str) -> str:
    return either(vectors, SLICE_KEY)
