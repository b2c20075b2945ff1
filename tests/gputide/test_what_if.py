"""`plan make --what-if` through the real program: both plans side by side, and nothing that could be applied."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fleet.errors import Misconfigured
from fleet.inventory import Inventory, Node
from gputide.answers.what_if import assumptions
from tests.gputide.conftest import Program


def plans(data: Path) -> list[str]:
    return sorted(path.name for path in (data / "plans").glob("*"))


def test_another_model_is_compared_with_the_cards_as_they_are(planned: Path, program: Program) -> None:
    kept = plans(planned)
    made = program(planned, "plan", "show", "--format", "json").document
    said = program(
        planned, "plan", "make", "--what-if", "cards.NVIDIA-A10G=NVIDIA-L40S", "--what-if", "cards+NVIDIA-L40S=3",
        "--format", "json",
    )  # fmt: skip
    assert said.status == 0, said.err
    found = said.document
    assert found["schema"] == "gputide.what_if/v1"
    assert found["is_hypothetical"] is True
    assert "plan_id" not in found
    present, supposed = found["compared"]["present"], found["compared"]["what_if"]
    assert present["cards_freed"] == made["totals"]["cards_freed"]
    assert supposed["cards"] == present["cards"] + 3
    assert supposed["cost_per_week"] != present["cost_per_week"]
    by_model = {row["card_model"]: row for row in found["card_models"]}
    assert by_model["NVIDIA A10G"]["present"] > by_model["NVIDIA A10G"]["what_if"]
    swapped = by_model["NVIDIA A10G"]["present"] - by_model["NVIDIA A10G"]["what_if"]
    assert by_model["NVIDIA L40S"]["what_if"] == by_model["NVIDIA L40S"]["present"] + swapped + 3
    assert plans(planned) == kept


def test_what_is_supposed_can_neither_be_approved_nor_applied(replayed: Path, program: Program) -> None:
    target = replayed / "supposed.json"
    said = program(
        replayed, "plan", "make", "--what-if", "cards-NVIDIA-A10G=1", "--what-if", "risk.preset=high",
        "--format", "json", "-o", str(target),
    )  # fmt: skip
    assert said.status == 0, said.err
    assert program(replayed, "plan", "approve").status == 3
    assert program(replayed, "apply", "--yes").status == 3
    # Nor by somebody who puts the file where plans lie, and gives it the id that it lacks.
    folder = replayed / "plans"
    folder.mkdir(exist_ok=True)
    forged = {**json.loads(target.read_text()), "plan_id": "0123456789ab"}
    (folder / "0123456789ab.json").write_text(json.dumps(forged), encoding="utf-8")
    assert program(replayed, "plan", "approve", "--plan", "0123456789ab").status == 6
    assert program(replayed, "apply", "--plan", "0123456789ab", "--yes").status == 6


def test_too_few_cards_are_counted_and_said(planned: Path, program: Program) -> None:
    node = program(planned, "plan", "show", "--format", "json").document["placement"][0]["node"]
    said = program(planned, "plan", "make", "--what-if", f"nodes-{node}", "--what-if", "cards-NVIDIA-A10G=15")
    assert said.status == 0, said.err
    assert said.out.startswith(f"Hypothetical, nothing was kept: what if nodes-{node} and cards-NVIDIA-A10G=15\n")
    assert "are gone" in said.out
    assert "cards too few even after the plan" in said.out
    assert "this is no plan: it can't be approved or applied" in said.out


def test_modes_that_nobody_could_ask_for_are_said(planned: Path, program: Program) -> None:
    real = ("--set", "enforcer.cluster=kubernetes", "--set", f"enforcer.kubeconfig={planned / 'none'}")
    said = program(planned, *real, "plan", "make", "--what-if", "risk.preset=low")
    assert said.status == 0, said.err
    assert "modes of nodes are those that were collected" in said.out


def test_a_model_that_is_older_is_refused(planned: Path, program: Program) -> None:
    said = program(planned, "plan", "make", "--what-if", "cards.A10G=V100-PCIE-16GB")
    assert said.status == 2
    assert "it is older (compute capability 7.0, not 8.6)" in said.err


@pytest.mark.parametrize(
    ("assumption", "words"),
    [
        ("cards.NVIDIA-A11=NVIDIA-L4", "no card model 'NVIDIA-A11' is known; did you mean 'NVIDIA-A10'?"),
        ("cards.A10G=L4-something", "no card model 'L4-something' is known; did you mean"),
        ("cards.A10G=H100", "did you mean 'NVIDIA-H100-PCIe' or 'NVIDIA-H100-80GB-HBM3' or 'NVIDIA-H100-NVL'?"),
        ("cards+NVIDIA-L4", "expected cards.MODEL=OTHER, cards+MODEL=N, cards-MODEL=N, nodes-NAME"),
        ("cards+NVIDIA-L4=-1", "'-1' is no number of cards from 1 to 100000"),
        ("cards-NVIDIA-L4=\u0663", "is no number of cards from 1 to 100000"),
        ("nodes-\x1b[31mgpu", "has no node '\\x1b[31mgpu'; did you mean 'gpu-1'?"),
    ],
)
def test_an_assumption_that_makes_no_sense_is_told(assumption: str, words: str) -> None:
    cluster = Inventory(cluster="c", as_of=datetime(2026, 1, 5, tzinfo=UTC), nodes=(Node(node="gpu-1", cluster="c"),))
    with pytest.raises(Misconfigured) as told:
        assumptions([assumption], lambda: cluster)
    assert words in str(told.value)
    assert "\x1b" not in str(told.value)


def test_what_is_neither_cards_nor_a_node_is_a_setting() -> None:
    found = assumptions(["risk.preset=low", "cards+L4=2"], lambda: pytest.fail("no node was named"))
    assert found.settings == ("risk.preset=low",)
    assert len(found.changes) == 1


@pytest.mark.parametrize(
    "assumed", ["cluster.time_zone=Asia/Shanghai", "analyzer.idle_ratio_max=0.2", "risk.preset=low"]
)
def test_a_setting_that_changes_the_history_gives_the_plan_that_it_would_give(
    planned: Path, program: Program, assumed: str
) -> None:
    supposed = program(planned, "plan", "make", "--what-if", assumed, "--format", "json").document
    made = program(planned, "--set", assumed, "plan", "make", "--format", "json").document
    left_out = {"schema", "plan_id", "expires_at", "created_at"}
    assert {name: supposed.get(name) for name in made if name not in left_out} == {
        name: value for name, value in made.items() if name not in left_out
    }


def test_other_cards_in_another_time_zone_have_its_hours(planned: Path, program: Program) -> None:
    zone, cards = ("cluster.time_zone=Asia/Shanghai", "cards+NVIDIA-L40S=3")
    both, alone = (
        program(planned, "plan", "make", *asked, "--format", "json").document["schedule"]
        for asked in (("--what-if", zone, "--what-if", cards), ("--what-if", zone))
    )
    assert {(one["from"], one["until"]) for one in both} == {(one["from"], one["until"]) for one in alone} != set()
    assert {one["time_zone"] for one in both} == {"Asia/Shanghai"}
