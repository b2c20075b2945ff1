"""What servers say of their KV caches makes their need known, by a scan and by remote write, for their own pod alone.

Each world is told twice: as a Prometheus that a scan asks, and as requests of remote write to the receiver.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from fleet.data_folder import open_data_folder
from fleet.schema import Measure
from fleet.series import slice_series
from fleet.server_series import recorded_name
from fleet.settings.scan import ScanSettings
from fleet.settings.settings import ClusterSettings, Settings
from fleet.units import MIB
from gputide.container.history import load_history, profiled
from gputide.scanning.answer import misses_of
from gputide.scanning.scan import scan
from pipeline.remote_write.decode import Version
from pipeline.remote_write.encode import LabelSets
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from recommender.demand import demand_of
from tests.pipeline.builders import file_bus, intake_of, roll_up
from tests.pipeline.history.scripted_server import ScriptedServer, serving
from tests.server_metrics import (
    LMDEPLOY,
    SGLANG,
    SGLANG_POOL_BYTES,
    TGI,
    TRITON,
    TRTLLM_FP8,
    TRTLLM_POOL_BYTES,
    TRTLLM_SERVE,
    VLLM_POOL_BYTES,
    VLLM_V0,
    VLLM_V1,
    scraped,
)

pytestmark = pytest.mark.long

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
SPAN_MS = 26 * HOUR_MS
UNTIL = datetime(2026, 1, 6, 18, tzinfo=UTC)
UNTIL_MS = round(UNTIL.timestamp() * 1000)
SINCE_MS = UNTIL_MS - SPAN_MS
USED_MIB, CARD_MIB = 21_500, 23_028
USED_BYTES = USED_MIB * MIB

Told = list[tuple[dict[str, str], list[tuple[int, float]]]]


def times(since_ms=SINCE_MS, until_ms=UNTIL_MS):
    return list(range(since_ms + 5 * MINUTE_MS, until_ms + 1, 5 * MINUTE_MS))


def said(text, pod, *, at=None, **target) -> Told:
    """What a pod writes, scrape by scrape."""
    return [(labels, [(ts, value) for ts in at or times()]) for labels, value in scraped(text, pod, **target)]


def held(pod, cards=(1,), *, live, container="main") -> Told:
    """Who holds cards, as the path's own exporters say it: a busy pod whose framebuffer stands still."""
    found: Told = []

    def add(name, labels, value):
        found.append(({"__name__": name, **labels}, [(ts, float(value(ts))) for ts in times()]))

    busy = lambda ts: 30 + ts // MINUTE_MS % 61  # noqa: E731
    for card in cards:
        if not live:
            labels = {"UUID": f"GPU-{card}", "modelName": "NVIDIA A10", "Hostname": "n1", "namespace": "team"}
            labels |= {"pod": pod, "container": container}
            add("DCGM_FI_DEV_GPU_UTIL", labels, busy)
            add("DCGM_FI_DEV_FB_USED", labels, lambda _: USED_MIB)
            add("DCGM_FI_DEV_FB_FREE", labels, lambda _: CARD_MIB - USED_MIB)
            continue
        own = {"node": "n1", "card": f"GPU-{card}", "card_model": "NVIDIA A10"}
        seat = {**own, "namespace": "team", "pod": pod, "container": container}
        size = {"framebuffer_bytes": str(CARD_MIB * MIB)}
        started = datetime.fromtimestamp(SINCE_MS / 1000, UTC).isoformat()
        kind = {"workload": pod, "workload_kind": "Deployment", "started_at": started}
        add("gputide_card_info", {**own, **size}, lambda _: 1)
        add("gputide_slice_info", {**seat, **size, **kind}, lambda _: 1)
        add(slice_series(Measure.DUTY_CYCLE), seat, lambda ts: busy(ts) / 100)
        add(slice_series(Measure.FRAMEBUFFER_USED), seat, lambda _: USED_BYTES)
    return found


