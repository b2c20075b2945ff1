"""A fleet as Prometheus scrapes it, and what a tenant's own pod exports to mislead whoever reads the same Prometheus.

The honest fleet is that of `bench.scanned_prometheus`, seen by dcgm-exporter and kube-state-metrics (what a scan reads)
or by gputide's exporter (what the receiver takes). A tenant writes whatever metrics it likes; what its target is called
it can't write, and where both say the same label Prometheus renames the tenant's (`honor_labels: false`). Four ways in
which tenants are scraped, and the forgeries of each reader.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.scanned_prometheus import FRAMEBUFFER_MIB, MODEL, ScannedFleet
from fleet.inventory import OPT_OUT_LABEL
from fleet.units import MIB
from pipeline.remote_write.decode import Version
from pipeline.remote_write.encode import LabelSets

STEP_MS = 60_000
_POINTS_PER_BODY = 20_000
_INTRUDER, _POD = "intruders", "web-0"
_BY_SERVICE = "Service called as an exporter"
_ADDRESS = {"instance": "10.9.0.7:8080"}
WAYS: Mapping[str, Mapping[str, str]] = {
    "PodMonitor": {"namespace": _INTRUDER, "pod": _POD, "endpoint": "metrics", "job": f"{_INTRUDER}/web", **_ADDRESS},
    "annotations": {"namespace": _INTRUDER, "pod": _POD, "job": "kubernetes-pods", **_ADDRESS},
    "old annotations": {
        "kubernetes_namespace": _INTRUDER, "kubernetes_pod_name": _POD, "job": "kubernetes-pods", **_ADDRESS,
    },
    _BY_SERVICE: {
        "namespace": _INTRUDER, "pod": _POD, "service": "kube-state-metrics", "endpoint": "http",
        "job": "kube-state-metrics", **_ADDRESS,
    },
}  # fmt: skip
"""Labels that Prometheus attaches to a tenant's target, by how it is scraped."""
OWN_POD = "own pod on others' cards"
"""The one aim for which a receiver can't tell a job's forged name: `docs/security.md` names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series.

    Attributes:
        values: one a step, shape (steps,).
    """

    labels: Mapping[str, str]
    values: NDArray[np.float64]


def times_ms(fleet: ScannedFleet) -> NDArray[np.int64]:
    """Ends of the steps of the fleet's history."""
    return np.arange(fleet.since_ms + STEP_MS, fleet.until_ms + 1, STEP_MS, dtype=np.int64)


def scraped(exposed: Mapping[str, str], target: Mapping[str, str]) -> dict[str, str]:
    """Labels as Prometheus stores them under `honor_labels: false`."""
    found = dict(exposed)
    for name in target:
        if name in exposed:
            renamed = f"exported_{name}"
            while renamed in exposed:
                renamed = f"exported_{renamed}"
            found[renamed] = found.pop(name)
    return {**found, **target}


def stored(exposed: Mapping[str, str], target: Mapping[str, str], is_honoured: bool) -> dict[str, str]:
    """Labels as Prometheus stores them."""
    return {**target, **exposed} if is_honoured else scraped(exposed, target)


def as_scanned(fleet: ScannedFleet) -> list[Series]:
    """What dcgm-exporter and kube-state-metrics write, the latter scraped with `honor_labels: true`."""
    exporter = {
        "namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-x2x4z", "container": "exporter",
        "endpoint": "gpu-metrics", "job": "nvidia-dcgm-exporter", "instance": "10.0.0.7:9400",
    }  # fmt: skip
    state = {"endpoint": "http", "job": "kube-state-metrics", "instance": "10.0.0.9:8080", "container": "main"}
    times = times_ms(fleet)
    targets = [{"__name__": "up", **exporter}, {"__name__": "up", **state, "namespace": "monitoring", "pod": "ksm-0"}]
    cards = [scraped({k: v for k, v in one.items() if k != "job"}, exporter) for one in fleet.usage_labels()]
    facts = [{**one, **state} for one in fleet.fact_labels()]
    asked = [
        {"__name__": "kube_pod_container_resource_requests", "namespace": "team", "pod": fleet.pod(card),
         "resource": "nvidia_com_gpu", "node": fleet.node(card), **state}
        for card in fleet.held()
    ]  # fmt: skip
    return [
        *_all(cards, fleet.usage(times)),
        *_all(facts, np.repeat(fleet.facts()[:, np.newaxis], len(times), axis=1)),
        *_all([*asked, *targets], np.ones((len(asked) + len(targets), len(times)))),
    ]


