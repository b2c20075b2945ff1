"""Arguments of servers in smaller slices: what is rendered is started, by a stand-in that takes memory as they do."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from analyzer.profile import profile_fleet
from dashboards.words.advice import plan_in_english
from enforcer.backends import server_arguments
from enforcer.kinds.register import workload_kind
from enforcer.manifest import Manifest, field_of, set_field
from fleet.capabilities.register import capabilities_of
from fleet.decisions import PlacedSlice, Plan, PoolCut
from fleet.errors import Refused
from fleet.server_series import SERVER_METRICS
from fleet.settings.settings import Settings
from fleet.units import GIB
from recommender.planner import make_plan
from tests.enforcer.builders import a_slice
from tests.enforcer.plugin_cluster import an_owner
from tests.recommender.builders import NOW, Service, cluster
from tests.server_metrics import scraped
from tests.stand_in_server import BLOCK_BYTES, Card, NotStarted, started

CARD = 24 * GIB
WEIGHTS, OTHERS = 4 * GIB, GIB
SHARE = 0.9
USED = SHARE * 24
POOL = USED - 5
CONTAINER = "spec.template.spec.containers[server]"
SHARES = [
    (["vllm", "serve", "M", "--gpu-memory-utilization", "0.9"], []),
    (["vllm", "serve"], ["M", "--gpu_memory_utilization=.9", "--port", "0"]),
    (["sh", "-c"], ["exec vllm serve M \\\n  --gpu-memory-utilization=0.9 # --gpu-memory-utilization 0.1\n"]),
    (["/bin/bash", "-ec", 'echo "starts it; takes 0.9" >&2\nvllm serve M --gpu-memory-utilization "0.9" --port 0'], []),
    (["vllm", "serve", "M"], []),
]


@cache
def planned(backend: str, server: str = "vllm", *, used_gib: float = USED, pool_gib: float = POOL) -> Plan:
    """A plan for two servers that have a card each."""
    services = [
        Service(name=name, server=server, level=0.1, used_gib=used_gib, pool_gib=pool_gib, cache_ratio=0.1)
        for name in ("chat", "code")
    ]
    settings = Settings.model_validate(
        {"risk": {"preset": "high"}, "plan": {"spare_card_ratio": 0.0}, "guard": {"gaps_allowed": True}}
    )
    history = cluster(*services, spare_cards=1)
    profiles = profile_fleet(history, settings=settings.analyzer, now=NOW)
    return make_plan(history, profiles, settings=settings, capability=capabilities_of(backend), now=NOW)


def slices_of(plan: Plan) -> list[PlacedSlice]:
    return [replace(part, container="server") for card in plan.placement for part in card.slices]


def owner_with(command: Sequence[str], args: Sequence[str] = (), kind: str = "Deployment") -> Manifest:
    owner = an_owner("chat", kind=kind)
    container = owner["spec"]["template"]["spec"]["containers"][0]
    container |= {name: words for name, words in (("command", command), ("args", args)) if words}
    return owner


def argument_fields(owner: Manifest, parts: Sequence[PlacedSlice]) -> dict[str, str | None]:
    (template,) = workload_kind(owner["kind"]).templates(owner)
    return server_arguments.argument_fields(owner, template, parts)


def command_of(owner: Manifest) -> list[str]:
    container = owner["spec"]["template"]["spec"]["containers"][0]
    return [*container.get("command", ()), *container.get("args", ())]


def changed(owner: Manifest, fields: Mapping[str, str | None]) -> list[str]:
    """The command after a change, which an undo takes back exactly."""
    before = json.dumps(owner)
    old = {path: field_of(owner, path) for path in fields}
    for path, value in fields.items():
        set_field(owner, path, value)
    command = command_of(owner)
    for path, value in old.items():
        set_field(owner, path, value)
    assert json.dumps(owner) == before
    return command


def met(total: int, limit: int, held: int = 0) -> Card:
    return Card(total_bytes=total, held_bytes=held, limit_bytes=limit, weights_bytes=WEIGHTS, others_bytes=OTHERS)


def ask(port: int, path: str, body: bytes | None = None) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", body) as answer:
        return answer.read().decode()


@pytest.mark.parametrize(("command", "args"), SHARES)
def test_servers_that_see_the_card_start_beside_each_other(command: list[str], args: list[str], tmp_path: Path) -> None:
    plan = planned("kai")
    parts = slices_of(plan)
    assert plan.totals.cards_freed == 1
    assert sum(part.framebuffer_bytes for part in parts) <= CARD
    owner, held = owner_with(command, args), 0
    with ExitStack() as running:
        for part in parts:
            found = changed(owner, argument_fields(owner, [part]))
            server = running.enter_context(started(found, met(CARD, CARD, held), tmp_path))
            assert server.taken_bytes <= part.framebuffer_bytes
            assert part.pool_cut is not None
            # A default of 0.92 is counted as 0.9, and the share is written in thousandths.
            assert server.pool_bytes == pytest.approx(part.pool_cut.pool_bytes, abs=0.001 * CARD + BLOCK_BYTES)
            held += server.taken_bytes
    with (
        started(command_of(owner), met(CARD, CARD), tmp_path) as first,
        pytest.raises(NotStarted, match="less than desired GPU memory utilization"),
        started(command_of(owner), met(CARD, CARD, first.taken_bytes), tmp_path),
    ):
        pass


@pytest.mark.parametrize("argument", ["17824743424", "16.6G", "17g", "17000M"])
def test_server_of_a_fixed_size_starts_in_its_slice(argument: str, tmp_path: Path) -> None:
    owner = owner_with(["vllm", "serve", "M", "--kv-cache-memory-bytes", argument, "--port=0"])
    part = slices_of(planned("hami"))[0]
    found = changed(owner, argument_fields(owner, [part]))
    assert part.pool_cut is not None
    assert found == ["vllm", "serve", "M", "--kv-cache-memory-bytes", str(part.pool_cut.pool_bytes), "--port=0"]
    limit = part.framebuffer_bytes
    with started(found, met(limit, limit), tmp_path) as server:
        assert part.pool_cut.pool_bytes - BLOCK_BYTES < server.pool_bytes <= part.pool_cut.pool_bytes
        assert server.taken_bytes <= limit
        assert "M" in ask(server.port, "/v1/models")
        assert "stop" in ask(server.port, "/v1/completions", b"{}")
        metrics = [labels for labels, _ in scraped(ask(server.port, "/metrics"), "chat-0")]
        assert {labels["__name__"] for labels in metrics} & SERVER_METRICS.keys()
    with pytest.raises(NotStarted, match="out of memory"), started(command_of(owner), met(limit, limit), tmp_path):
        pass


def test_share_of_the_slice_stays_and_fits(tmp_path: Path) -> None:
    owner = owner_with(["vllm", "serve", "M", "--gpu-memory-utilization", "0.9"])
    part = slices_of(planned("hami"))[0]
    assert argument_fields(owner, [part]) == {}
    limit = part.framebuffer_bytes
    with started(command_of(owner), met(limit, limit), tmp_path) as server:
        assert server.taken_bytes <= limit


@pytest.mark.parametrize(
    ("words", "card"),
    [
        (["sglang", "serve", "--model-path", "M", "--mem-fraction-static", "0.9"], {"others_bytes": 2 * GIB}),
        (["vllm", "serve", "M", "--gpu-memory-utilization", "0.9"], {"outside_bytes": 2 * GIB}),
    ],
)
def test_what_lies_outside_of_the_share_keeps_its_room(words: list[str], card: dict[str, int], tmp_path: Path) -> None:
    """Graphs do not shrink with the slice: 2 GiB beside a share of 0.9 fit 24 GiB, and not a slice."""
    owner = owner_with(words)
    held = replace(met(CARD, CARD), **card)
    with started(words, held, tmp_path) as before:
        plan = planned("hami", words[0], used_gib=before.taken_bytes / GIB, pool_gib=before.pool_bytes / GIB)
    part = slices_of(plan)[0]
    found = changed(owner, argument_fields(owner, [part]))
    limit = part.framebuffer_bytes
    small = replace(held, total_bytes=limit, limit_bytes=limit)
    with started(found, small, tmp_path) as server:
        assert part.pool_cut is not None
        assert server.taken_bytes <= limit
        assert server.pool_bytes == pytest.approx(part.pool_cut.pool_bytes, abs=0.001 * limit + 2 * BLOCK_BYTES)
    with pytest.raises(NotStarted, match="out of memory"), started(words, small, tmp_path):
        pass


@pytest.mark.parametrize(
    ("command", "args"),
    [
        ([], []),
        (["vllm", "serve", "--config", "/etc/vllm.yaml"], []),
        (["vllm", "serve", "M", "--gpu-memory-utilization", "0.9", "--gpu_memory_utilization", "0.95"], []),
        (["vllm", "serve", "M", "--gpu-memory-util", "0.9"], []),
        (["vllm", "serve", "M", "--gpu-memory-utilization", "$(SHARE)"], []),
        (["vllm", "serve", "M", "$(MORE)"], []),
        (["sh", "-c", "vllm serve M --gpu-memory-utilization $SHARE"], []),
        (["sh", "-c", "vllm serve M --gpu-memory-utilization 0.9 $@", "--"], ["--gpu-memory-utilization", "1"]),
        (["sh", "-c", "vllm serve M#1 --gpu-memory-utilization 0.9"], []),
        (["sh", "-c", 'vllm serve M --gpu-memory-utilization "0"".9" 0.9'], []),
        (["sh", "-c", "vllm serve M `cat more`"], []),
        (["sh", "-c", "vllm serve 'M"], []),
        (["sh", "-c", "vllm serve M"], []),
        (["sh", "/start.sh"], ["--gpu-memory-utilization", "0.9"]),
        (["env", "-S", "vllm serve M --gpu-memory-utilization 0.9"], []),
        (["python", "serve.py"], []),
        (["vllm", "serve", "M", "--num-gpu-blocks-override", "100"], []),
        (["vllm", "serve", "x" * 20_000], []),
        ([["vllm"], {"serve": 1}], []),
        (["vllm", "serve"], "M --gpu-memory-utilization 0.9"),
    ],
)  # fmt: skip
def test_server_whose_arguments_are_not_shown_for_sure_is_refused_where_it_sees_the_card(
    command: list[str], args: list[str]
) -> None:
    with pytest.raises(Refused, match=r"set --(gpu-memory-utilization|kv-cache-memory-bytes).[0-9.]+ there"):
        argument_fields(owner_with(command, args), slices_of(planned("kai")))


def test_job_and_share_too_small_are_refused() -> None:
    part = slices_of(planned("kai"))[0]
    words = ["vllm", "serve", "M", "--gpu-memory-utilization", "0.9"]
    with pytest.raises(Refused, match="template of a Job"):
        argument_fields(owner_with(words, kind="Job"), [part])
    words[-1] = "0.3"
    with pytest.raises(Refused, match="no room for a KV cache"):
        argument_fields(owner_with(words), [part])


def test_no_other_container_is_touched() -> None:
    owner = owner_with(["vllm", "serve", "M", "--gpu-memory-utilization", "0.9"])
    owner["spec"]["template"]["spec"]["containers"][1]["args"] = ["--gpu-memory-utilization", "0.9"]
    assert list(argument_fields(owner, slices_of(planned("kai")))) == [f"{CONTAINER}.command[4]"]
    assert argument_fields(owner, [a_slice("chat-0")]) == {}


def test_inference_service_has_them_where_its_model_stands() -> None:
    model = {"args": ["--gpu-memory-utilization=0.9"], "image": "vllm/vllm-openai:v0.11"}
    service = {"kind": "InferenceService", "spec": {"predictor": {"model": model}}}
    parts = [replace(part, container="kserve-container") for part in slices_of(planned("kai"))]
    assert argument_fields(service, parts) == {"spec.predictor.model.args[0]": "--gpu-memory-utilization=0.448"}
    del model["args"]
    with pytest.raises(Refused, match="shows no arguments"):
        argument_fields(service, parts)


@pytest.mark.parametrize(("backend", "server"), [("kai", "sglang"), ("nvidia_mps", "vllm"), ("nvidia_mps", "sglang")])
def test_server_that_no_argument_bounds_keeps_its_card(backend: str, server: str) -> None:
    plan = planned(backend, server)
    assert {refusal.reason for refusal in plan.refused} == {"server_sees_card"}
    assert [part.pool_cut for part in slices_of(plan)] == [None, None]
    sees = {"seen_before_bytes": CARD, "seen_bytes": CARD, "taken_bytes": CARD}
    cut = PoolCut(server="sglang", **sees, pool_bytes=GIB, cut_bytes=GIB)
    with pytest.raises(Refused, match="takes a share of the card that it sees"):
        argument_fields(owner_with(["sglang", "serve"]), [replace(a_slice("chat-0"), pool_cut=cut)])


def test_advice_says_what_to_set() -> None:
    reasons = [item["reason"] for item in plan_in_english(planned("kai"))["recommendations"]]
    assert any("--gpu-memory-utilization is lowered by 0.451" in reason for reason in reasons)
    reasons = [item["reason"] for item in plan_in_english(planned("hami"))["recommendations"]]
    assert any("shrinks from 16.6 to 2.4 GiB on each card" in reason.replace("Its", "its") for reason in reasons)
