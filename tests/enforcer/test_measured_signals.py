"""Metrics of a change: a broken objective, a sick card or a full grant takes it back; no answer keeps it open."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from enforcer.cluster import FieldChange
from enforcer.latency_objectives import OBJECTIVES
from enforcer.record.journal import StageState
from enforcer.relief.demand_feed import PromisedObjectives
from enforcer.rollout.watch import (
    FRAMEBUFFER,
    XID,
    ClusterSignals,
    MeasuredSignals,
    PodHealth,
    WatchPolicy,
    complaints,
)
from enforcer.simulated.cluster import SimulatedCluster
from enforcer.trusted_series import SeriesQuestion, TrustedSeries
from fleet.errors import Unavailable
from fleet.provenance import JUDGED_LABELS, Provenance
from tests.enforcer.builders import HOLD_SECONDS, a_cluster, a_rollout, a_yes, card_id, some_tools, standard_plan
from wire.prometheus_query import Sample

OWN_XID, DCGM_XID = (question.query for question in XID)
OWN_FILLED, HAMI_FILLED, _ = (question.query for question in FRAMEBUFFER)
SLO = "histogram_quantile(0.99, rate(latency_bucket[1m])) > 0.5"
PODS = ("team/a-0", "team/a-1", "ads/x-0")


class Metrics:
    """Answers from memory."""

    def __init__(self, answers: Mapping[str, Sequence[tuple[Mapping[str, str], float]]] | None = None) -> None:
        self.answers = dict(answers or {})
        self.is_away = False

    def vector(self, query: str) -> tuple[Sample, ...]:
        if self.is_away:
            raise Unavailable("cannot ask")
        return tuple(Sample(labels=labels, value=value) for labels, value in self.answers.get(query, ()))


class Cluster:
    """Pods that are well."""

    def health(self, pods: Sequence[str]) -> tuple[PodHealth, ...]:
        return tuple(
            PodHealth(pod_id=pod, is_ready=True, restarts=0, is_oom_killed=False, cards=(f"GPU-{number}",))
            for number, pod in enumerate(pods)
        )


def said(answers: Mapping[str, Sequence[tuple[Mapping[str, str], float]]]) -> dict[str, list[str]]:
    health = MeasuredSignals(Cluster(), Metrics(answers), (SLO,)).health(PODS)
    found = complaints(health, PODS, WatchPolicy())
    return {pod: [str(entry) for entry in found if str(entry).startswith(pod)] for pod in PODS}


@pytest.mark.parametrize(
    ("labels", "pods"),
    [
        ({"namespace": "team", "pod": "a-1"}, {"team/a-1"}),
        ({"namespace": "team", "service": "web"}, {"team/a-0", "team/a-1"}),
        ({"service": "web"}, set(PODS)),
        ({"namespace": "other"}, set()),
        ({"namespace": "ads", "pod": "a-1"}, set()),
    ],
)
def test_broken_objective_speaks_of_those_whom_its_labels_name(labels: dict[str, str], pods: set[str]) -> None:
    found = said({SLO: [(labels, 0.73)]})
    assert {pod for pod, entries in found.items() if entries} == pods
    assert all(f"(0.73): {SLO}" in entry for entries in found.values() for entry in entries)


def query_of(label: str) -> str:
    return SeriesQuestion(name=OBJECTIVES[label], expression=OBJECTIVES[label]).query


LATENCY_QUERY = query_of("gputide.io/latency-p99-seconds")


def one_that_promises(
    folder: Path, promised: str | None, place: str = "annotations", label: str = "gputide.io/latency-p99-seconds"
) -> tuple[SimulatedCluster, dict[str, str], str]:
    """A cluster, a pod in it that promises a latency, as Prometheus labels it, and the pod's id."""
    cluster = a_cluster(folder)
    named = cluster.list_objects("Pod")[0]["metadata"]
    if promised is not None:
        change = FieldChange(field=f"metadata.{place}[{label}]", value=promised)
        cluster.patch("Pod", named["namespace"], named["name"], [change], named["resourceVersion"])
    return cluster, {"namespace": named["namespace"], "pod": named["name"]}, f"{named['namespace']}/{named['name']}"


def test_relief_hears_of_pods_that_break_their_own_objective(tmp_path: Path) -> None:
    cluster, labels, pod_id = one_that_promises(tmp_path, "2")
    others = [({"namespace": "team", "pod": name}, 9.0) for name in ("../x", "gone", "")]
    now, metrics = [0.0], Metrics({LATENCY_QUERY: [(labels, 2.5), *others]})
    objectives = PromisedObjectives(cluster, TrustedSeries(metrics), interval_seconds=10, clock=lambda: now[0])
    assert [(entry.pod_id, entry.query) for entry in objectives.broken()] == [
        (pod_id, "gputide.io/latency-p99-seconds=2")
    ]
    metrics.answers[LATENCY_QUERY] = [(labels, 1.5)]
    assert objectives.broken()
    now[0] = 10.0
    assert objectives.broken() == ()