def as_received(fleet: ScannedFleet, *, is_honoured: bool = True) -> list[Series]:
    """What gputide's exporter writes, scraped by the chart's PodMonitor (`honorLabels: true`), or by one without."""
    times = times_ms(fleet)
    duty, sm, used, _ = np.split(fleet.usage(times), 4)
    ones = np.ones(len(times))
    found = []
    for card in range(fleet.cards):
        target = {
            "namespace": "gputide", "pod": f"gputide-exporter-{fleet.node(card)}", "endpoint": "metrics",
            "container": "exporter", "job": "gputide/gputide-exporter", "instance": f"10.0.1.{card // 8}:9400",
        }  # fmt: skip
        place = {"node": fleet.node(card), "card": f"GPU-{card:08d}", "card_model": MODEL}
        whole = {**place, "framebuffer_bytes": str(FRAMEBUFFER_MIB * MIB)}
        found.append(
            Series(labels=stored({**whole, "__name__": "gputide_card_info"}, target, is_honoured), values=ones)
        )
        if card % 8 == 0:
            node = {"__name__": "gputide_node_info", "node": fleet.node(card)}
            found.append(Series(labels=stored(node, target, is_honoured), values=ones))
        of = [("card", place)]
        if card in fleet.held():
            slice_ = {**place, "namespace": "team", "pod": fleet.pod(card), "container": "main"}
            found.append(Series(labels=stored({**slice_, **granted(fleet, card)}, target, is_honoured), values=ones))
            of.append(("slice", slice_))
        for subject, labels in of:
            for measure, values in (
                ("duty_cycle_ratio", duty[card] / 100),
                ("sm_active_ratio", sm[card]),
                ("framebuffer_used_bytes", used[card] * MIB),
            ):
                found.append(
                    Series(
                        labels=stored({**labels, "__name__": f"gputide_{subject}_{measure}"}, target, is_honoured),
                        values=values,
                    )
                )
    return found


def granted(fleet: ScannedFleet, card: int, **more: str) -> dict[str, str]:
    """`gputide_slice_info` of the pod on a card."""
    return {
        "__name__": "gputide_slice_info", "node": fleet.node(card), "card": f"GPU-{card:08d}", "card_model": MODEL,
        "namespace": "team", "pod": fleet.pod(card), "container": "main", "workload": f"svc-{card:05d}",
        "workload_kind": "Deployment", "framebuffer_bytes": str(FRAMEBUFFER_MIB * MIB), "priority": "normal",
        "compute_granted_ratio": "1", "started_at": "2023-11-01T00:00:00Z", **more,
    }  # fmt: skip


def forgeries(fleet: ScannedFleet, *, is_scan: bool) -> dict[str, list[Series]]:
    """What a tenant writes to mislead, by what it wants; as each of `WAYS` stores it."""
    exposed = _to_scan(fleet) if is_scan else _to_receive(fleet)
    ones = np.ones(len(times_ms(fleet)))
    return {
        aim: [
            Series(labels=scraped(labels, {**target, "way": way.replace(" ", "-")}), values=ones * value)
            for way, target in WAYS.items()
            for labels, value in (*one, *([({"__name__": "up"}, 1.0)] if is_scan else []))
            if is_scan or (way, aim) != (_BY_SERVICE, OWN_POD)
        ]
        for aim, one in exposed.items()
    }


