"""The same figure from whichever exporter gives it, as PromQL: gputide's own, dcgm-exporter's, HAMi's (both namings).

Every recording rule of `normalised` is made of these. Sources stand in the order of trust; a later one fills in cards
or slices that no earlier one speaks of (`or on (card)`), so that a card with two exporters counts once. Labels come out
as gputide writes them: `cluster`, `node`, `card`, `card_model`, and of a slice `namespace`, `pod`, `container`.

Which label a source writes a part of an identity into, and in which unit, is what `fleet.series` says (its sources
stand there); where Prometheus renamed a label of the source to `exported_…` that one is meant.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.series import PRIORITY_REQUEST

CARD_LABELS = "cluster, node, card, card_model"
"""What a normalised series of a card is distinguished by."""
SLICE_LABELS = "cluster, namespace, pod, container, node, card, card_model"
"""What a normalised series of a slice is distinguished by."""
SLICE_KEY = "namespace, pod, container, card"
"""What two sources agree on about a slice; UUIDs of cards are unique beyond clusters."""
MIB = 1024 * 1024

_EXPORTER_PODS = "(nvidia-)?dcgm-exporter.*"
_OWN_NODE = ("exported_node", "node")
_DCGM_NODE = ("node", "kubernetes_node", "Hostname", "hostname")
_HAMI_OLD_NODE = ("nodeid", "nodename", "exported_node", "node", "kubernetes_node")
_DCGM_PARTS = (
    ("namespace", ("exported_namespace", "pod_namespace", "namespace")),
    ("pod", ("exported_pod", "pod_name", "pod")),
    ("container", ("exported_container", "container_name", "container")),
)
_SLICE_PARTS = ("namespace", "pod", "container")


def first_of(vector: str, label: str, *sources: str) -> str:
    """The vector with `label` set from the first of its labels `sources` that is not empty.

    PromQL has no conditional, so the labels are joined and the first text that is no separator is taken.
    """
    if len(sources) == 1:
        return f'label_replace({vector}, "{label}", "$1", "{sources[0]}", "(.+)")'
    named = ", ".join(f'"{source}"' for source in sources)
    return (
        f'label_replace(label_join({vector}, "gputide_first", ";", {named}), '
        f'"{label}", "$1", "gputide_first", ";*([^;]+).*")'
    )


def either(vectors: Sequence[str], key: str) -> str:
    """The first vector, and of each later one what none before it speaks of, by the labels of `key`."""
    return f"\nor on ({key})\n".join(vectors)


def own_card(name: str) -> str:
    """A figure of gputide's exporters by card."""
    return f"max by ({CARD_LABELS}) ({first_of(name, 'node', *_OWN_NODE)})"


def dcgm_card(selector: str, factor: float = 1.0) -> str:
    """A figure of dcgm-exporter by card: the largest over the pods and MIG instances that share it."""
    return f"max by ({CARD_LABELS}) ({_dcgm_names(selector)}){_times(factor)}"


def dcgm_card_sum(name: str, factor: float = 1.0) -> str:
    """An amount of dcgm-exporter by card: summed over MIG instances, and over pods in its per-process mode only.

    Without that mode every pod of a shared card repeats the card's own figure, and the largest is the one.
    """
    per_process = f'{name}{{vgpu!="", pod_uid!=""}}'
    whole = f"max by ({CARD_LABELS}, GPU_I_ID) ({_dcgm_names(name)})"
    return either(
        [
            f"sum by ({CARD_LABELS}) ({_dcgm_names(per_process)}){_times(factor)}",
            f"sum by ({CARD_LABELS}) ({whole}){_times(factor)}",
        ],
        "card",
    )


def hami_card(name: str, old_name: str, factor: float = 1.0) -> str:
    """A figure of HAMi's monitor or scheduler by card, under its names from v2.9 on or the older ones."""
    new = first_of(first_of(_hami_model(name, "device_type"), "node", *_OWN_NODE), "card", "device_uuid")
    old = first_of(first_of(_hami_model(old_name, "devicetype"), "node", *_HAMI_OLD_NODE), "card", "deviceuuid")
    return either(
        [f"max by ({CARD_LABELS}) ({new}){_times(factor)}", f"max by ({CARD_LABELS}) ({old}){_times(factor)}"], "card"
    )