@pytest.fixture(params=["scan", "receive"])
def told(request, tmp_path):
    """Return a function that tells a world by one path and gives its history; and whether that path is the live one."""
    settings = Settings(cluster=ClusterSettings(name="default"))
    is_live = request.param == "receive"

    def by_scan(world):
        script = ScriptedServer(world)
        with serving(script):
            asked = ScanSettings(url=script.url, since_seconds=SPAN_MS // 1000, attempts_max=1)
            data = open_data_folder(tmp_path / "data", create=True)
            found = scan(data, Settings(scan=asked), now=UNTIL, tick=lambda done, total: None)
        history = load_history(data, settings, UNTIL)
        history_misses = misses_of(found, history, profiled(history, settings, UNTIL), settings)
        return history, " ".join(f"{one.what}: {one.costs}" for one in history_misses)

    def by_remote_write(world):
        bus, kept = file_bus(tmp_path / "bus", bytes_max=1 << 28), DuckdbWarehouse(tmp_path / "warehouse")
        taking = intake_of(bus)
        # An hour in each request, as they come: the rows of one series are merged over requests.
        for since_ms in range(SINCE_MS, UNTIL_MS, HOUR_MS):
            sets: list[dict[str, str]] = []
            number, ts_ms, values = [], [], []
            for labels, points in world:
                here = [(ts, value) for ts, value in points if since_ms < ts <= since_ms + HOUR_MS]
                number += [len(sets)] * len(here)
                ts_ms += [ts for ts, _ in here]
                values += [value for _, value in here]
                sets += [{**labels, "cluster": "default"}] if here else []
            body = LabelSets(sets).encode(Version.V2, np.array(number), np.array(ts_ms), np.array(values))
            assert taking.take(body, Version.V2).status == 204
        roll_up(bus, kept)
        since = datetime.fromtimestamp(SINCE_MS / 1000, UTC) - timedelta(days=1)
        dropped = taking.counts["samples_of_dropped_series"] + taking.counts["samples_out_of_range"]
        return kept.history("default", since=since, until=UNTIL), f"{dropped} dropped" if dropped else ""

    def run(build):
        return (by_remote_write if is_live else by_scan)(build(is_live))

    return run


def need_of(history, pod):
    settings = Settings(cluster=ClusterSettings(name="default"))
    grants = {grant.pod: grant.workload_id for grant in history.inventory.grants}
    profiles = profiled(history, settings, UNTIL).workloads
    (found,) = [one for one in profiles if one.workload == grants[pod]]
    return found.framebuffer.need_max


@pytest.mark.parametrize(
    ("text", "server", "pool"),
    [
        pytest.param(VLLM_V0, "vllm", VLLM_POOL_BYTES, id="vllm-v0"),
        pytest.param(VLLM_V1, "vllm", VLLM_POOL_BYTES, id="vllm-v1"),
        pytest.param(VLLM_V1.replace("vllm:", "kserve_vllm:"), "vllm", VLLM_POOL_BYTES, id="kserve"),
        pytest.param(VLLM_V1.replace('"auto"', '"fp8"'), "vllm", VLLM_POOL_BYTES // 2, id="vllm-fp8"),
        pytest.param(SGLANG, "sglang", SGLANG_POOL_BYTES, id="sglang"),
        pytest.param(TRTLLM_FP8, "tensorrt-llm", TRTLLM_POOL_BYTES // 2, id="trtllm-serve"),
        pytest.param(TRTLLM_FP8.replace("trtllm_", "trtllm:"), "tensorrt-llm", TRTLLM_POOL_BYTES // 2, id="dynamo"),
    ],
)  # fmt: skip
def test_the_need_of_a_server_that_says_its_cache_is_known(told, text, server, pool):
    history, _ = told(lambda live: [*held("svc", live=live), *said(text, "svc", container="main")])
    (grant,) = history.inventory.grants
    assert (grant.server, grant.kv_cache_pool_bytes) == (server, pool)
    assert need_of(history, "svc") == pytest.approx(USED_BYTES - 0.75 * pool, rel=1e-5)
    assert demand_of(history).has_need.all()


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(VLLM_V1.replace("Llama-3.1-8B-Instruct", "our-own-model"), id="model-unknown"),
        pytest.param(VLLM_V1.replace("Llama-3.1-8B-Instruct", "Llama-3.1-8B-Instruct-FP8"), id="type-unknown"),
        pytest.param(VLLM_V1.replace('num_gpu_blocks="2805"', 'num_gpu_blocks="None"'), id="not-yet-sized"),
        pytest.param(VLLM_V1.replace('num_gpu_blocks="2805"', 'num_gpu_blocks="28050"'), id="larger-than-the-grant"),
        pytest.param(VLLM_V1.replace('num_gpu_blocks="2805"', 'num_gpu_blocks="10760"'), id="larger-than-all-held"),
        pytest.param(VLLM_V1.replace('num_gpu_blocks="2805"', 'num_gpu_blocks="1e999"'), id="no-number"),
        pytest.param(VLLM_V1.replace('num_gpu_blocks="2805"', 'num_gpu_blocks="-5"'), id="negative"),
        pytest.param(VLLM_V1.replace('memory_bytes="None"', 'memory_bytes="4294967296"'), id="bytes-that-were-set"),
        pytest.param(VLLM_V0.replace('override="None"', 'override="2805"'), id="blocks-that-were-set"),
        pytest.param(SGLANG.replace("} 8.0", "} 0.0"), id="sglang-not-measured"),
        pytest.param(SGLANG.replace("} 8.0", "} -8.0"), id="sglang-negative"),
        pytest.param(SGLANG.replace("} 8.0", "} +Inf"), id="sglang-infinite"),
        pytest.param(TRTLLM_SERVE.replace("Llama-3.1-8B-Instruct", "ours"), id="trtllm-serve-of-our-own"),
        pytest.param(TRTLLM_SERVE.replace("max_blocks", "blocks"), id="trtllm-serve-without-blocks"),
        pytest.param(TRITON, id="triton-that-names-no-model"),
        pytest.param(LMDEPLOY, id="lmdeploy"),
        pytest.param(TGI, id="tgi"),
    ],
)
def test_what_is_not_sure_stays_unknown(told, text):
    history, _ = told(lambda live: [*held("svc", live=live), *said(text, "svc", container="main")])
    assert need_of(history, "svc") is None
    assert history.inventory.grants[0].server is None or not demand_of(history).has_need.any()


def named(world: Told, pod: str, model: str, *, live: bool) -> Told:
    """A world in which somebody wrote on a pod which model it serves."""
    label = {"gputide.io/model": model}
    if live:
        return [
            (labels | {"labels": json.dumps(label)} if labels["__name__"] == "gputide_slice_info" else labels, points)
            for labels, points in world
        ]
    told = {"__name__": "kube_pod_labels", "namespace": "team", "pod": pod, "label_gputide_io_model": model}
    return [*world, (told, [(ts, 1.0) for ts in times()])]


QWEN = "Qwen2.5-7B-Instruct"
SERVED = {
    "tgi": (TGI, "tgi", 40_960 * 57_344),
    "triton": (TRITON, "tensorrt-llm", 1400 * 32 * 57_344),
    "trtllm": (TRTLLM_SERVE.replace("meta-llama/Llama-3.1-8B-Instruct", QWEN), "tensorrt-llm", 1400 * 32 * 57_344),
}
"""Servers that say tokens and no type, and the bytes that these take with values of sixteen bits."""


@pytest.mark.parametrize("family", SERVED)
def test_of_a_cache_of_unknown_type_the_need_goes_by_the_smallest(told, family):
    text, server, most = SERVED[family]
    usage = recorded_name(Measure.KV_CACHE_USAGE), {"namespace": "team", "pod": "svc"}
    says_share = "kv_cache_utilization" in text
    share = [] if says_share else [({"__name__": usage[0], **usage[1]}, [(ts, 0.25) for ts in times()])]

    def world(live):
        return named([*held("svc", live=live), *said(text, "svc", container="main"), *share], "svc", QWEN, live=live)

    history, _ = told(world)
    (grant,) = history.inventory.grants
    assert grant.server == server
    assert (grant.kv_cache_pool_bytes, grant.kv_cache_pool_max_bytes) == (most // 4, most)
    assert need_of(history, "svc") == pytest.approx(USED_BYTES - 0.75 * most // 4, rel=1e-5)
    profile = profiled(history, Settings(cluster=ClusterSettings(name="default")), UNTIL).workloads[0].framebuffer
    assert (profile.pool_min, profile.pool_max) == (most // 4, most)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        pytest.param(VLLM_V1, QWEN, id="another-model-by-its-label"),
        pytest.param(LMDEPLOY.replace("internlm/internlm2_5-7b-chat", QWEN), QWEN, id="neither-bytes-nor-tokens"),
        pytest.param(TGI, "models", id="a-folder"),
    ],
)
def test_a_label_makes_no_size_that_the_server_does_not_bear_out(told, text, label):
    history, _ = told(
        lambda live: named([*held("svc", live=live), *said(text, "svc", container="main")], "svc", label, live=live)
    )
    assert [grant.kv_cache_pool_bytes for grant in history.inventory.grants] == [None]


def test_the_engine_is_the_server_and_not_what_passes_requests_on(told):
    text = LMDEPLOY + "# TYPE ray_serve_replica_processing_queries gauge\nray_serve_replica_processing_queries 1\n"
    history, _ = told(lambda live: [*held("svc", live=live), *said(text, "svc", container="main")])
    assert [grant.server for grant in history.inventory.grants] == ["lmdeploy"]


def test_the_engines_own_name_counts_where_the_label_names_a_folder(told):
    text = VLLM_V1.replace("meta-llama/Llama-3.1-8B-Instruct", "llama-3.1-8b-instruct")
    history, _ = told(
        lambda live: named([*held("svc", live=live), *said(text, "svc", container="main")], "svc", "models", live=live)
    )
    assert [grant.kv_cache_pool_bytes for grant in history.inventory.grants] == [VLLM_POOL_BYTES]


@pytest.mark.parametrize("tokens", ["0", "4e6", "1e30", "-7", "NaN"])
def test_tokens_that_do_not_fit_what_is_held_say_nothing(told, tokens):
    text = TGI.replace("40960", tokens)
    history, _ = told(
        lambda live: named(
            [*held("svc", live=live), *said(text, "svc", container="main")], "svc", "Qwen2.5-7B-Instruct", live=live
        )
    )
    assert [grant.kv_cache_pool_bytes for grant in history.inventory.grants] == [None]


@pytest.mark.parametrize("text", [VLLM_V1.replace('="2805"', '="-5"'), SGLANG.replace("} 8.0", "} -8.0")])
def test_a_size_that_can_t_be_is_counted(told, text):
    _, words = told(lambda live: [*held("svc", live=live), *said(text, "svc", container="main")])
    assert "dropped" in words or "facts of cards, pods and servers" in words


def test_a_server_can_t_speak_for_another_pod_whatever_labels_it_writes(told):
    claims = 'pod="victim",namespace="team",container="main",exported_pod="victim",exported_namespace="team",'
    hostile = VLLM_V1.replace("2805", "9000").replace("0.25", "0.0").replace("{", "{" + claims)
    history, _ = told(
        lambda live: [
            *held("victim", (1,), live=live),
            *said(VLLM_V1, "victim", container="main"),
            *held("hostile", (2,), live=live),
            *said(hostile, "hostile", container="main"),
        ]
    )
    pools = {grant.pod: grant.kv_cache_pool_bytes for grant in history.inventory.grants}
    assert pools == {"victim": VLLM_POOL_BYTES, "hostile": 9000 * 16 * 131_072}
    assert need_of(history, "victim") == pytest.approx(USED_BYTES - 0.75 * VLLM_POOL_BYTES, rel=1e-5)


def test_values_of_one_pod_don_t_change_the_unit_of_others(told):
    history, _ = told(
        lambda live: [
            *held("victim", (1,), live=live),
            *said(VLLM_V1, "victim", container="main"),
            *said(VLLM_V1.replace("0.25", "75.0"), "elsewhere", container="main"),
        ]
    )
    assert need_of(history, "victim") == pytest.approx(USED_BYTES - 0.75 * VLLM_POOL_BYTES, rel=1e-5)


def test_the_newest_size_counts_after_a_restart(told):
    half = SINCE_MS + SPAN_MS // 2
    smaller = VLLM_V1.replace("2805", "2700")
    history, _ = told(
        lambda live: [
            *held("svc", live=live),
            *said(VLLM_V1.replace("2805", "2990"), "svc", at=times(until_ms=half - HOUR_MS), container="main"),
            *said(smaller, "svc", at=times(since_ms=half), container="main"),
        ]
    )
    assert [grant.kv_cache_pool_bytes for grant in history.inventory.grants] == [2700 * 16 * 131_072]


def test_a_measured_size_that_changes_is_the_newest_too(told):
    half = SINCE_MS + SPAN_MS // 2
    series = said(SGLANG, "svc", container="main")
    for labels, points in series:
        if labels["__name__"].endswith("kv_cache_memory_usage_gb"):
            points[:] = [(ts, 7.5 if ts < half else 7.0) for ts, _ in points]
    history, _ = told(lambda live: [*held("svc", live=live), *series])
    assert [grant.kv_cache_pool_bytes for grant in history.inventory.grants] == [7 * 2**30]


def test_engines_of_one_pod_repeat_their_blocks_and_cards_share_them(told):
    second = "".join(
        line + "\n" for line in VLLM_V1.replace('engine="0"', 'engine="1"').splitlines() if not line.startswith("#")
    )
    history, _ = told(lambda live: [*held("svc", (1, 2), live=live), *said(VLLM_V1 + second, "svc", container="main")])
    pools = [grant.kv_cache_pool_bytes for grant in history.inventory.grants]
    assert pools == [VLLM_POOL_BYTES // 2] * 2


def test_two_servers_in_one_pod_that_no_label_distinguishes_stay_unknown(told):
    history, _ = told(
        lambda live: [
            *held("svc", live=live),
            *said(VLLM_V1, "svc", instance="10.0.0.1:8000"),
            *said(VLLM_V1.replace("2805", "1000"), "svc", instance="10.0.0.1:8001"),
        ]
    )
    assert [grant.kv_cache_pool_bytes for grant in history.inventory.grants] == [None]
