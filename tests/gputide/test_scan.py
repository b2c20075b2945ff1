"""A scan takes in what others keep as if it had been sent to us, knows who holds which card, says what it missed."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from exporter.trace.trace import open_trace
from fleet.data_folder import open_data_folder
from fleet.errors import Misconfigured, NotEnoughData, Unavailable
from fleet.inventory import OPT_OUT_LABEL, Priority
from fleet.schema import CARD_USAGE, POD_USAGE, Measure
from fleet.settings.scan import ScanSettings
from fleet.settings.settings import ClusterSettings, Settings
from gputide.container.history import load_history, profiled
from gputide.container.warehouse import warehouse
from gputide.scanning.answer import misses_of
from gputide.scanning.backend import assumed_backend
from gputide.scanning.queries import checked_matchers, scan_endpoint
from gputide.scanning.record import hasher, record, shown
from gputide.scanning.scan import scan
from pipeline.remote_write.decode import Version
from pipeline.remote_write.encode import LabelSets
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.pipeline.builders import FAR_OFF, LONG_AGO, file_bus, intake_of, roll_up
from tests.pipeline.history.scripted_server import Refusal, ScriptedServer, api_error, serving

pytestmark = pytest.mark.long

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
SPAN_MS = 18 * HOUR_MS
UNTIL = datetime(2026, 1, 6, 18, tzinfo=UTC)
UNTIL_MS = round(UNTIL.timestamp() * 1000)
SINCE_MS = UNTIL_MS - SPAN_MS
A10_MIB = 23_028
CAPPED_CARD = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"


def times(since_ms=SINCE_MS, until_ms=UNTIL_MS, step_ms=5 * MINUTE_MS):
    return list(range(since_ms + step_ms, until_ms + 1, step_ms))


def series(name, labels, value, at=None):
    """One series: its value a number, or a function of the time."""
    points = [(ts, float(value(ts) if callable(value) else value)) for ts in (times() if at is None else at)]
    return {"__name__": name, **labels}, points


def dcgm(card, duty, used_mib, *, pod=None, at=None, node="n1", **extra):
    """What dcgm-exporter says of one card, and of the pod that holds it."""
    labels = {"UUID": f"GPU-{card}", "modelName": "NVIDIA A10", "Hostname": node, **extra}
    if pod is not None:
        labels |= {"namespace": "team", "pod": pod, "container": "main"}
    return [
        series("DCGM_FI_DEV_GPU_UTIL", labels, duty, at),
        series("DCGM_FI_DEV_FB_USED", labels, used_mib, at),
        series("DCGM_FI_DEV_FB_FREE", labels, A10_MIB - used_mib, at),
    ]


def owners(pod, replica_set, deployment):
    return [
        series("kube_pod_info", {"namespace": "team", "pod": pod, "node": "n1"}, 1),
        series(
            "kube_pod_owner",
            {"namespace": "team", "pod": pod, "owner_kind": "ReplicaSet", "owner_name": replica_set},
            1,
        ),
        series(
            "kube_replicaset_owner",
            {"namespace": "team", "replicaset": replica_set, "owner_kind": "Deployment", "owner_name": deployment},
            1,
        ),
    ]


@pytest.fixture
def scanned(tmp_path):
    """Return a function that scans some series: what was found, the history that it leaves, and the server."""

    script = ScriptedServer([])

    def run(found, *, folder=None, until=UNTIL, refuse=lambda *_: None, **asked):
        script.series, script.refuse, script.asked = found, refuse, []
        options = {"url": script.url, "since_seconds": SPAN_MS // 1000, "attempts_max": 1, **asked}
        settings = Settings(scan=ScanSettings(**options))
        data = open_data_folder(folder or tmp_path / "data", create=True)
        said = scan(data, settings, now=until, tick=lambda done, total: None)
        named = Settings(cluster=ClusterSettings(name=said.cluster))
        return said, load_history(data, named, until), script

    with serving(script):
        yield run


def test_the_same_samples_by_scan_and_by_remote_write_give_the_same_rows(scanned, tmp_path):
    wave = lambda ts: 30 + ts // MINUTE_MS % 61  # noqa: E731
    found = [
        *dcgm(1, wave, 5_000, pod="busy-1", at=times(step_ms=60_000)),
        *dcgm(2, 0, 300, at=times(step_ms=60_000)),
        series("DCGM_FI_PROF_SM_ACTIVE", {"UUID": "GPU-1", "modelName": "NVIDIA A10", "Hostname": "n1"}, 0.123456),
        series(
            "hami_container_device_utilization_ratio",
            {"device_uuid": "GPU-2", "device_type": "NVIDIA-NVIDIA A10", "node": "n1", "namespace": "t", "pod": "p",
             "container": "c"},
            130,
        ),
    ]  # fmt: skip
    scanned(found, folder=tmp_path / "scanned")
    live = DuckdbWarehouse(tmp_path / "live")
    bus = file_bus(tmp_path / "bus")
    taking = intake_of(bus)
    for labels, points in found:
        ts_ms, values = np.array([ts for ts, _ in points]), np.array([value for _, value in points])
        body = LabelSets([{**labels, "cluster": "default"}]).encode(
            Version.V1, np.zeros(len(ts_ms), np.int64), ts_ms, values
        )
        taking.take(body, Version.V1)
    roll_up(bus, live)
    mine = warehouse(open_data_folder(tmp_path / "scanned", create=False), Settings())
    for table in (POD_USAGE, CARD_USAGE):
        for level in (60, 3600):
            rows = [
                reader.windows(table, cluster="default", level_seconds=level, since=LONG_AGO, until=FAR_OFF).to_pylist()
                for reader in (mine, live)
            ]
            assert rows[0] == rows[1]
            assert rows[0]


@pytest.mark.parametrize("ago_ms", [SPAN_MS // 2, 20 * MINUTE_MS])
def test_a_pod_that_ended_ends_with_its_last_sample(ago_ms, scanned):
    ended_ms = UNTIL_MS - ago_ms
    _, history, _ = scanned(
        [*dcgm(1, 50, 4_000, pod="gone", at=times(until_ms=ended_ms)), *dcgm(1, 0, 0, at=times(since_ms=ended_ms))]
    )
    (grant,) = history.inventory.grants
    assert grant.ended_at == datetime.fromtimestamp(ended_ms / 1000, UTC)
    assert history.inventory.live_grants() == ()


@pytest.mark.parametrize("is_named", [True, False])
def test_a_pod_that_ended_a_moment_ago_is_gone_where_others_of_its_node_are_named_since(is_named, scanned):
    ended_ms = UNTIL_MS - 5 * MINUTE_MS
    _, history, _ = scanned(
        [
            *dcgm(1, 50, 4_000, pod="gone", at=times(until_ms=ended_ms)),
            *dcgm(1, 0, 0, at=times(since_ms=ended_ms)),
            *dcgm(2, 50, 4_000, pod="here", at=times(until_ms=UNTIL_MS if is_named else ended_ms)),
            *dcgm(2, 50, 4_000, at=times(since_ms=UNTIL_MS if is_named else ended_ms)),
        ]
    )
    # Where the exporter names nobody any more, it may be the kubelet that does not answer it.
    assert [grant.pod for grant in history.inventory.live_grants()] == (["here"] if is_named else ["gone", "here"])


def test_a_pod_that_came_back_by_the_same_name_has_two_grants(scanned):
    third = SPAN_MS // 3
    at = [*times(until_ms=SINCE_MS + third), *times(since_ms=UNTIL_MS - third)]
    _, history, _ = scanned([*dcgm(1, 50, 4_000, pod="set-0", at=at), *dcgm(2, 0, 0)])
    first, second = history.inventory.grants
    assert first.ended_at is not None
    assert first.ended_at < second.started_at
    assert second.ended_at is None


def test_a_gap_of_the_source_itself_is_nobody_s_absence(scanned):
    third = SPAN_MS // 3
    at = [*times(until_ms=SINCE_MS + third), *times(since_ms=UNTIL_MS - third)]
    _, history, _ = scanned([*dcgm(1, 50, 4_000, pod="set-0", at=at), *dcgm(2, 0, 0, at=at)])
    (grant,) = history.inventory.grants
    assert grant.ended_at is None


def test_pods_are_known_by_the_object_at_the_top(scanned):
    _, history, _ = scanned([*dcgm(1, 50, 4_000, pod="svc-abc-x"), *owners("svc-abc-x", "svc-abc", "svc")])
    assert [grant.workload_id for grant in history.inventory.grants] == ["team/Deployment/svc"]


def test_servers_are_known_by_images_by_their_own_metrics_and_by_a_label(scanned):
    image = {"namespace": "team", "container": "main"}
    _, history, _ = scanned(
        [
            *(line for card in range(5) for line in dcgm(card, 50, 4_000, pod=f"pod-{card}")),
            series("kube_pod_container_info", {**image, "pod": "pod-0", "image_spec": "lmsysorg/sglang:v0.5"}, 1),
            series("kube_pod_container_info", {**image, "pod": "pod-1", "image": "docker.io/vllm/vllm-openai:v1"}, 1),
            series("kube_pod_container_info", {**image, "pod": "pod-2", "image": "registry/ours:1"}, 1),
            series("vllm:kv_cache_usage_perc", {"namespace": "team", "pod": "pod-2", "engine": "0"}, 0.5),
            # Somebody's word goes before the image.
            series("kube_pod_container_info", {**image, "pod": "pod-3", "image": "vllm/vllm-openai"}, 1),
            series("kube_pod_labels", {"namespace": "team", "pod": "pod-3", "label_gputide_io_server": "triton"}, 1),
        ]
    )
    assert {grant.pod: grant.server for grant in history.inventory.grants} == {
        "pod-0": "sglang", "pod-1": "vllm", "pod-2": "vllm", "pod-3": "triton", "pod-4": None,
    }  # fmt: skip


def test_what_hami_granted_is_granted_and_cards_of_two_exporters_are_one(scanned):
    hami = {"deviceuuid": "GPU-1", "devicetype": "NVIDIA-NVIDIA A10", "nodeid": "n1"}
    pod = {"podnamespace": "team", "podname": "a", "ctrname": "main"}
    _, history, _ = scanned(
        [
            *dcgm(1, 50, 9_000, node="dcgm-exporter-x7k"),
            series("vGPU_device_memory_usage_in_bytes", {**hami, **pod}, 4 * 2**30),
            series("vGPU_device_memory_limit_in_bytes", {**hami, **pod}, 8 * 2**30),
            series("vGPUCoreAllocated", {**hami, **pod}, 30),
            series("GPUDeviceMemoryLimit", hami, 48 * 2**30),
        ]
    )
    (grant,) = history.inventory.grants
    assert (grant.framebuffer_granted_bytes, grant.compute_granted_ratio) == (8 * 2**30, 0.3)
    assert [(card.node, card.framebuffer_bytes) for card in history.inventory.cards] == [("n1", A10_MIB * 2**20)]
    assert history.cards is not None
    assert len(history.cards.keys) == 1


def test_volcano_s_pods_get_the_namespace_that_the_only_pod_of_the_name_has(scanned):
    granted = {"NodeName": "n1", "devID": "GPU-1", "podName": "job-0"}
    _, history, _ = scanned(
        [
            *dcgm(1, 5, 2_000),
            series("volcano_vgpu_device_memory_allocation_for_a_certain_pod", granted, 4_096),
            series("kube_pod_info", {"namespace": "batch", "pod": "job-0", "node": "n1"}, 1),
        ]
    )
    assert [(grant.namespace, grant.framebuffer_granted_bytes) for grant in history.inventory.grants] == [
        ("batch", 4_096 * 2**20)
    ]


def test_pods_that_share_by_kai_hold_their_fraction_and_the_reservation_pod_nothing(scanned):
    reserving = {"namespace": "kai-resource-reservation", "pod": "gpu-reservation-1"}
    sharing = {"namespace": "team", "pod": "half"}
    labels = {"UUID": "GPU-1", "modelName": "NVIDIA A10", "Hostname": "n1", "container": "c", **reserving}
    said, history, _ = scanned(
        [
            series("DCGM_FI_DEV_GPU_UTIL", labels, 40),
            series("DCGM_FI_DEV_FB_USED", labels, 9_000),
            series("DCGM_FI_DEV_FB_FREE", labels, A10_MIB - 9_000),
            *(series("kube_pod_labels", {**pod, "label_runai_gpu_group": "g1"}, 1) for pod in (reserving, sharing)),
            series("kube_pod_annotations", {**reserving, "annotation_run_ai_reserve_for_gpu_index": "GPU-1"}, 1),
            series("kube_pod_annotations", {**sharing, "annotation_gpu_fraction": "0.5"}, 1),
            series("kube_pod_info", sharing, 1),
        ]
    )
    (grant,) = history.inventory.grants
    assert (grant.pod_id, grant.card, grant.compute_granted_ratio) == ("team/half", "GPU-1", 0.5)
    assert grant.framebuffer_granted_bytes == A10_MIB * 2**20 // 2
    assert said.seats.unmeasured == 1


def test_pods_that_kais_driver_caps_are_measured_and_hold_what_they_asked_for(scanned):
    card = {"UUID": CAPPED_CARD, "modelName": "NVIDIA A10", "Hostname": "n1"}
    did = {"exported_namespace": "team", "exported_pod": "a", "namespace": "gpu-fractioning", "pod": "fractiond-x",
           "container": "metricsd", "gpu_uuid": CAPPED_CARD, "gpu": "0", "pod_uuid": "u-a"}  # fmt: skip
    asked = {
        "namespace": "team",
        "pod": "a",
        "annotation_nvidia_com_container_my_server_gpu_memory_request": "8Gi",
        "annotation_nvidia_com_container_my_server_gpu_memory_limit": "12Gi",
        "annotation_nvidia_com_container_my_server_gpus_devices": CAPPED_CARD,
    }
    said, history, _ = scanned(
        [
            series("DCGM_FI_DEV_FB_USED", card, 9_000),
            series("DCGM_FI_DEV_FB_FREE", card, A10_MIB - 9_000),
            series("gpu_fractioning_gpu_memory_used_bytes", did, 5 * 2**30),
            series("gpu_fractioning_gpu_sm_utilization_percent", did, 40),
            series("gpu_fractioning_gpu_sm_utilization_percent_normalized", did, 80),
            series("kube_pod_annotations", asked, 1),
            series("kube_pod_info", {"namespace": "team", "pod": "a"}, 1),
        ]
    )
    (grant,) = history.inventory.grants
    assert (grant.pod_id, grant.card, grant.framebuffer_granted_bytes) == ("team/a", CAPPED_CARD, 8 * 2**30)
    assert [key.pod_id for key in history.slices.keys] == ["team/a"]
    assert np.nanmax(history.slices.peak[Measure.FRAMEBUFFER_USED]) == 5 * 2**30
    assert np.nanmax(history.slices.mean[Measure.DUTY_CYCLE]) == pytest.approx(0.4)
    assert (said.seats.unmeasured, assumed_backend(said, "hami", is_set=False).name) == (0, "kai_nvfractions")


def test_pod_of_kais_whose_container_only_one_of_two_exporters_names_has_one_grant(scanned):
    card = {"UUID": CAPPED_CARD, "modelName": "NVIDIA A10", "Hostname": "n1"}
    sharing = {"namespace": "team", "pod": "half"}
    reserving = {"namespace": "kai-resource-reservation", "pod": "gpu-reservation-1"}
    did = {"exported_namespace": "team", "exported_pod": "half", "namespace": "gpu-fractioning", "pod": "fractiond-x",
           "container": "metricsd", "gpu_uuid": CAPPED_CARD}  # fmt: skip
    said, history, _ = scanned(
        [
            series("DCGM_FI_DEV_GPU_UTIL", {**card, **sharing, "container": "c"}, 40),
            series("DCGM_FI_DEV_FB_USED", card, 9_000),
            series("DCGM_FI_DEV_FB_FREE", card, A10_MIB - 9_000),
            series("gpu_fractioning_gpu_sm_utilization_percent", did, 40),
            *(series("kube_pod_labels", {**pod, "label_runai_gpu_group": "g1"}, 1) for pod in (reserving, sharing)),
            series("kube_pod_annotations", {**reserving, "annotation_run_ai_reserve_for_gpu_index": CAPPED_CARD}, 1),
            series("kube_pod_annotations", {**sharing, "annotation_gpu_fraction": "0.5"}, 1),
            series("kube_pod_info", sharing, 1),
        ]
    )
    (grant,) = history.inventory.grants
    assert (grant.pod_id, grant.container, grant.framebuffer_granted_bytes) == (
        "team/half", "c", A10_MIB * 2**20 // 2,
    )  # fmt: skip
    assert (said.seats.grants, said.seats.unmeasured) == (1, 0)


@pytest.mark.parametrize("asked", ["annotation_gpu_fraction", "annotation_nvidia_com_container_c_gpu_memory_request"])
def test_pod_that_writes_that_it_sees_another_pods_card_holds_none_of_it(scanned, asked):
    card = {"UUID": CAPPED_CARD, "modelName": "NVIDIA A10", "Hostname": "n1", "namespace": "team", "pod": "a",
            "container": "c"}  # fmt: skip
    thief = {"namespace": "other", "pod": "thief", asked: "0.99" if asked.endswith("fraction") else "20Gi",
             "annotation_nvidia_com_container_c_gpus_devices": CAPPED_CARD}  # fmt: skip
    _, history, _ = scanned(
        [
            series("DCGM_FI_DEV_FB_USED", card, 9_000),
            series("DCGM_FI_DEV_FB_FREE", card, A10_MIB - 9_000),
            series("kube_pod_annotations", thief, 1),
            series("kube_pod_info", {"namespace": "other", "pod": "thief"}, 1),
        ]
    )
    assert [grant.pod_id for grant in history.inventory.grants] == ["team/a"]


def test_a_fleet_of_amd_is_seen_by_its_own_exporter(scanned):
    def amd(number, duty, used_mib, **tenant):
        labels = {"gpu_uuid": f"amd-{number}", "card_series": "AMD Instinct MI300X OAM", "hostname": "n1",
                  "gpu_compute_partition_type": "spx", **tenant}  # fmt: skip
        return [
            series("gpu_gfx_activity", labels, duty),
            series("gpu_used_vram", labels, used_mib),
            series("gpu_total_vram", labels, 196_592),
        ]

    tenant = {"namespace": "team", "pod": "train-0", "container": "main"}
    _, history, _ = scanned([*amd(0, 80, 90_000, **tenant), *amd(1, 0, 300)])
    (grant,) = history.inventory.grants
    assert (grant.pod_id, grant.card, grant.framebuffer_granted_bytes) == ("team/train-0", "amd-0", 196_592 * 2**20)
    assert {card.card: card.framebuffer_bytes for card in history.inventory.cards} == dict.fromkeys(
        ("amd-0", "amd-1"), 196_592 * 2**20
    )
    assert np.nanmax(history.slices.mean[Measure.DUTY_CYCLE]) == pytest.approx(0.8)


def test_a_mig_instance_is_granted_its_part(scanned):
    labels = {"UUID": "GPU-1", "modelName": "NVIDIA A100-SXM4-80GB", "Hostname": "n1", "GPU_I_PROFILE": "3g.40gb",
              "GPU_I_ID": "1", "namespace": "team", "pod": "p", "container": "c"}  # fmt: skip
    _, history, _ = scanned(
        [
            series("DCGM_FI_PROF_GR_ENGINE_ACTIVE", labels, 0.5),
            series("DCGM_FI_DEV_FB_USED", labels, 1_000),
        ]
    )
    (grant,), (card,) = history.inventory.grants, history.inventory.cards
    assert (grant.mig_profile, grant.compute_granted_ratio) == ("3g.40gb", pytest.approx(3 / 7))
    assert grant.framebuffer_granted_bytes < card.framebuffer_bytes
    assert card.mig_mode is True


def test_owners_of_too_many_pods_are_known_for_the_newest_time_at_least(scanned):
    def refuse(path, asked, headers):
        del headers
        is_long = path == "/api/v1/series" and float(asked["end"]) - float(asked["start"]) > 3_600
        return api_error(422, "bad_data", "too many series") if is_long and "kube_" in asked["match[]"] else None

    said, history, _ = scanned(
        [*dcgm(1, 50, 4_000, pod="svc-abc-x"), *owners("svc-abc-x", "svc-abc", "svc")], refuse=refuse
    )
    assert [grant.workload_id for grant in history.inventory.grants] == ["team/Deployment/svc"]
    assert "too many series" in said.facts.failed["kube_pod_owner"]


def test_an_opt_out_and_a_tier_are_heard(scanned):
    labels = {"namespace": "team", "pod": "a", "label_gputide_io_opt_out": "true", "label_gputide_io_tier": "free"}
    _, history, _ = scanned([*dcgm(1, 0, 4_000, pod="a"), series("kube_pod_labels", labels, 1)])
    assert history.inventory.grants[0].label(OPT_OUT_LABEL) == "true"
    assert history.inventory.grants[0].priority is Priority.LOW


def test_a_pair_of_replicas_counts_once(scanned):
    later = [ts + 7_000 for ts in times()[:-1]]
    _, history, _ = scanned(
        [*dcgm(1, 50, 4_000, pod="a", replica="0"), *dcgm(1, 50, 4_000, pod="a", replica="1", at=later)]
    )
    assert history.cards is not None
    assert history.cards.step_seconds == 300
    assert np.nanmax(history.cards.mean[Measure.DUTY_CYCLE]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("name", "value", "measure", "read"),
    [
        ("DCGM_FI_DEV_GPU_UTIL", 0.37, Measure.DUTY_CYCLE, 0.37),
        ("DCGM_FI_DEV_GPU_UTIL", 37, Measure.DUTY_CYCLE, 0.37),
        ("DCGM_FI_DEV_GPU_UTIL", 1, Measure.DUTY_CYCLE, 0.01),
        ("DCGM_FI_PROF_SM_ACTIVE", 37, Measure.SM_ACTIVE, 0.37),
        ("DCGM_FI_DEV_FB_USED", 4 * 2**30, Measure.FRAMEBUFFER_USED, 4 * 2**30),
        ("DCGM_FI_DEV_FB_USED", 4_096, Measure.FRAMEBUFFER_USED, 4 * 2**30),
    ],
)
def test_a_unit_is_known_by_what_the_metric_holds(name, value, measure, read, scanned):
    labels = {"UUID": "GPU-1", "modelName": "NVIDIA A10", "Hostname": "n1"}
    _, history, _ = scanned([series(name, labels, value)])
    assert history.cards is not None
    assert np.nanmax(history.cards.mean[measure]) == pytest.approx(read)


def test_a_scan_that_was_cut_goes_on_and_a_second_reads_nothing_twice(scanned, tmp_path):
    found = [*dcgm(1, 40, 4_000, pod="a"), *dcgm(2, 0, 0)]
    evening = SINCE_MS + SPAN_MS // 2

    def cut(path, asked, headers):
        del path, headers
        if "ms]" in asked.get("query", "") and float(asked["time"]) * 1000 > evening:
            return api_error(503, "unavailable", "down")
        return None

    with pytest.raises(Unavailable, match="down"):
        scanned(found, refuse=cut)
    _, history, script = scanned(found)
    again = [float(asked["time"]) * 1000 for _, asked in script.asked if "ms]" in asked.get("query", "")]
    # It had come to five o'clock: an hour, and then four.
    assert min(again) == SINCE_MS + 6 * HOUR_MS
    _, whole, _ = scanned(found, folder=tmp_path / "at-once")
    assert history.inventory == whole.inventory
    for measure, values in whole.slices.mean.items():
        np.testing.assert_array_equal(history.slices.mean[measure], values)
    _, _, script = scanned(found)
    assert [asked for _, asked in script.asked if "ms]" in asked.get("query", "")] == []


def test_a_later_scan_adds_what_is_new_and_ends_who_has_gone(scanned):
    def all_until(ts_ms):
        return [
            *dcgm(1, 40, 4_000, pod="a", at=times(until_ms=min(ts_ms, UNTIL_MS))),
            *dcgm(2, 0, 0, at=times(until_ms=ts_ms)),
        ]

    _, before, _ = scanned(all_until(UNTIL_MS))
    later = UNTIL + timedelta(hours=6)
    _, after, _ = scanned(all_until(UNTIL_MS + 6 * HOUR_MS), until=later)
    assert [grant.ended_at for grant in before.inventory.grants] == [None]
    assert [grant.ended_at for grant in after.inventory.grants] == [UNTIL]
    assert after.slices.until == later


def test_one_of_several_clusters_must_be_chosen(scanned, tmp_path):
    found = [*dcgm(1, 40, 4_000, pod="a", region="east"), *dcgm(2, 10, 100, pod="b", region="west")]
    with pytest.raises(Misconfigured, match="'east', 'west'"):
        scanned(found, cluster_label="region")
    said, history, _ = scanned(found, folder=tmp_path / "west", cluster_label="region", cluster="west")
    assert said.cluster == "west"
    assert [card.card for card in history.inventory.cards] == ["GPU-2"]


def test_a_server_without_any_card_is_told_so(scanned):
    with pytest.raises(NotEnoughData, match="dcgm-exporter"):
        scanned([series("kube_pod_info", {"namespace": "team", "pod": "a"}, 1)])


def test_a_folder_that_holds_received_samples_is_left_alone(scanned, tmp_path):
    folder = open_data_folder(tmp_path / "data", create=True)
    folder.bus().mkdir()
    with pytest.raises(Misconfigured, match="--data-dir"):
        scanned(dcgm(1, 0, 0))


def test_what_was_not_found_is_said_with_its_cost(scanned):
    hidden = {"namespace": "team", "pod": "unseen", "container": "c", "resource": "nvidia_com_gpu"}
    said, history, _ = scanned(
        [
            *dcgm(1, 0.5, 4_000, pod="a"),
            *[({**labels, "UUID": "GPU-9", "modelName": "Card X"}, points) for labels, points in dcgm(9, 0, 1)[:2]],
            series("kube_pod_container_resource_requests", hidden, 1),
        ]
    )
    missed = {
        item.what: item.costs for item in misses_of(said, history, profiled(history, Settings(), UNTIL), Settings())
    }
    assert "upper bound" in missed["measure sm_active_ratio"]
    assert "single pods" in missed["kube_pod_owner"]
    assert "1 pods that ask for some" in " ".join(missed)
    assert "framebuffer of Card X" in missed
    assert "ratios" in missed["the unit of DCGM_FI_DEV_GPU_UTIL"]


def test_names_that_kubernetes_has_for_no_pod_hold_no_card(scanned):
    hostile = '<img src=x onerror=alert(1)>\u202e=cmd|"|\\{}'
    said, history, _ = scanned([*dcgm(1, 40, 4_000, pod=hostile), *dcgm(2, 40, 4_000, pod="x" * 5_000), *dcgm(3, 0, 0)])
    assert history.inventory.grants == ()
    assert [card.card for card in history.inventory.cards] == ["GPU-1", "GPU-3"]
    assert said.reading.nameless["DCGM_FI_DEV_GPU_UTIL"] == 1, "of the one that is too long to be read"


def test_a_record_is_a_trace_and_hashed_names_tell_nothing(scanned, tmp_path):
    _, history, _ = scanned([*dcgm(1, 40, 4_000, pod="secret-a"), *dcgm(2, 0, 0), *owners("secret-a", "rs", "secret")])
    folder = open_data_folder(tmp_path / "data", create=False)
    record(history, tmp_path / "plain", hide=shown)
    trace = open_trace(tmp_path / "plain")
    assert [pair.pod for pair in trace.pairs] == ["secret-a"]
    assert [grant.workload for grant in trace.grants_at(UNTIL)] == ["secret"]
    record(history, tmp_path / "hashed", hide=hasher(folder))
    record(history, tmp_path / "again", hide=hasher(folder))
    hashed = open_trace(tmp_path / "hashed")
    assert [pair.pod for pair in hashed.pairs] == [pair.pod for pair in open_trace(tmp_path / "again").pairs]
    told = json.dumps([str(item) for item in (hashed.cards, hashed.nodes, hashed.grants_at(UNTIL))])
    assert not [name for name in ("secret", "team", "GPU-1", "n1'", "main", "default") if name in told]
    assert folder.scan_key.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"url": None}, "no address"),
        ({"url": "ftp://x"}, "expected http"),
        ({"url": "http://me:secret@x"}, "scan.password_file"),
        ({"url": "http://x/?a=b"}, "behind the path"),
        ({"url": "http://x:99999"}, "scan.url"),
        ({"url": "http://x", "user": "me"}, "scan.password_file"),
        ({"url": "http://x", "bearer_token_file": Path("a"), "user": "me"}, "one of them"),
        ({"url": "http://x", "headers": {"X\r\nEvil": "1"}}, "not what HTTP allows"),
        ({"url": "http://x", "headers": {"Host": "1"}}, "program's own"),
        ({"url": "http://x", "matchers": ('a="b"} or {c="d"',)}, "scan.matchers"),
        ({"url": "http://x", "certificate_file": Path("a")}, "not https"),
    ],
)
def test_what_can_not_be_used_is_named_and_no_secret_shown(asked, words):
    settings = ScanSettings(**asked)
    with pytest.raises(Misconfigured) as caught:
        (scan_endpoint(settings), checked_matchers(settings))
    assert words in str(caught.value)
    assert "secret@" not in str(caught.value)


def test_an_address_may_end_with_the_path_of_the_api():
    access = scan_endpoint(ScanSettings(url="https://mimir.example/prometheus/api/v1/"))
    assert (access.host, access.port, access.path) == ("mimir.example", 443, "/prometheus")


def test_the_verb_prints_the_answer_and_ends_with_the_status_of_its_failure(tmp_path, program):
    script = ScriptedServer(
        [*dcgm(1, 0, 4_000, pod="idle-abc-x"), *owners("idle-abc-x", "idle-abc", "idle"), *dcgm(2, 0, 0)]
    )
    with serving(script):
        said = program(
            tmp_path / "data", "scan", script.url, "--since", "18h", "--until", UNTIL.isoformat(), "--format", "json"
        )
        assert said.status == 0, said.err
        assert said.document["cards"]["all"] == 2
        assert said.document["plan"]["schema"] == "gputide.plan/v1"
        assert "kube_node_status_allocatable" in {item["what"] for item in said.document["missed"]}
        script.refuse = lambda path, asked, headers: Refusal(401, b"")
        refused = program(tmp_path / "data", "scan", script.url)
    assert refused.status == 2
    assert "scan.bearer_token_file" in refused.err
    assert "Traceback" not in refused.err
    gone = program(tmp_path / "data", "--set", "scan.attempts_max=1", "scan", script.url)
    assert gone.status == 5


def a_shared_fleet(*more):
    """Sixteen lightly used services and two idle notebooks on cards of their own, and whatever else a server has."""
    found = list(more)
    for number in range(18):
        name, load = (f"svc{number}", _hum(number)) if number < 16 else (f"book{number}", 0)
        found += dcgm(number, load, 3_000, pod=f"{name}-abc-x", at=WEEK, node=f"n{number // 4}")
        labels = found[-1][0] | {"__name__": "DCGM_FI_PROF_SM_ACTIVE"}
        found.append((labels, [(ts, value / 100) for ts, value in found[-3][1]]))
        found += owners(f"{name}-abc-x", f"{name}-abc", name)
    return found


def _hum(number):
    return lambda ts: 4 + (ts // MINUTE_MS * 7919 + number * 31) % 13


WEEK = times(since_ms=UNTIL_MS - 8 * 24 * HOUR_MS, step_ms=15 * MINUTE_MS)


@pytest.fixture(scope="module")
def shared_fleet():
    """Return the address of a server that knows a fleet by dcgm-exporter and kube-state-metrics alone."""
    script = ScriptedServer(a_shared_fleet())
    with serving(script):
        yield script.url


WANTS_ALL = ("--set", "plan.spare_card_ratio=0", "--set", "recommender.reclaim_confidence_min=0.1")


def a_scan(url, *options):
    return (*WANTS_ALL, "scan", url, "--since", "8d", "--until", UNTIL.isoformat(), "--step", "15m", *options)


@pytest.mark.parametrize(
    ("series_of", "backend", "sign"),
    [
        (series("volcano_vgpu_device_memory_limit", {"devID": "GPU-1", "NodeName": "n0"}, 23_028),
         "volcano", "volcano_vgpu_device_memory_limit"),
        (series("hami_host_gpu_utilization_ratio", {"device_uuid": "GPU-1", "node": "n0"}, 10),
         "hami", "hami_host_gpu_utilization_ratio"),
        (series("kube_node_status_allocatable", {"node": "n0", "resource": "nvidia_com_gpu_shared"}, 8),
         "nvidia_time_slicing", "resource nvidia_com_gpu_shared"),
        (series("kube_pod_labels", {"namespace": "kai-resource-reservation", "pod": "p",
                                    "label_runai_gpu_group": "g"}, 1), "kai", "pods that reserve cards for it"),
    ],
)  # fmt: skip
def test_the_backend_whose_series_a_server_holds_is_assumed_and_said_first(series_of, backend, sign, tmp_path, program):
    script = ScriptedServer([series_of, *dcgm(1, 50, 4_000, pod="a-b-c"), *owners("a-b-c", "a-b", "a")])
    with serving(script):
        said = program(tmp_path / "data", "scan", script.url, "--since", "18h", "--until", UNTIL.isoformat())
        told = program(
            tmp_path / "data", "scan", script.url, "--since", "18h", "--until", UNTIL.isoformat(), "--format", "json"
        )
    assert said.status == 0, said.err
    first = said.out.splitlines()[0]
    assert first.startswith(f"assuming backend {backend}, because this server holds {sign}")
    assert "--backend NAME or --set enforcer.backend=NAME changes it" in " ".join(said.out.split())
    assert told.document["backend"]["name"] == told.document["plan"]["backend"] == backend


def test_what_the_backend_that_is_there_frees_stands_beside_what_others_would(shared_fleet, tmp_path, program):
    told = program(tmp_path / "data", *a_scan(shared_fleet, "--format", "json")).document
    backends = {one["backend"]: one for one in told["backends"]}
    assert list(backends) == ["whole_cards", "nvidia_time_slicing", "hami"]
    alone = program(tmp_path / "alone", *a_scan(shared_fleet, "--backend", "hami", "--format", "json")).document
    assert alone["backends"] == [backends["hami"], backends["whole_cards"], backends["nvidia_time_slicing"]]
    assert alone["plan"]["totals"]["cards_freed"] == backends["hami"]["cards_freed"]
    freed = [one["cards_freed"] for one in backends.values()]
    assert freed[0] < freed[2]
    assert freed == sorted(freed)
    kept = program(tmp_path / "data", "plan", "show", "--format", "json").document
    assert kept["backend"] == "whole_cards"


def test_without_a_sign_of_a_backend_whole_cards_are_called_a_guess_and_one_that_was_set_is_not(
    shared_fleet, tmp_path, program
):
    guessed = program(tmp_path / "guessed", *a_scan(shared_fleet))
    assert guessed.status == 0, guessed.err
    assert guessed.out.startswith("GUESSING backend whole_cards: nothing that this server holds shows that cards are")
    named = program(tmp_path / "named", *a_scan(shared_fleet, "--backend", "whole_cards"))
    assert named.out.startswith("backend whole_cards, as set")
    by_setting = program(tmp_path / "set", "--set", "enforcer.backend=hami", *a_scan(shared_fleet))
    assert by_setting.out.startswith("backend hami, as set")
    wrong = program(tmp_path / "wrong", *a_scan(shared_fleet, "--backend", "hammi"))
    assert wrong.status == 2
    assert "hammi" in wrong.err


def test_the_headline_counts_workloads_of_unknown_state_and_a_missing_price_names_the_command(tmp_path, program):
    new = [*dcgm(99, 50, 4_000, pod="new-abc-x", at=WEEK[-8:]), *owners("new-abc-x", "new-abc", "new")]
    script = ScriptedServer(a_shared_fleet(*new))
    script.series = [
        ({**labels, "modelName": "NVIDIA Z9000"} if "modelName" in labels else labels, points)
        for labels, points in script.series
    ]
    with serving(script):
        said = program(tmp_path / "data", *a_scan(script.url))
    text = " ".join(said.out.split())
    assert "1 of 19 workloads unknown" in text
    assert (
        "value unknown: no price for NVIDIA Z9000 (set one with `gputide cost prices set 'NVIDIA Z9000' PRICE`)" in text
    )
    assert program(tmp_path / "data", "cost", "prices", "set", "NVIDIA Z9000", "1.00").status == 0


@pytest.mark.parametrize("backend", ["hami", "nvidia_time_slicing", "whole_cards"])
def test_after_a_scan_the_plan_is_shown_from_what_was_seen_and_nothing_is_changed(
    shared_fleet, backend, tmp_path, program
):
    data = tmp_path / "data"
    plan = program(data, *a_scan(shared_fleet, "--backend", backend, "--format", "json")).document["plan"]
    assert plan["totals"]["cards_freed"] > 0
    then = ("--now", UNTIL.isoformat())
    shown = program(data, "plan", "diff", "--plan", plan["plan_id"])
    assert shown.status == 0, shown.err
    assert "are gone since the plan" not in shown.out
    assert "no cluster" in " ".join(shown.out.split())
    stages = program(data, "plan", "diff", "--format", "json").document["stages"]
    assert sum(stage["cards_freed"] for stage in stages) == plan["totals"]["cards_freed"]
    moved = {f"{move['namespace']}/{move['pod']}" for stage in stages for move in stage["moves"]}
    assert moved == {pod for item in plan["recommendations"] for pod in item["pods"]}
    assert program(data, *then, "plan", "approve").status == 0
    assert "nothing was changed" in program(data, *then, "apply").out
    for asked in (("--yes",), ("--emit", "kubectl", "-o", str(tmp_path / "files"))):
        refused = program(data, *then, "apply", *asked)
        assert refused.status == 4, refused.out
        assert "enforcer.cluster=kubernetes" in refused.err
    assert not (tmp_path / "files").exists()


def test_a_plan_made_after_a_scan_is_for_the_backend_of_the_scan_and_says_so(shared_fleet, tmp_path, program):
    data, make = tmp_path / "data", ("plan", "make", "--format", "json")
    scanned = program(data, *a_scan(shared_fleet, "--format", "json")).document["plan"]
    then = (*WANTS_ALL, "--now", UNTIL.isoformat())
    said = program(data, *then, "plan", "make")
    assert "backend whole_cards, as the scan of cluster default planned for" in " ".join(said.out.split())
    made = program(data, *then, *make).document
    assert (made["backend"], made["totals"]) == ("whole_cards", scanned["totals"])
    asked = program(data, *then, "--set", "enforcer.backend=hami", *make).document
    assert asked["backend"] == "hami"
    program(data, *a_scan(shared_fleet, "--backend", "nvidia_time_slicing"))
    assert program(data, *then, *make).document["backend"] == "nvidia_time_slicing"


@pytest.mark.parametrize(("backend", "is_told"), [("kai", True), ("hami", False)])
def test_a_plan_for_a_backend_that_nothing_real_has_accepted_says_so(backend, is_told, shared_fleet, tmp_path, program):
    data = tmp_path / "data"
    texts = [program(data, *a_scan(shared_fleet, "--backend", backend)).out]
    texts += [program(data, "plan", verb).out for verb in ("show", "diff")]
    assert [f"experimental: no real scheduler or device plugin of {backend}" in text for text in texts] == [is_told] * 3
