"""Sightings as inventory: one slice that two exporters tell of is one grant."""

from __future__ import annotations

import json

from fleet.inventory import AUTOSCALED_LABEL, TIER_LABEL, Grant, Inventory, Priority
from fleet.schema import ALLOCATIONS, GRANT_LABELS, SERVER_LABELS, SERVERS
from fleet.servers import MODEL_LABEL, SERVER_LABEL
from fleet.units import GIB
from pipeline.records.sightings import inventory_of

HOUR_MS = 3_600_000
START_MS = 1_767_571_200_000  # 2026-01-05 00:00 UTC
SCALED = {AUTOSCALED_LABEL: "HorizontalPodAutoscaler 2-10"}


def sighting(labels: dict[str, str], *, last: int, ended: int | None = None, **changes: str) -> dict[str, object]:
    """A pod's grant as an exporter tells it, last seen so many hours after the start."""
    told = dict.fromkeys(GRANT_LABELS, "") | {
        "cluster": "c1", "namespace": "team", "pod": "web-1", "container": "main", "node": "n1", "card": "GPU-1",
        "card_model": "NVIDIA A10", "workload": "web", "workload_kind": "Deployment",
        "framebuffer_bytes": str(24 * GIB), "started_at": "2026-01-05T00:00:00Z", "labels": json.dumps(labels),
    }  # fmt: skip
    times = {"first_seen": START_MS, "last_seen": START_MS + last * HOUR_MS}
    return {**told, **changes, **times, "ended_at": None if ended is None else START_MS + ended * HOUR_MS}


def grants(*rows: dict[str, object], said: tuple[dict[str, object], ...] = ()) -> tuple[Grant, ...]:
    tables = {ALLOCATIONS.name: rows, SERVERS.name: said}
    found: Inventory = inventory_of(tables, cluster="c1", as_of=None, time_zone="UTC")
    return found.grants


def test_a_slice_that_two_exporters_tell_of_is_one_grant_with_all_that_they_know() -> None:
    of_node, of_cluster = sighting({"app": "web"}, last=10), sighting({"app": "web", **SCALED}, last=9)
    for rows in ((of_node, of_cluster), (of_cluster, of_node)):
        (found,) = grants(*rows)
        assert dict(found.labels) == {"app": "web", **SCALED}
        assert found.ended_at is None


def test_a_label_that_has_ended_is_not_told_any_more() -> None:
    (before, now) = grants(sighting(SCALED, last=8, ended=9), sighting({}, last=10))
    assert sorted([before.ended_at is None, now.ended_at is None]) == [False, True]
    live = before if before.ended_at is None else now
    assert live.labels == ()


def test_of_a_label_with_two_values_the_one_seen_last_counts() -> None:
    newer = {AUTOSCALED_LABEL: "HorizontalPodAutoscaler 3-10"}
    (found,) = grants(sighting(newer, last=10), sighting(SCALED, last=9))
    assert dict(found.labels) == newer


def test_slices_that_differ_in_more_than_labels_stay_apart() -> None:
    assert len(grants(sighting({}, last=9), sighting(SCALED, last=10, card="GPU-2"))) == 2
    assert len(grants(sighting({}, last=9), sighting(SCALED, last=10, framebuffer_granted_bytes=str(GIB)))) == 2


def test_a_tier_is_the_priority_where_no_word_of_the_backend_says_one() -> None:
    said = [sighting(labels, last=9, priority=own) for labels in ({TIER_LABEL: "batch"}, {}) for own in ("", "high")]
    found = [grant.priority for one in said for grant in grants(one)]
    assert found == [Priority.LOW, Priority.HIGH, Priority.NORMAL, Priority.HIGH]


def test_a_rules_grant_names_image_start_and_mig_instance_in_others_words() -> None:
    (found,) = grants(
        sighting(
            {}, last=10, server="registry.example:5000/team/vllm:v1", started_at="1767571200", mig_profile="2g.20gb",
            card_model="NVIDIA A100-SXM4-80GB", framebuffer_bytes=str(80 * GIB),
        )
    )  # fmt: skip
    assert (found.server, round(found.started_at.timestamp() * 1000)) == ("vllm", START_MS)
    assert (found.compute_granted_ratio, found.framebuffer_granted_bytes < 24 * GIB) == (2 / 7, True)


def test_an_image_that_nobody_knows_is_no_server_and_a_name_is() -> None:
    for text, server in (("team/app:v1", None), ("house-made", "house-made"), ("", None)):
        assert grants(sighting({}, last=10, server=text))[0].server == server
    assert grants(sighting({SERVER_LABEL: "triton"}, last=10, server="team/app:v1"))[0].server == "triton"


NIM_IMAGE = "nvcr.io/nim/meta/llama-3.1-8b-instruct:1.8"


def said_by(server: str, **facts: str) -> dict[str, object]:
    """What a server in the pod says of itself, for ten hours."""
    own = {"cluster": "c1", "namespace": "team", "pod": "web-1", "container": "main", "server": server}
    times = {"first_seen": START_MS, "last_seen": START_MS + 10 * HOUR_MS, "ended_at": None}
    return {**dict.fromkeys(SERVER_LABELS, ""), **own, **facts, **times}


def test_of_nim_that_says_neither_bytes_nor_tokens_nothing_is_known() -> None:
    (found,) = grants(sighting({MODEL_LABEL: "Llama-3.1-8B-Instruct"}, last=10, server=NIM_IMAGE))
    assert (found.server, found.kv_cache_pool_bytes) == ("nim", None)


def test_of_an_engine_within_nim_that_hides_a_size_that_was_set_nothing_is_known() -> None:
    (found,) = grants(
        sighting({MODEL_LABEL: "Llama-3.1-8B-Instruct"}, last=10, server=NIM_IMAGE),
        said=(said_by("vllm", cache_dtype="auto", block_tokens="16"),),
    )
    assert found.kv_cache_pool_bytes is None


def tokens_said(*said: dict[str, str]) -> tuple[int | None, int | None]:
    """The least and the most of the cache of a server that says these things at once."""
    (found,) = grants(
        sighting({}, last=10),
        said=tuple(said_by("tensorrt-llm", **facts) for facts in said),
    )
    return found.kv_cache_pool_bytes, found.kv_cache_pool_max_bytes


def test_of_types_or_models_that_differ_at_once_nothing_is_known() -> None:
    blocks = {"model": "Llama-3.1-8B", "pool_blocks": "1000", "block_tokens": "32"}
    size = 32_000 * 131_072
    assert tokens_said(blocks) == (size // 4, size)
    assert tokens_said(blocks, {"cache_dtype": "fp8"}) == (size // 2, None)
    assert tokens_said(blocks, {"cache_dtype": "fp8"}, {"cache_dtype": "bfloat16"}) == (None, None)
    assert tokens_said(blocks, {"model": "Qwen2.5-14B"}) == (None, None)


def test_of_an_engine_and_what_passes_requests_on_to_it_the_engine_is_the_server() -> None:
    (found,) = grants(sighting({}, last=10), said=(said_by("dynamo"), said_by("sglang")))
    assert found.server == "sglang"