def bodies(series: Sequence[Series], times: NDArray[np.int64]) -> list[bytes]:
    """Remote-write bodies (version 1) of all series, in order of time."""
    sets = LabelSets([dict(one.labels) for one in series])
    values = np.array([one.values for one in series])
    steps = max(1, _POINTS_PER_BODY // len(series))
    found = []
    for first in range(0, len(times), steps):
        part = times[first : first + steps]
        numbers = np.repeat(np.arange(len(series), dtype=np.int64), len(part))
        sent = values[:, first : first + steps].ravel()
        found.append(sets.encode(Version.V1, numbers, np.tile(part, len(series)), sent))
    return found


_Exposed = dict[str, list[tuple[dict[str, str], float]]]


def _to_scan(fleet: ScannedFleet) -> _Exposed:
    victims = [(card, {"namespace": "team", "pod": fleet.pod(card), "container": "main"}) for card in fleet.held()]

    def dcgm(card: int, name: str, **of: str) -> dict[str, str]:
        return {
            "__name__": name, "UUID": f"GPU-{card:08d}", "modelName": MODEL, "Hostname": fleet.node(card), **of,
        }  # fmt: skip

    opted = "label_" + "".join(letter if letter.isalnum() else "_" for letter in OPT_OUT_LABEL)
    priority = {"__name__": "kube_pod_container_resource_requests", "resource": "nvidia_com_priority"}
    return {
        "opt-outs": [({"__name__": "kube_pod_labels", **pod, opted: "true"}, 1.0) for _, pod in victims],
        "priorities": [({**priority, **pod}, 0.0) for _, pod in victims],
        "idle services hidden": [
            *((dcgm(card, "DCGM_FI_DEV_GPU_UTIL", **pod), 90.0) for card, pod in victims),
            *((dcgm(card, "DCGM_FI_PROF_SM_ACTIVE", **pod), 0.9) for card, pod in victims),
        ],
        "phantom workloads": [
            (dcgm(card, "DCGM_FI_DEV_GPU_UTIL", **pod), 90.0)
            for card in range(fleet.cards)
            for pod in ({"namespace": "team", "pod": f"phantom-{card}", "container": "main"},)
        ],
        OWN_POD: [(dcgm(card, "DCGM_FI_DEV_GPU_UTIL"), 90.0) for card in range(fleet.cards)],
        "units": [(dcgm(999, "DCGM_FI_PROF_SM_ACTIVE", namespace="team", pod="phantom"), 77.0)],
    }


def _to_receive(fleet: ScannedFleet) -> _Exposed:
    held = fleet.held()
    idle = [card for card in range(fleet.cards) if card not in held]
    labels = json.dumps({OPT_OUT_LABEL: "true"})

    def used(card: int, **pod: str) -> list[tuple[dict[str, str], float]]:
        place = {"node": fleet.node(card), "card": f"GPU-{card:08d}", "card_model": MODEL, **pod}
        return [
            ({"__name__": f"gputide_slice_{measure}", **place}, 0.9)
            for measure in ("sm_active_ratio", "duty_cycle_ratio")
        ]

    def phantom(card: int) -> dict[str, str]:
        return {"namespace": "team", "pod": f"phantom-{card}", "container": "main"}

    own = [
        {k: v for k, v in granted(fleet, card).items() if k not in ("namespace", "pod")} for card in range(fleet.cards)
    ]
    return {
        "opt-outs": [(granted(fleet, card, labels=labels), 1.0) for card in held],
        "priorities": [(granted(fleet, card, priority="high"), 1.0) for card in held],
        "idle services hidden": [
            one for card in held for one in used(card, namespace="team", pod=fleet.pod(card), container="main")
        ],
        "phantom workloads": [
            one
            for card in (*idle, *held)
            for one in ((granted(fleet, card, workload="phantom", **phantom(card)), 1.0), *used(card, **phantom(card)))
        ],
        OWN_POD: [one for card, info in enumerate(own) for one in ((info, 1.0), *used(card))],
    }


def _all(sets: Sequence[Mapping[str, str]], values: NDArray[np.float64]) -> list[Series]:
    return [Series(labels=labels, values=row) for labels, row in zip(sets, values, strict=True)]