def own_slice(selector: str, more_labels: str = "") -> str:
    """A figure of gputide's exporters by slice; `more_labels` are kept beside the slice's own."""
    vector = first_of(selector, "node", *_OWN_NODE)
    for part in _SLICE_PARTS:
        vector = first_of(vector, part, f"exported_{part}", part)
    return f"max by ({SLICE_LABELS}{more_labels}) ({vector})"


def dcgm_slice(name: str, factor: float = 1.0, more_labels: str = "") -> str:
    """A figure of dcgm-exporter by slice: of pods that hold a card or MIG instance alone, or in its per-process mode.

    A pod label that names the exporter itself was added by the scrape; `more_labels` are kept beside the slice's own.
    """
    alone = 'vgpu="",exported_pod="",pod_name=""'
    parts = (
        f'{name}{{vgpu="", exported_pod!=""}}',
        f'{name}{{vgpu="", exported_pod="", pod_name!=""}}',
        f'{name}{{{alone}, pod!~"|{_EXPORTER_PODS}"}}',
        f'{name}{{vgpu!="", pod_uid!=""}}',
    )
    vectors = []
    for selector in parts:
        vector = _dcgm_names(selector)
        for part, labels in _DCGM_PARTS:
            vector = first_of(vector, part, *labels)
        vectors.append(f"max by ({SLICE_LABELS}{more_labels}) ({vector}){_times(factor)}")
    return either(vectors, SLICE_KEY)


def hami_slice(name: str, old_name: str, factor: float = 1.0) -> str:
    """A figure of HAMi's monitor or scheduler by slice, under its names from v2.9 on or the older ones."""
    new = first_of(first_of(_hami_model(name, "device_type"), "node", *_OWN_NODE), "card", "device_uuid")
    for part in _SLICE_PARTS:
        new = first_of(new, part, f"exported_{part}", part)
    old = first_of(first_of(_hami_model(old_name, "devicetype"), "node", *_HAMI_OLD_NODE), "card", "deviceuuid")
    for part, label in zip(_SLICE_PARTS, ("podnamespace", "podname", "ctrname"), strict=True):
        old = first_of(old, part, label)
    return either(
        [f"max by ({SLICE_LABELS}) ({new}){_times(factor)}", f"max by ({SLICE_LABELS}) ({old}){_times(factor)}"],
        SLICE_KEY,
    )


def pod_names(selector: str) -> str:
    """Series of kube-state-metrics with `namespace` and `pod` of whom they speak of."""
    return first_of(first_of(selector, "namespace", "exported_namespace", "namespace"), "pod", "exported_pod", "pod")


def container_names(selector: str) -> str:
    """The same with `container` beside them."""
    return first_of(pod_names(selector), "container", "exported_container", "container")


def priority_requests() -> str:
    """What containers say of their priority in HAMi's resource: 0 is high, every other number low."""
    asked = container_names(f'kube_pod_container_resource_requests{{resource="{PRIORITY_REQUEST}"}}')
    return (
        f'label_replace({asked} == 0, "priority", "high", "", "")\n'
        f'or label_replace({asked} > 0, "priority", "low", "", "")'
    )


def _dcgm_names(selector: str) -> str:
    vector = first_of(selector, "node", *_DCGM_NODE)
    vector = first_of(vector, "card", "UUID")
    return first_of(vector, "card_model", "modelName")


def _hami_model(name: str, label: str) -> str:
    """HAMi writes the vendor before the model: `NVIDIA-NVIDIA A10`."""
    return f'label_replace({name}, "card_model", "$1", "{label}", "(?:NVIDIA-)?(.+)")'


def _times(factor: float) -> str:
    return "" if factor == 1.0 else f" * {factor:g}" if factor < 1 else f" * {factor:.0f}"