@pytest.mark.parametrize(
    ("promised", "seconds", "complaint"),
    [
        (None, 9.0, None),
        ("2", None, None),
        ("2", 1.9, None),
        ("2", 2.5, "the 99th percentile of its latency is 2.5 s, above its gputide.io/latency-p99-seconds=2"),
        ("soon", 1.0, "gputide.io/latency-p99-seconds=soon can't be read"),
        ("-1", None, "gputide.io/latency-p99-seconds=-1 can't be read"),
        ("nan", None, "gputide.io/latency-p99-seconds=nan can't be read"),
    ],
)
@pytest.mark.parametrize("place", ["labels", "annotations"])
def test_a_pods_own_objective_is_watched_without_a_query(
    promised: str | None, seconds: float | None, complaint: str | None, place: str, tmp_path: Path
) -> None:
    cluster, labels, pod_id = one_that_promises(tmp_path, promised, place)
    metrics = Metrics({} if seconds is None else {LATENCY_QUERY: [(labels, seconds)]})
    (health,) = MeasuredSignals(ClusterSignals(cluster), metrics).health([pod_id])
    found = [str(entry) for entry in complaints([health], [pod_id], WatchPolicy())]
    assert len(found) == (complaint is not None)
    assert complaint is None or complaint in found[0]


@pytest.mark.parametrize("label", ["gputide.io/ttft-p99-seconds", "gputide.io/itl-p99-seconds"])
def test_each_objective_is_held_against_its_own_series(label: str, tmp_path: Path) -> None:
    cluster, labels, pod_id = one_that_promises(tmp_path, "0.5", label=label)
    others = {query_of(other): [(labels, 9.0)] for other in OBJECTIVES if other != label}
    for seconds, broken in ((0.4, False), (0.6, True)):
        metrics = Metrics({**others, query_of(label): [(labels, seconds)]})
        (health,) = MeasuredSignals(ClusterSignals(cluster), metrics).health([pod_id])
        found = [str(entry) for entry in complaints([health], [pod_id], WatchPolicy())]
        relief = PromisedObjectives(cluster, TrustedSeries(metrics), interval_seconds=10).broken()
        assert [label in text for text in found] == [True] * broken
        assert [entry.query for entry in relief] == [f"{label}=0.5"] * broken


def test_card_with_an_xid_event_speaks_against_the_pod_on_it() -> None:
    found = said({OWN_XID: [({"card": "GPU-1"}, 1.0)]})
    assert [bool(found[pod]) for pod in PODS] == [False, True, False]
    assert "card GPU-1 had an XID event" in found["team/a-1"][0]


def test_full_grant_speaks_against_its_pod() -> None:
    full = [({"namespace": "team", "pod": "a-0"}, 0.999), ({"namespace": "ads", "pod": "x-0"}, 0.9)]
    assert [bool(entries) for entries in said({OWN_FILLED: full}).values()] == [True, False, False]


def test_pod_without_a_limit_of_framebuffer_is_not_full() -> None:
    assert not any(said({OWN_FILLED: [({"namespace": "team", "pod": "a-0"}, math.inf)]}).values())


EXPORTER = {"namespace": "monitoring", "job": "dcgm-exporter", "instance": "10.0.0.7:9400"}
TENANT = {"namespace": "evil", "pod": "evil-0", "job": "web", "instance": "10.0.3.1:9400"}
UP_QUERY = "group by ({}) (up{{job=~{}}})"


def up_of(*jobs: str) -> str:
    """How it is asked where the targets of jobs are."""
    return UP_QUERY.format(", ".join(JUDGED_LABELS), json.dumps("|".join(map(re.escape, jobs))))


@pytest.mark.parametrize("query", [OWN_XID, DCGM_XID])
def test_a_tenants_pod_that_says_a_card_failed_takes_no_change_of_others_back(query: str) -> None:
    card = {"card": "GPU-1", "UUID": "GPU-1"}
    assert said({query: [({**card, **EXPORTER}, 1.0)]})["team/a-1"]
    assert not any(said({query: [({**card, **TENANT}, 1.0)]}).values())
    named_so = {**TENANT, "job": "dcgm-exporter"}
    up = {up_of("dcgm-exporter"): [(named_so, 1.0)]}
    assert not any(said({query: [({**card, **named_so}, 1.0)], **up}).values())


def test_a_tenants_pod_fills_nobody_elses_framebuffer() -> None:
    named = {"podnamespace": "team", "podname": "a-0"}
    assert said({HAMI_FILLED: [({**named, **EXPORTER, "namespace": "kube-system"}, 1.0)]})["team/a-0"]
    assert not any(said({HAMI_FILLED: [({**named, **TENANT}, 1.0)]}).values())


def test_where_a_target_is_decides_who_may_speak_of_a_namespace_under_honored_labels() -> None:
    claims = {"namespace": "team", "pod": "a-0", "job": "gpu-metrics", "instance": "10.0.3.1:9400"}
    target = {"job": "gpu-metrics", "instance": "10.0.3.1:9400"}
    for namespace, believed in (("gpu-operator", True), ("evil", False)):
        up = {up_of("gpu-metrics"): [({**target, "namespace": namespace}, 1.0)]}
        assert bool(said({OWN_FILLED: [(claims, 0.999)], **up})["team/a-0"]) is believed


