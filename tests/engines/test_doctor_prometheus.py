"""The doctor names each trap of the field on a real Prometheus that has it, and is silent on one that does not.

One server holds a small world per trap; all its series carry the trap's name in the label `world`, by which the doctor
is told apart (`scan.matchers`). Every trap is the sound world with one thing changed.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from bench.measured_run import GPUTIDE
from bench.scanned_prometheus import prometheus_with, send_body
from dashboards.view_models.health import SourcesSeen
from fleet.settings.scan import ScanSettings
from fleet.settings.settings import Settings
from gputide.container.sources import ask_sources
from gputide.doctor.checks import run_checks
from gputide.doctor.finding import Diagnosis, State, diagnosed
from gputide.doctor.prometheus import prometheus_checks
from gputide.operate.engine_process import kill_process, start_process, wait_until
from gputide.operate.engines import free_port
from pipeline.remote_write.decode import Version
from pipeline.remote_write.encode import LabelSets
from tests.engines.go_peers import GoPeers
from tests.waiting import text_of

pytestmark = pytest.mark.engines

SOUND = "sound"
STEP_SECONDS = 30
MINUTES = 80
DAY = 86_400
CARDS = ("GPU-a", "GPU-b")
PODS = {"GPU-a": "train-0", "GPU-b": "web-0"}
CONFIG = """
rule_files: [rules.yml]
scrape_configs:
  - job_name: relabelled
    static_configs: [{targets: ["127.0.0.1:1"]}]
    metric_relabel_configs:
      - {source_labels: [__name__], regex: "DCGM_FI_DEV_(ENC|DEC)_UTIL", action: drop}
"""
RULES = """
groups:
  - name: broken
    interval: 1s
    rules:
      - {record: "x", expr: 'label_replace(vector(1), "a", "$1", "b", "(")'}
