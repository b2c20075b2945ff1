"""Plans travel as sealed JSON documents."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from fleet.capabilities.register import CorePolicy
from fleet.decisions import (
    CardPlacement,
    Evidence,
    HistorySpan,
    Need,
    PlacedSlice,
    Plan,
    Recommendation,
    RecommendationKind,
    RiskLevel,
    Saving,
    ScheduledReplicas,
    Stage,
    Totals,
)
from fleet.documents import plan_document, plan_from_json, plan_to_json, seal_plan
from fleet.errors import Corrupt, Refused
from fleet.inventory import CardId, CardModelName, Priority, WorkloadId
from fleet.sentences import sentence
from fleet.units import GIB

NOW = datetime(2026, 1, 12, tzinfo=UTC)
WORKLOAD = WorkloadId("team/Deployment/svc")
SAVING = Saving(amortised=Decimal("1234.56"), marginal=None)


def a_plan() -> Plan:
    evidence = Evidence(
        since=NOW - timedelta(days=7),
        until=NOW,
        samples=1008,
        coverage_ratio=0.99,
        counters=("sm_active_ratio",),
        numbers=(("sm_active_p99_ratio", 0.31),),
    )
    return Plan(
        plan_id="",
        created_at=NOW,
        expires_at=NOW + timedelta(days=1),
        cluster="c1",
        history=HistorySpan(since=NOW - timedelta(days=7), until=NOW, coverage_ratio=0.99),
        inputs_sha256="0" * 64,
        settings=(("risk.preset", "medium"),),
        risk=RiskLevel.MEDIUM,
        backend="hami",
        currency="USD",
        totals=Totals(
            cards_before=2,
            cards_after=1,
            cards_freed=1,
            spare_cards=0,
            nodes_freed=0,
            framebuffer_bytes_freed=24 * 2**30,
            low_priority_gpu_hours_per_week=0.0,
            saving_per_week=SAVING,
            predicted_violation_ratio=0.001,
            moves=1,
        ),
        recommendations=(
            Recommendation(
                id="slice-0001",
                kind=RecommendationKind.SLICE,
                workloads=(WORKLOAD,),
                pods=("team/svc-0",),
                cards_freed=1,
                saving_per_week=SAVING,
                risk_level=RiskLevel.LOW,
                confidence=0.9,
                why=(sentence("small_need", need_bytes=GIB, granted_bytes=24 * GIB),),
                evidence=evidence,
                needs=(Need.FRAMEBUFFER_LIMIT,),
            ),
        ),
        refused=(),
        withheld=(),
        placement=(
            CardPlacement(
                card=CardId("GPU-1"),
                card_model=CardModelName("NVIDIA A10"),
                node="n1",
                framebuffer_bytes=24 * 2**30,
                framebuffer_oversubscription_ratio=0.25,
                slices=(
                    PlacedSlice(
                        namespace="team",
                        pod="svc-0",
                        container="server",
                        workload=WORKLOAD,
                        framebuffer_bytes=6 * 2**30,
                        compute_ratio=0.4,
                        core_policy=CorePolicy.BURST,
                        priority=Priority.HIGH,
                    ),
                ),
            ),
        ),
        schedule=(
            ScheduledReplicas(
                workload=WORKLOAD, replicas=1, start="22:30", end="07:30", time_zone="Asia/Shanghai", frees=()
            ),
        ),
        stages=(Stage(stage=1, title=sentence("slice"), recommendations=("slice-0001",), cards_freed=1, moves=1),),
    )


def test_plan_survives_the_way_to_json_and_back() -> None:
    plan = seal_plan(a_plan())
    assert plan_from_json(plan_to_json(plan)) == plan


def test_plan_document_has_the_keys_of_the_contract() -> None:
    raw = plan_document(seal_plan(a_plan()))
    assert raw["schema"] == "gputide.plan/v1"
    assert raw["created_at"] == "2026-01-12T00:00:00Z"
    assert raw["settings"] == {"risk.preset": "medium"}
    assert raw["schedule"][0]["from"] == "22:30"
    assert raw["totals"]["saving_per_week"] == {"amortised": 1234.56, "marginal": None}


def test_same_content_gets_the_same_id_and_other_content_another() -> None:
    plan = seal_plan(a_plan())
    assert seal_plan(a_plan()).plan_id == plan.plan_id
    assert seal_plan(replace(a_plan(), cluster="c2")).plan_id != plan.plan_id


def test_plan_that_lends_no_framebuffer_has_the_bytes_that_it_had_before_lending() -> None:
    plan = a_plan()
    assert "memory_scaling" not in plan_to_json(seal_plan(plan)).decode()
    lent = seal_plan(replace(plan, placement=tuple(replace(card, memory_scaling=2.5) for card in plan.placement)))
    assert plan_from_json(plan_to_json(lent)) == lent
    assert lent.plan_id != seal_plan(plan).plan_id
    old = plan_document(plan)
    for card in old["placement"]:
        card.pop("memory_scaling", None)
    sealed = {**old, "plan_id": seal_plan(plan).plan_id}
    assert seal_plan(plan_from_json(json.dumps(sealed).encode())).plan_id == sealed["plan_id"]


def test_edited_plan_is_refused() -> None:
    raw = json.loads(plan_to_json(seal_plan(a_plan())))
    raw["placement"][0]["slices"][0]["framebuffer_bytes"] *= 2
    with pytest.raises(Refused, match="was edited"):
        plan_from_json(json.dumps(raw).encode())


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"schema": "gputide.plan/v9"}', b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_plan_is_corrupt(content: bytes) -> None:
    with pytest.raises(Corrupt, match="cannot read plan"):
        plan_from_json(content)


def test_missing_field_is_named() -> None:
    raw = json.loads(plan_to_json(seal_plan(a_plan())))
    del raw["totals"]["moves"]
    with pytest.raises(Corrupt, match=r"totals\.moves"):
        plan_from_json(json.dumps(raw).encode())