def test_a_namespace_that_the_user_trusts_may_speak() -> None:
    card = {"card": "GPU-1", **TENANT}
    trusting = Provenance(namespaces=("evil",))
    health = MeasuredSignals(Cluster(), Metrics({OWN_XID: [(card, 1.0)]}), provenance=trusting).health(PODS)
    assert [bool(entry.objections) for entry in health] == [False, True, False]


def test_a_server_that_names_another_pod_breaks_no_objective(tmp_path: Path) -> None:
    cluster, labels, pod_id = one_that_promises(tmp_path, "2")
    for more, broken in (({}, True), ({"kubernetes_namespace": "evil"}, False)):
        metrics = Metrics({LATENCY_QUERY: [({**labels, **more}, 2.5)]})
        (health,) = MeasuredSignals(ClusterSignals(cluster), metrics).health([pod_id])
        assert bool(health.objections) is broken


def test_nothing_measured_is_no_complaint() -> None:
    assert not any(said({}).values())


def test_pod_that_the_scheduler_pre_empted_is_a_complaint(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    pod = next(entry for entry in cluster.list_objects("Pod", "team"))
    reader = Preempting(cluster, pod["metadata"]["name"], "PreemptionByScheduler")
    name = f"team/{pod['metadata']['name']}"
    (entry,) = ClusterSignals(reader).health([name])
    (found,) = complaints([entry], [name], WatchPolicy())
    assert str(found) == f"{name} was pre-empted by the scheduler"
    evicted = Preempting(cluster, pod["metadata"]["name"], "EvictionByEvictionAPI")
    (entry,) = ClusterSignals(evicted).health([name])
    assert not entry.is_preempted


class Preempting:
    """A cluster in which one pod has a condition that says why it goes."""

    def __init__(self, cluster: Any, name: str, reason: str) -> None:
        self._cluster, self._name, self._reason = cluster, name, reason

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def get(self, kind: str, namespace: str, name: str) -> Any:
        found = self._cluster.get(kind, namespace, name)
        if name == self._name and found is not None:
            condition = {"type": "DisruptionTarget", "status": "True", "reason": self._reason}
            found["status"]["conditions"] = [*found["status"].get("conditions", []), condition]
        return found


def test_canary_whose_objective_breaks_is_taken_back(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    metrics = Metrics({SLO: [({"namespace": "team"}, 0.9)]})
    tools = some_tools(cluster, tmp_path, signals=MeasuredSignals(ClusterSignals(cluster), metrics, (SLO,)))
    plan = standard_plan()
    before = cluster.get("Deployment", "team", "a")
    results = a_rollout(tools).apply(plan, (2,), by="ada", approved=lambda: a_yes(standard_plan(), 2), fingerprint=None)
    assert [result.state for result in results] == [StageState.RESTORED]
    assert SLO in str(results[0].reason)
    after = cluster.get("Deployment", "team", "a")
    assert before is not None
    assert after is not None
    assert after["spec"]["template"] == before["spec"]["template"]


def test_xid_of_a_real_card_takes_the_stage_back(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    metrics = Metrics({OWN_XID: [({"card": card_id(number)}, 1.0) for number in range(8)]})
    tools = some_tools(cluster, tmp_path, signals=MeasuredSignals(ClusterSignals(cluster), metrics))
    (result,) = a_rollout(tools).apply(
        standard_plan(), (2,), by="ada", approved=lambda: a_yes(standard_plan(), 2), fingerprint=None
    )
    assert result.state is StageState.RESTORED
    assert "XID event" in str(result.reason)


def test_change_is_not_kept_while_nobody_can_be_asked(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    metrics = Metrics()
    tools = some_tools(cluster, tmp_path, signals=MeasuredSignals(ClusterSignals(cluster), metrics, (SLO,)))
    metrics.is_away = True
    (result,) = a_rollout(tools).apply(
        standard_plan(), (2,), by="ada", approved=lambda: a_yes(standard_plan(), 2), fingerprint=None
    )
    assert result.state is StageState.RESTORED
    assert f"could not be judged within the {HOLD_SECONDS} s for which its owner waits: cannot ask" in str(
        result.reason
    )


def test_stage_whose_pods_have_all_changed_waits_for_who_can_judge_them(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    metrics = Metrics()
    tools = some_tools(cluster, tmp_path, signals=MeasuredSignals(ClusterSignals(cluster), metrics, (SLO,)))

    def step(name: str) -> None:
        metrics.is_away = metrics.is_away or name == "watched canary"

    tools.step = step
    with pytest.raises(Unavailable):
        a_rollout(tools).apply(
            standard_plan(), (2,), by="ada", approved=lambda: a_yes(standard_plan(), 2), fingerprint=None
        )
    metrics.is_away, tools.step = False, lambda _: None
    (result,) = a_rollout(tools).apply(
        standard_plan(), (2,), by="ada", approved=lambda: a_yes(standard_plan(), 2), fingerprint=None
    )
    assert result.state is StageState.PROMOTED