"""


@dataclass
class Series:
    """One series; mutable: a trap changes it. Values: one number, or one per step."""

    labels: dict[str, str]
    values: float | Sequence[float] = 1.0
    ages: Sequence[float] = field(
        default_factory=lambda: [60.0 * MINUTES - STEP_SECONDS * n for n in range(MINUTES * 2 + 1)]
    )


World = list[Series]


def dcgm(name: str, card: str, value: float | Sequence[float], **labels: str) -> Series:
    return Series(
        {
            "__name__": name, "UUID": card, "gpu": str(CARDS.index(card) if card in CARDS else 7), "job": "dcgm",
            "instance": "10.0.0.1:9400", "modelName": "NVIDIA A10", "Hostname": "node-1", "namespace": "team",
            "pod": PODS.get(card, ""), "container": "main", **labels,
        },
        value,
    )  # fmt: skip


def fact(name: str, value: float = 1.0, **labels: str) -> Series:
    return Series({"__name__": name, "job": "ksm", "instance": "10.0.0.9:8080", **labels}, value)


def sound() -> World:
    """Two cards of one node, each held by a pod, measured and explained as it should be."""
    swing = [float(10 + n % 40) for n in range(MINUTES * 2 + 1)]
    world: World = []
    for card in CARDS:
        world += [
            dcgm("DCGM_FI_DEV_GPU_UTIL", card, swing),
            dcgm("DCGM_FI_PROF_SM_ACTIVE", card, [one / 150 for one in swing]),
            dcgm("DCGM_FI_DEV_FB_USED", card, [4000.0 + one for one in swing]),
            dcgm("DCGM_FI_DEV_FB_FREE", card, [18000.0 - one for one in swing]),
            dcgm("DCGM_FI_DEV_ENC_UTIL", card, 0.0),
            dcgm("DCGM_FI_DEV_DEC_UTIL", card, 0.0),
            dcgm("DCGM_FI_DEV_POWER_USAGE", card, swing),
            dcgm("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", card, [1000.0 * n for n in range(len(swing))]),
        ]
    for pod in PODS.values():
        world += [
            fact("kube_pod_info", namespace="team", pod=pod, uid=f"uid-{pod}", node="node-1"),
            fact("kube_pod_owner", namespace="team", pod=pod, owner_kind="ReplicaSet", owner_name="rs"),
            fact("kube_pod_labels", namespace="team", pod=pod),
            fact(
                "kube_pod_container_resource_requests", namespace="team", pod=pod, node="node-1",
                resource="nvidia_com_gpu", container="main",
            ),
        ]  # fmt: skip
    world += [
        fact("kube_replicaset_owner", namespace="team", replicaset="rs", owner_kind="Deployment", owner_name="d"),
        fact("kube_node_status_allocatable", 2.0, node="node-1", resource="nvidia_com_gpu"),
        fact("kube_node_info", node="node-1"),
        fact("gputide_counter_trusted", namespace="team", pod="web-0", counter="duty_cycle_ratio", check=""),
        fact("kube_pod_info", namespace="gpu-operator", pod="nvidia-dcgm-exporter-x", uid="e", node="node-1",
             created_by_kind="DaemonSet", created_by_name="nvidia-dcgm-exporter"),
    ]  # fmt: skip
    # Two weeks ago there was history too.
    world += [
        Series(dict(one.labels), 1.0, [14 * DAY + 600.0, 14 * DAY]) for one in world if _is(one, "DCGM_FI_DEV_FB_USED")
    ]
    return world


def _is(series: Series, *names: str) -> bool:
    return series.labels["__name__"] in names


def without(*names: str) -> Callable[[World], World]:
    return lambda world: [one for one in world if not _is(one, *names)]


def with_more(*more: Series) -> Callable[[World], World]:
    return lambda world: [*world, *more]


def relabelled(change: Callable[[dict[str, str]], None], prefix: str = "DCGM_") -> Callable[[World], World]:
    def edit(world: World) -> World:
        for one in world:
            if one.labels["__name__"].startswith(prefix):
                change(one.labels)
        return world

    return edit


def valued(name: str, value: float | Sequence[float]) -> Callable[[World], World]:
    def edit(world: World) -> World:
        for one in world:
            if _is(one, name) and one.ages[0] < DAY:
                one.values = value
        return world

    return edit


def both(*edits: Callable[[World], World]) -> Callable[[World], World]:
    def edit(world: World) -> World:
        for one in edits:
            world = one(world)
        return world

    return edit


def without_pods(labels: dict[str, str]) -> None:
    for name in ("namespace", "pod", "container"):
        labels.pop(name)


def behind_the_exporter(labels: dict[str, str]) -> None:
    labels.update(
        exported_namespace=labels["namespace"], exported_pod=labels["pod"], exported_container="main",
        namespace="gpu-operator", pod="nvidia-dcgm-exporter-x",
    )  # fmt: skip


def behind_a_tenants_pod(labels: dict[str, str]) -> None:
    behind_the_exporter(labels)
    labels.update(namespace="intruders", pod="web-0", job="kubernetes-pods")


def as_exporter(labels: dict[str, str]) -> None:
    labels.update(namespace="gpu-operator", pod="nvidia-dcgm-exporter-x")


def with_old_labels(labels: dict[str, str]) -> None:
    labels.update(pod_name=labels.pop("pod"), pod_namespace=labels.pop("namespace"))


def by_container(labels: dict[str, str]) -> None:
    labels["Hostname"] = "dcgm-exporter-7x2k"


def cut(world: World) -> World:
    """All cards in MIG instances, which have no duty cycle; here without any activity either."""
    kept = without("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_SM_ACTIVE")(world)
    return relabelled(lambda labels: labels.update(GPU_I_ID="1", GPU_I_PROFILE="1g.6gb"))(kept)


def hami(name: str, value: float, pod: str = "train-0", **labels: str) -> Series:
    return Series(
        {"__name__": name, "job": "hami", "node": "node-1", "device_uuid": "GPU-a", "namespace": "team", "pod": pod,
         "container": "main", "device_type": "NVIDIA-NVIDIA A10", **labels}, value,
    )  # fmt: skip


def host(name: str, value: float) -> Series:
    return Series(
        {"__name__": name, "job": "hami", "node": "node-1", "device_uuid": "GPU-a", "device_type": "NVIDIA-NVIDIA A10"},
        value,
    )


def shared(vgpu: bool, **more: str) -> Callable[[World], World]:
    """Three pods ask for a card each on a node of two, by time slices."""
    asked = fact(
        "kube_pod_container_resource_requests", namespace="team", pod="third-0", node="node-1",
        resource="nvidia_com_gpu", container="main",
    )  # fmt: skip
    pod = fact("kube_pod_info", namespace="team", pod="third-0", uid="u3", node="node-1")
    if not vgpu:
        return with_more(asked, pod)
    same = [dcgm("DCGM_FI_DEV_FB_USED", "GPU-a", 4500.0, pod=name, vgpu=str(n), **more)
            for n, name in enumerate(("train-0", "third-0"))]  # fmt: skip
    return lambda world: [
        *[one for one in world if not (_is(one, "DCGM_FI_DEV_FB_USED") and one.labels["UUID"] == "GPU-a")],
        *same, asked, pod,
    ]  # fmt: skip


def old_samples(name: str) -> Callable[[World], World]:
    """A metric that ended two days ago."""

    def edit(world: World) -> World:
        for one in world:
            if _is(one, name):
                one.ages = [2 * DAY + 600.0, 2 * DAY]
                one.values = 5.0
        return world

    return edit


BLANK = float(0x7FFFFFFFFFFFFFF0)
USED_HAMI = hami("hami_vgpu_memory_used_bytes", 4e9)
TRAPS: dict[str, Callable[[World], World]] = {
    "sm-active-missing": without("DCGM_FI_PROF_SM_ACTIVE"),
    "sm-active-partial": lambda world: [
        one for one in world if not (_is(one, "DCGM_FI_PROF_SM_ACTIVE") and one.labels["UUID"] == "GPU-b")
    ],
    "duty-cycle-spins": both(valued("DCGM_FI_DEV_GPU_UTIL", 100.0), valued("DCGM_FI_PROF_SM_ACTIVE", 0.12)),
    "framebuffer-missing": without("DCGM_FI_DEV_FB_USED"),
    "framebuffer-free-missing": without("DCGM_FI_DEV_FB_FREE"),
    "duty-cycle-missing": without("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_SM_ACTIVE"),
    "encoder-missing": without("DCGM_FI_DEV_ENC_UTIL", "DCGM_FI_DEV_DEC_UTIL"),
    "power-missing": without("DCGM_FI_DEV_POWER_USAGE"),
    "preallocated": both(
        both(valued("DCGM_FI_DEV_FB_USED", 20_000.0), valued("DCGM_FI_DEV_FB_FREE", 2_000.0)),
        with_more(Series({"__name__": "vllm:kv_cache_usage_perc", "namespace": "team", "pod": "train-0"}, 0.2)),
    ),
    "xid-last-only": with_more(dcgm("DCGM_FI_DEV_XID_ERRORS", "GPU-a", 31.0)),
    "no-cards": lambda world: [one for one in world if not one.labels["__name__"].startswith("DCGM_")],
    "pods-missing": relabelled(without_pods),
    "pods-partly-missing": both(
        with_more(
            dcgm("DCGM_FI_DEV_FB_USED", "GPU-z", 100.0, Hostname="node-2", pod="", namespace="", container=""),
            fact("kube_pod_container_resource_requests", namespace="team", pod="lost-0", node="node-2",
                 resource="nvidia_com_gpu", container="main"),
            fact("kube_node_info", node="node-2"),
        )
    ),
    "pod-labels-old": relabelled(with_old_labels),
    "honor-labels": relabelled(behind_the_exporter),
    "target-untrusted": relabelled(behind_a_tenants_pod),
    "exporter-as-pod": relabelled(as_exporter),
    "hostname-is-no-node": relabelled(by_container),
    "one-pod-wins": shared(vgpu=False),
    "card-value-copied": shared(vgpu=True),
    "card-beside-pods": with_more(
        dcgm("DCGM_FI_DEV_FB_USED", "GPU-a", 700.0, pod_uid="uid-train-0", vgpu="0"),
        dcgm("DCGM_FI_DEV_FB_USED", "GPU-a", 900.0, pod="", namespace="", container="", device="nvidia0"),
    ),
    "hami-monitor-missing": with_more(hami("hami_vgpu_memory_allocated_bytes", 4e9)),
    "hami-both-names": with_more(
        USED_HAMI,
        Series({"__name__": "vGPU_device_memory_usage_in_bytes", "podnamespace": "team", "podname": "train-0",
                "deviceuuid": "GPU-a", "ctrname": "main"}, 4e9),
    ),
    "hami-old-names": with_more(
        Series({"__name__": "vGPU_device_memory_usage_in_bytes", "podnamespace": "team", "podname": "train-0",
                "deviceuuid": "GPU-a", "ctrname": "main"}, 4e9),
    ),
    "hami-stale-grant": with_more(USED_HAMI, hami("hami_vgpu_memory_allocated_bytes", 4e9, pod="gone-0")),
    "hami-zero-while-busy": with_more(
        USED_HAMI, hami("hami_container_device_utilization_ratio", 0.0), host("hami_host_gpu_utilization_ratio", 80.0)
    ),
    "hami-memory-impossible": with_more(hami("hami_vgpu_memory_used_bytes", 1.8e19)),
    "volcano-pod-ambiguous": with_more(
        Series({"__name__": "volcano_vgpu_device_memory_allocation_for_a_certain_pod", "devID": "GPU-a",
                "NodeName": "node-1", "podName": "train-0"}, 4000.0),
        fact("kube_pod_info", namespace="other", pod="train-0", uid="uid-other", node="node-1"),
    ),
    "mig-without-activity": cut,
    "card-scraped-twice": with_more(
        dcgm("DCGM_FI_DEV_FB_USED", "GPU-a", 4500.0, job="second", instance="10.0.0.1:9401")
    ),
    "sources-contradict": with_more(host("hami_host_gpu_memory_used_bytes", 14e9)),
    "unit-mixed": valued("DCGM_FI_PROF_SM_ACTIVE", 55.0),
    "blank-values": with_more(dcgm("DCGM_FI_DEV_GPU_TEMP", "GPU-a", BLANK)),
    "counter-untrusted": with_more(
        fact("gputide_counter_trusted", 0.0, namespace="team", pod="web-0", counter="duty_cycle_ratio", check="frozen")
    ),
    "metric-vanished": both(old_samples("DCGM_FI_DEV_POWER_USAGE")),
    "metric-dropped": without("DCGM_FI_DEV_ENC_UTIL", "DCGM_FI_DEV_DEC_UTIL"),
    "node-unmeasured": with_more(fact("kube_node_status_allocatable", 8.0, node="node-9", resource="nvidia_com_gpu")),
    "pod-silent": shared(vgpu=False),
    "target-down": with_more(Series({"__name__": "up", "job": "dcgm", "instance": "10.0.0.1:9400"}, 0.0)),
    "card-identity-changed": with_more(
        Series({**dcgm("DCGM_FI_DEV_FB_USED", "GPU-a", 1.0).labels, "UUID": "GPU-before"}, 1.0, [7200.0, 7170.0])
    ),
    "driver-reset": valued(
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", [float(n % 100) for n in range(MINUTES * 2 + 1)]
    ),
    "pod-name-reused": with_more(
        Series(fact("kube_pod_info", namespace="team", pod="web-0", uid="before", node="node-1").labels, 1.0, [7200.0])
    ),
    "card-model-unknown": relabelled(lambda labels: labels.update(modelName="GRID V100DX-16Q")),
    "owners-missing": without("kube_pod_owner"),
    "requests-missing": without("kube_node_status_allocatable"),
    "pod-labels-missing": without("kube_pod_labels"),
    "several-clusters": with_more(
        dcgm("DCGM_FI_DEV_FB_USED", "GPU-a", 1.0, cluster="east"),
        dcgm("DCGM_FI_DEV_FB_USED", "GPU-b", 1.0, cluster="west"),
    ),
    "history-short": lambda world: [one for one in world if one.ages[0] < DAY],
    "interval-long": lambda world: [
        Series(one.labels, 7.0, [600.0, 480.0, 360.0, 240.0, 120.0, 0.0]) if one.ages[0] < DAY else one for one in world
    ],
    "samples-in-future": with_more(
        Series(dcgm("DCGM_FI_DEV_FB_USED", "GPU-a", 1.0, device="later").labels, 1.0, [-120.0])
    ),
}  # fmt: skip
NO_TRAPS: dict[str, Callable[[World], World]] = {
    # NVML's older count of use includes what the driver reserves.
    "reserved": with_more(host("hami_host_gpu_memory_used_bytes", 5e9)),
    "stranger": with_more(
        Series({"__name__": "gputide_card_framebuffer_used_bytes", "card": "GPU-a", "node": "node-1",
                "namespace": "intruders", "pod": "web-0", "job": "kubernetes-pods"}, 14e9)
    ),
}  # fmt: skip
UNFILLED = re.compile(r"\{[a-z]+\}")
SERVER_WIDE = {"query-limit", "recording-lags", "remote-write-fails"}
"""Of the server, whatever the world; they are asked for by tests of their own."""


def bodies(worlds: dict[str, World]) -> Iterator[bytes]:
    """Remote-write bodies of all worlds, oldest samples first."""
    now_ms = round(time.time()) * 1000
    samples = []
    labels: list[dict[str, str]] = []
    for name, world in worlds.items():
        for one in world:
            number = len(labels)
            labels.append({key: value for key, value in {**one.labels, "world": name}.items() if value})
            for place, age in enumerate(one.ages):
                value = one.values if isinstance(one.values, (int, float)) else one.values[place]
                samples.append((now_ms - round(age * 1000), number, float(value)))
    sets = LabelSets(labels)
    # The old ones by themselves: Prometheus takes nothing that is an hour older than the newest.
    samples.sort()
    ages = np.array([ts for ts, _, _ in samples])
    tens = [(now_ms - (6000 - 600 * n) * 1000, now_ms - (5400 - 600 * n) * 1000) for n in range(11)]
    week, day = now_ms - 10 * DAY * 1000, now_ms - DAY * 1000
    for since, until in ((0, week), (week, day), (day, tens[0][0]), *tens):
        part = sorted(((n, ts, v) for (ts, n, v), at in zip(samples, ages, strict=True) if since < at <= until))
        if part:
            series, times, values = (np.array(column) for column in zip(*part, strict=True))
            yield sets.encode(Version.V1, series.astype(np.int64), times.astype(np.int64), values.astype(np.float64))


@pytest.fixture(scope="module")
def prometheus(go_peers: GoPeers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("doctor-prometheus")
    (folder / "prometheus.yml").write_text(CONFIG)
    (folder / "rules.yml").write_text(RULES)
    url = f"http://127.0.0.1:{free_port()}"
    command = [
        str(go_peers.prometheus), "--config.file=prometheus.yml", "--storage.tsdb.path=data",
        f"--web.listen-address={url.removeprefix('http://')}", "--web.enable-remote-write-receiver",
        "--storage.tsdb.retention.time=90d", "--query.max-samples=4000000", "--query.timeout=20s",
    ]  # fmt: skip
    process = start_process("prometheus", command, folder=folder, log=folder / "log", environ=os.environ)
    try:
        wait_until(lambda: bool(text_of(f"{url}/-/ready")), process, seconds_max=60)
        lost = Series(
            {"__name__": "prometheus_remote_storage_samples_failed_total", "url": "http://receiver"},
            [float(n) for n in range(MINUTES * 2 + 1)],
        )
        worlds = {
            "server": [lost],
            SOUND: sound(),
            **{name: edit(sound()) for name, edit in (TRAPS | NO_TRAPS).items()},
        }
        for body in bodies(worlds):
            send_body(url, body)
        yield url
    finally:
        kill_process(process)


def looked_at(url: str, world: str) -> tuple[Diagnosis, ...]:
    settings = Settings(scan=ScanSettings(url=url, matchers=(f'world="{world}"',)))
    return run_checks(prometheus_checks(settings))


@pytest.fixture(scope="module")
def found_in_sound(prometheus: str) -> set[str]:
    found = looked_at(prometheus, SOUND)
    assert [one for one in found if one.state is State.UNCHECKED] == []
    return {one.kind.code.removeprefix("prometheus-") for one in found if one.kind is not None}


def test_nothing_is_named_where_nothing_is_wrong(found_in_sound: set[str]) -> None:
    assert found_in_sound == SERVER_WIDE


@pytest.mark.parametrize("trap", TRAPS)
def test_trap_is_named(trap: str, prometheus: str) -> None:
    named = [
        one for one in looked_at(prometheus, trap) if one.kind is not None and one.kind.code == f"prometheus-{trap}"
    ]
    assert named
    assert all(one.said and one.mend and not UNFILLED.search(one.mend) for one in named)


@pytest.mark.parametrize("world", ["reserved", "stranger"])
def test_sources_that_measure_otherwise_or_may_not_speak_contradict_nobody(world: str, prometheus: str) -> None:
    codes = {one.kind.code for one in looked_at(prometheus, world) if one.kind is not None}
    assert "prometheus-sources-contradict" not in codes


def test_health_page_is_given_who_contradicts_whom_and_since_when(prometheus: str) -> None:
    def asked(world: str) -> SourcesSeen:
        return ask_sources(Settings(scan=ScanSettings(url=prometheus, matchers=(f'world="{world}"',))))

    (one,) = asked("sources-contradict").contradictions
    assert (one.card, one.node) == ("GPU-a", "node-1")
    assert (one.least.metric, one.least.job) == ("DCGM_FI_DEV_FB_USED", "dcgm")
    assert (one.most.metric, one.most.used_bytes) == ("hami_host_gpu_memory_used_bytes", 14e9)
    assert one.since is not None
    began = time.time() - 60 * MINUTES
    assert began - 3600 <= one.since.timestamp() <= began + 900
    assert asked(SOUND).contradictions == asked("reserved").contradictions == ()


def test_server_without_such_rules_bounds_and_losses_has_no_finding(go_peers: GoPeers, tmp_path: Path) -> None:
    with prometheus_with(go_peers.prometheus, tmp_path, []) as url:
        settings = ScanSettings(url=url)
        wanted = ("query limits", "rules", "remote write")
        of_server = [check for check in prometheus_checks(Settings(scan=settings)) if check.name in wanted]
        found = [one for check in of_server for one in diagnosed(check)]
        assert [one.state for one in found] == [State.OK, State.OK, State.UNCHECKED]
        empty = Settings(scan=settings)
        assert {one.kind.code for one in run_checks(prometheus_checks(empty)) if one.kind} == {"prometheus-no-cards"}
        elsewhere = Settings(scan=ScanSettings(url=f"{url}/elsewhere"))
        assert {one.kind.code for one in run_checks(prometheus_checks(elsewhere)) if one.kind} == {"prometheus-refuses"}


def test_program_names_it_with_the_command_that_mends_it(prometheus: str, tmp_path: Path) -> None:
    command = [str(GPUTIDE), "--data-dir", str(tmp_path), "--set", f"scan.url={prometheus}", "--set",
               'scan.matchers=world="pods-missing"', "doctor", "prometheus", "--only", "prometheus-pods-*"]  # fmt: skip
    done = subprocess.run([*command, "--format", "json"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1, done.stderr
    (only,) = json.loads(done.stdout)["diagnoses"]
    assert (only["code"], only["severity"]) == ("prometheus-pods-missing", "error")
    assert only["mend"] == (
        "kubectl -n gpu-operator set env daemonset/nvidia-dcgm-exporter DCGM_EXPORTER_KUBERNETES=true"
    )


def test_clock_that_differs_is_named(prometheus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time
    monkeypatch.setattr("gputide.doctor.prometheus_server.time.time", lambda: now() - 60)
    codes = {one.kind.code for one in looked_at(prometheus, SOUND) if one.kind is not None}
    assert "prometheus-clock-skew" in codes
