"""Recording rules that say who holds which card, as the series from which the receiver makes the inventory.

They make of dcgm-exporter, HAMi and kube-state-metrics what gputide's own exporters say in `gputide_card_info`,
`gputide_slice_info` and `gputide_node_info`, with labels of the same names (`fleet.schema`), so that a Prometheus that
sends them needs none of these exporters. Where one of them speaks of a card or node itself, the rule is silent. A
container that dcgm-exporter names on a card holds all of it, or its MIG instance. What a pod's own labels, image and
requests say is joined by its own name and speaks for no other pod.
"""

from __future__ import annotations

from dashboards.grafana.sources import (
    CARD_LABELS,
    SLICE_KEY,
    container_names,
    dcgm_card,
    dcgm_slice,
    first_of,
    pod_names,
    priority_requests,
)
from fleet.grammars.kai import RESERVATION_NAMESPACES
from fleet.inventory import READ_LABELS
from fleet.series import RECORDED_CARD_INFO, RECORDED_NODE_INFO, RECORDED_SLICE_INFO, kube_label

_POD = "cluster, namespace, pod"
_CONTAINER = f"{_POD}, container"
_NODE = "cluster, node"
# A gap in an exporter's scrapes is no reason to speak in its place, nor a moment at which two counters disagree one for
# another size.
_SILENT_AFTER = "1h"
_CARD_BYTES = f"round(quantile_over_time(0.5, gputide:card:framebuffer_capacity_bytes[{_SILENT_AFTER}]))"


def inventory_rules() -> dict[str, str]:
    """Cards, slices and nodes; they build on what `normalised` records before them."""
    return {RECORDED_CARD_INFO: _cards(), RECORDED_SLICE_INFO: _slices(), RECORDED_NODE_INFO: _nodes()}


def _cards() -> str:
    under_mig = dcgm_card('DCGM_FI_DEV_FB_USED{GPU_I_ID!=""}')
    return _with(
        "card",
        f'count_values by ({CARD_LABELS}) ("framebuffer_bytes", {_CARD_BYTES})',
        "gputide:card:framebuffer_capacity_bytes",
        [("card", "mig_mode", f'label_replace({under_mig}, "mig_mode", "true", "", "")')],
        unless=f"card) last_over_time(gputide_card_info[{_SILENT_AFTER}]",
    )


def _slices() -> str:
    def value(by: str, label: str, vector: str) -> tuple[str, str, str]:
        return by, label, f'count_values by ({by}) ("{label}", {vector})'

    def request(label: str, resource: str) -> tuple[str, str, str]:
        return value(
            _CONTAINER, label, container_names(f'kube_pod_container_resource_requests{{resource="{resource}"}}')
        )

    images = container_names('kube_pod_container_info{image_spec!=""}')
    instances = dcgm_slice("DCGM_FI_DEV_FB_USED", more_labels=", GPU_I_PROFILE")
    reserved = "|".join(sorted(RESERVATION_NAMESPACES))
    return _with(
        SLICE_KEY,
        f'gputide:slice:granted{{namespace!~"{reserved}"}} and on (card) gputide:card:framebuffer_capacity_bytes',
        "gputide:slice:granted",
        [
            (SLICE_KEY, "workload, workload_kind", "gputide:slice:workload"),
            value("card", "framebuffer_bytes", _CARD_BYTES),
            # Zero is HAMi's word for all of it.
            value(SLICE_KEY, "framebuffer_granted_bytes", "(gputide:slice:framebuffer_granted_bytes > 0)"),
            value(SLICE_KEY, "compute_granted_ratio", "(gputide:slice:compute_granted_ratio > 0 <= 1)"),
            (SLICE_KEY, "mig_profile", first_of(instances, "mig_profile", "GPU_I_PROFILE")),
            (_CONTAINER, "priority", priority_requests()),
            (_CONTAINER, "server", first_of(images, "server", "image_spec")),
            request("cpu_request_cores", "cpu"),
            request("memory_request_bytes", "memory"),
            (_POD, "labels", _labels_of_pods()),
            value(_POD, "started_at", f"({pod_names('kube_pod_created')} > 0)"),
        ],
        unless=f"card) last_over_time(gputide_slice_info[{_SILENT_AFTER}]",
    )


def _nodes() -> str:
    def allocatable(label: str, resource: str) -> tuple[str, str, str]:
        amount = first_of(f'kube_node_status_allocatable{{resource="{resource}"}}', "node", "exported_node", "node")
        return _NODE, label, f'count_values by ({_NODE}) ("{label}", {amount})'

    said = first_of('kube_node_info{provider_id!=""}', "node", "exported_node", "node")
    return _with(
        _NODE,
        f"group by ({_NODE}) (gputide:card:framebuffer_capacity_bytes)",
        "gputide:card:framebuffer_capacity_bytes",
        [
            allocatable("cpu_cores", "cpu"),
            allocatable("memory_bytes", "memory"),
            (_NODE, "provider_id", said),
        ],
        unless=f"{_NODE}) last_over_time(gputide_node_info[{_SILENT_AFTER}]",
    )


def _with(key: str, vector: str, everybody: str, facts: list[tuple[str, str, str]], *, unless: str) -> str:
    """A vector with labels from others where they have any: of two that name one thing twice, one counts.

    Args:
        everybody: a vector that has all of it, for those of whom the others say nothing.
        facts: by which labels to join, which labels to take, and the vector that has them.
        unless: labels and vector of what is left out, without the parentheses around them.
    """
    vector = f"topk by ({key}) (1, {vector})"
    for by, labels, fact in facts:
        one = f"topk by ({by}) (1, group by ({by}, {labels}) ({fact}))"
        vector += f"\n* on ({by}) group_left ({labels})\n({one} or on ({by}) group by ({by}) ({everybody}))"
    return f"group without () ({vector})\nunless on ({unless})"


def _labels_of_pods() -> str:
    """What of `READ_LABELS` is set on a pod, as a JSON object in the label `labels`."""
    vector = pod_names("kube_pod_labels")
    parts = [f"gputide_label_{number}" for number in range(len(READ_LABELS))]
    for part, label in zip(parts, READ_LABELS, strict=True):
        vector = (
            f"""label_replace({vector}, "{part}", '"{label}":"$1",', """
            f'"{kube_label("label_", label)}", "([-A-Za-z0-9_.]{{1,63}})")'
        )
    joined = ", ".join(f'"{part}"' for part in parts)
    vector = f'label_join({vector}, "gputide_said", "", {joined})'
    return f'label_replace({vector}, "labels", "{{$1}}", "gputide_said", "(.+),")'
