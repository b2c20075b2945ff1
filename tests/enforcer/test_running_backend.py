"""A stage is rendered for what really runs: its version, its parts, and whether anything real has accepted it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from enforcer.backend import Backend
from enforcer.backends.effectivegpu import EffectiveGpuBackend
from enforcer.backends.hami import HamiBackend
from enforcer.backends.kai import KaiBackend
from enforcer.backends.running import LeftOut, RunningBackend, parts_of, running_tag
from enforcer.backends.volcano import VolcanoBackend
from enforcer.manifest import Manifest
from enforcer.preview import preview
from enforcer.snapshot import Snapshot, take_snapshot
from fleet.decisions import Need, Plan, RecommendationKind
from fleet.errors import Refused
from fleet.probe_results import ProbeResult, as_measured
from fleet.sentences import Sentence, sentence
from tests.enforcer.builders import NOW, a_cluster, a_plan, a_recommendation, a_slice
from tests.enforcer.kin_cluster import EFFECTIVE_GPU, VOLCANO, a_kin_cluster
from tests.enforcer.plugin_cluster import StandingCluster
from tests.fleet.test_probe_results import LENT

HAMI_WEBHOOK = "vgpu.hami.io"


def one_slice_each() -> Plan:
    advice = a_recommendation("x", RecommendationKind.SLICE, ["a-0", "b-0"], ["Deployment/a", "Deployment/b"], 1)
    return a_plan({0: [a_slice("a-0"), a_slice("b-0")]}, [[advice]])


def part(kind: str, image: str, ready: int = 1, wanted: int = 1) -> Manifest:
    status = (
        {"availableReplicas": ready}
        if kind == "Deployment"
        else {"numberReady": ready, "desiredNumberScheduled": wanted}
    )
    spec: dict[str, Any] = {"template": {"spec": {"containers": [{"name": "x", "image": image}]}}}
    if kind == "Deployment":
        spec["replicas"] = wanted
    name = image.rpartition("/")[2].partition(":")[0].partition("@")[0] + kind.lower()
    return {
        "kind": kind,
        "metadata": {"namespace": "kube-system", "name": name, "resourceVersion": "1"},
        "spec": spec,
        "status": status,
    }


def seen(snapshot: Snapshot, *parts: Manifest) -> Snapshot:
    own = {f"kube-system/{one['kind']}/{one['metadata']['name']}": one for one in parts}
    return replace(snapshot, owners={**snapshot.owners, **own})  # type: ignore[dict-item]


def nobody(webhook: str, pods: Sequence[tuple[str, Mapping[str, str]]]) -> Sentence | None:
    """Every webhook is asked about all pods."""
    del webhook, pods
    return None


def running(
    backend: Backend, *, version: str | None = None, allowed: bool = True, left_out: LeftOut = nobody
) -> RunningBackend:
    return RunningBackend(backend, version=version, allows_experimental=allowed, left_out=left_out)


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    return take_snapshot(a_cluster(tmp_path))


@pytest.mark.parametrize(
    ("image", "tag"),
    [
        ("projecthami/hami:v2.10.0", "v2.10.0"),
        ("registry.local:5000/mirror/hami:v2.9.1", "v2.9.1"),
        ("projecthami/hami:v2.10.0@sha256:00", "v2.10.0"),
        ("projecthami/hami@sha256:00", None),
        ("projecthami/hami-webui:v1.2.0", None),
        ("hami:latest", None),
    ],
)
def test_version_is_the_tag_of_the_images_that_run(image: str, tag: str | None) -> None:
    assert running_tag(parts_of(("hami",), [part("DaemonSet", image)])) == tag


def test_of_two_versions_the_older_one_counts() -> None:
    parts = [part("Deployment", "a/hami:v2.10.0"), part("DaemonSet", "a/hami:v2.9.0")]
    assert running_tag(parts_of(("hami",), parts)) == "v2.9.0"


def test_version_that_is_older_than_the_oldest_known_is_refused(snapshot: Snapshot) -> None:
    with pytest.raises(Refused, match=r"hami v2\.4\.1: older than 2\.8\.1.*enforcer\.backend_version"):
        running(HamiBackend(NOW)).render(one_slice_each(), 1, seen(snapshot, part("DaemonSet", "x/hami:v2.4.1")))


def test_version_that_is_newer_than_the_newest_known_counts_as_that_and_is_said(snapshot: Snapshot) -> None:
    there = seen(snapshot, part("DaemonSet", "x/hami:v2.11.0"))
    stage = running(HamiBackend(NOW)).render(one_slice_each(), 1, there)
    assert any("hami v2.11.0 is newer than 2.10" in warning for warning in stage.warnings)
    assert stage.changes


def test_version_that_nobody_sees_is_said(snapshot: Snapshot) -> None:
    stage = running(HamiBackend(NOW)).render(one_slice_each(), 1, snapshot)
    assert any("no Deployment or DaemonSet runs an image hami" in warning for warning in stage.warnings)


def test_plan_for_one_version_is_not_carried_out_on_another_that_enforces_less(snapshot: Snapshot) -> None:
    plan = replace(one_slice_each(), backend_version="v2.10.0")
    with pytest.raises(Refused, match=r"made for hami v2\.10\.0, and v2\.9\.0 runs here"):
        running(HamiBackend(NOW)).render(plan, 1, seen(snapshot, part("DaemonSet", "x/hami:v2.9.0")))
    again = replace(plan, backend_version="v2.8.1")
    assert running(HamiBackend(NOW)).render(again, 1, seen(snapshot, part("DaemonSet", "x/hami:v2.9.0"))).changes


def test_setting_says_the_version_where_the_tag_misleads(snapshot: Snapshot) -> None:
    there = seen(snapshot, part("DaemonSet", "x/hami:v1.0.0"))
    assert running(HamiBackend(NOW), version="2.10.0").render(one_slice_each(), 1, there).changes


def volcano_cluster() -> Snapshot:
    return take_snapshot(a_kin_cluster(VOLCANO), VOLCANO.backend.dialect)


def volcano_plan(version: str | None) -> Plan:
    return replace(one_slice_each(), backend="volcano", backend_version=version)


@pytest.mark.parametrize("tag", ["v1.15.1", "v1.9.0"])
def test_stable_volcano_is_asked_for_no_card_by_name(tag: str) -> None:
    """volcano.sh/vgpu-use-gpuuuid is in no release before 1.16, so pods would land on any card."""
    there = seen(volcano_cluster(), part("Deployment", f"v/vc-scheduler:{tag}"))
    with pytest.raises(Refused, match=r"made for volcano from 1\.16\.0-alpha\.0 on, and"):
        running(VolcanoBackend(NOW)).render(volcano_plan(None), 1, there)
    with pytest.raises(Refused, match="a stable release takes no card by name"):
        running(VolcanoBackend(NOW)).render(volcano_plan(tag), 1, there)


def test_volcano_that_takes_cards_by_name_gets_them() -> None:
    image = "volcanosh/vc-scheduler:v1.16.0-alpha.1"
    there = seen(volcano_cluster(), part("Deployment", image))
    assert running(VolcanoBackend(NOW)).render(volcano_plan("v1.16.0-alpha.1"), 1, there).changes


def test_backend_that_nothing_real_has_accepted_is_refused_unless_that_is_asked_for() -> None:
    nothing = take_snapshot(StandingCluster([]), KaiBackend(NOW).dialect)
    with pytest.raises(Refused, match=r"kai: experimental.*enforcer\.experimental=true"):
        running(KaiBackend(NOW), allowed=False).render(one_slice_each(), 1, nothing)


@pytest.mark.parametrize("kind", ["Deployment", "DaemonSet"])
def test_stage_is_refused_while_a_part_of_the_backend_does_not_answer(kind: str, snapshot: Snapshot) -> None:
    down = part(kind, "projecthami/hami:v2.10.0", ready=0, wanted=3)
    fact = f"{kind} kube-system/hami{kind.lower()} has 0 of 3 pods ready.*kubectl -n kube-system"
    with pytest.raises(Refused, match=fact):
        running(HamiBackend(NOW)).render(one_slice_each(), 1, seen(snapshot, down))
    idle = part(kind, "projecthami/hami:v2.10.0", ready=0, wanted=0)
    assert running(HamiBackend(NOW)).render(one_slice_each(), 1, seen(snapshot, idle)).changes


def test_stage_that_seats_pods_is_refused_while_the_backends_webhook_leaves_them_out(snapshot: Snapshot) -> None:
    asked: list[object] = []

    def left_out(webhook: str, pods: Sequence[tuple[str, Mapping[str, str]]]) -> Sentence | None:
        asked.append((webhook, [namespace for namespace, _ in pods]))
        return sentence("admission.missing", webhook=webhook)

    backend = running(HamiBackend(NOW), version="2.10.0", left_out=left_out)
    with pytest.raises(Refused, match=r"the webhook vgpu\.hami\.io, so new pods would not come to its scheduler"):
        backend.render(one_slice_each(), 1, snapshot)
    assert asked == [(HAMI_WEBHOOK, ["team", "team"])]
    idle = a_plan({}, [[a_recommendation("x", RecommendationKind.RECLAIM, ["a-0", "a-1"], ["Deployment/a"], 2)]])
    assert backend.render(idle, 1, snapshot).changes, "nobody is placed"


def test_dry_run_says_why_apply_would_refuse(tmp_path: Path) -> None:
    cluster = a_cluster(tmp_path)
    (shown,) = preview(one_slice_each(), cluster, running(HamiBackend(NOW), version="2.1.0"))
    assert shown.refusal is not None
    assert "older than 2.8.1" in str(shown.refusal)


def asked_to_lend(*, factor: float, kept_ratio: float) -> Plan:
    """A plan whose cards all have a factor."""
    plan = one_slice_each()
    entries = tuple(replace(one, needs=(*one.needs, Need.SPILL)) for one in plan.recommendations)
    cards = tuple(replace(card, memory_scaling=factor, kept_ratio=kept_ratio) for card in plan.placement)
    return replace(plan, recommendations=entries, placement=cards)


def test_stage_that_lends_is_refused_until_a_probe_saw_it_come_back() -> None:
    asked = asked_to_lend(factor=1.0, kept_ratio=1.0)
    cluster = take_snapshot(a_kin_cluster(EFFECTIVE_GPU))
    with pytest.raises(Refused, match="spills nothing"):
        running(EFFECTIVE_GPU.backend).render(asked, 1, cluster)
    kept_all = replace(LENT, backend="effectivegpu", kept_bytes=None)
    lent = replace(LENT, backend="effectivegpu")
    with pytest.raises(Refused, match="nobody knows that it comes back"):
        probed(kept_all).render(asked, 1, cluster)
    assert probed(lent).render(asked, 1, cluster).changes
    record = as_measured(EFFECTIVE_GPU.backend.capabilities, [lent])
    with pytest.raises(Refused, match="spills nothing"):
        running(EffectiveGpuBackend(NOW, capabilities=record)).render(asked, 1, cluster)


def probed(*results: ProbeResult) -> RunningBackend:
    record = as_measured(EFFECTIVE_GPU.backend.capabilities, results)
    return RunningBackend(
        EffectiveGpuBackend(NOW, capabilities=record), version=None, allows_experimental=True, left_out=None,
        measured=lambda record: as_measured(record, results),
    )  # fmt: skip


@pytest.mark.parametrize(("factor", "kept_ratio"), [(2.5, 0.1), (2.0, 0.05)])
def test_plan_that_counts_on_more_than_probes_saw_until_today_is_refused(factor: float, kept_ratio: float) -> None:
    """Another node was probed since the plan: its figures are the weaker ones."""
    lent = replace(LENT, backend="effectivegpu")
    asked = asked_to_lend(factor=factor, kept_ratio=kept_ratio)
    with pytest.raises(Refused, match="make a new plan"):
        probed(lent).render(asked, 1, take_snapshot(a_kin_cluster(EFFECTIVE_GPU)))
