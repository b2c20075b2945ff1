"""Advice beside the plan, through the real program: back-test with its picture, cordons, measured pairs."""

from __future__ import annotations

from pathlib import Path

import yaml

from enforcer.record.plan_store import PlanStore
from fleet.data_folder import open_data_folder
from fleet.documents import seal_plan
from tests.gputide.conftest import Program
from tests.recommender.builders import plan_of
from tests.recommender.test_rules import CASES, OPTIONS


def test_backtest_draws_what_it_says(replayed: Path, program: Program, tmp_path: Path) -> None:
    picture = tmp_path / "frontier.html"
    said = program(
        replayed,
        "plan",
        "backtest",
        "--train-days",
        "5",
        "--test-days",
        "2",
        "--picture",
        str(picture),
        "--format",
        "json",
    )
    assert said.status == 0, said.err
    page = picture.read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    for score in said.document["scores"]:
        assert score["rule"] in page
    assert "https://" not in page.split("<script>")[0]


def test_backtest_names_a_picture_that_cannot_be_written(replayed: Path, program: Program, tmp_path: Path) -> None:
    target = tmp_path / "nowhere" / "frontier.html"
    said = program(replayed, "plan", "backtest", "--train-days", "5", "--test-days", "2", "--picture", str(target))
    assert said.status == 2
    assert str(target) in said.err


def test_cordons_name_cards_that_stand_there(replayed: Path, program: Program) -> None:
    said = program(replayed, "plan", "cordon", "--format", "json")
    assert said.status == 0, said.err
    assert set(said.document) == {"cordons", "stranded"}
    for cordon in said.document["cordons"]:
        assert cordon["cards"]
        assert all(place["target"] not in cordon["cards"] for place in cordon["relocations"])


def test_routers_of_a_plan_are_written_as_values_and_refused_where_no_model_sleeps(
    program: Program, tmp_path: Path
) -> None:
    store, target = PlanStore(open_data_folder(tmp_path / "data", create=True).plans), tmp_path / "routers.yaml"
    store.add(seal_plan(plan_of(CASES["slice"])))
    said = program(tmp_path / "data", "plan", "show", "--routers")
    assert (said.status, "recommender.sleep_wait_seconds" in said.err) == (2, True)
    asleep = seal_plan(plan_of(CASES["sleep"], **OPTIONS["sleep"]))
    store.add(asleep)
    said = program(tmp_path / "data", "plan", "show", "--routers", "--plan", asleep.plan_id, "-o", str(target))
    assert said.status == 0, said.err
    groups = yaml.safe_load(target.read_text(encoding="utf-8"))["router"]["groups"]
    assert groups["gpu-0002"] == {
        "cardBytes": "80GiB",
        "waitSeconds": 10.0,
        "models": [
            {
                "name": "team-often",
                "server": "URL of the server of team/Deployment/often",
                "limit": "37632MiB",
            },
            {"name": "team-rare", "server": "URL of the server of team/Deployment/rare", "limit": "41GiB"},
        ],
    }


def test_a_new_pod_is_offered_nodes_with_room(replayed: Path, program: Program) -> None:
    said = program(replayed, "plan", "place", "--card-ratio", "0.001", "--memory", "1GiB", "--format", "json")
    assert said.status == 0, said.err
    costs = [offer["cost_cards"] for offer in said.document["offers"]]
    assert costs == sorted(costs)
    nowhere = program(replayed, "plan", "place", "--card-model", "NVIDIA Nothing", "--format", "json")
    assert nowhere.document["offers"] == []


def test_memory_that_is_no_size_is_named(replayed: Path, program: Program) -> None:
    said = program(replayed, "plan", "place", "--memory", "much")
    assert said.status == 2
    assert "much" in said.err


def test_measured_pairs_that_cannot_be_read_are_named(replayed: Path, program: Program, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("victim,aggressor,speed_ratio\nweb,train,9\n", encoding="utf-8")
    said = program(replayed, "plan", "make", "--what-if", f"recommender.measured_pairs={pairs}")
    assert said.status == 2
    assert "line 2: speed_ratio='9'" in said.err
