"""The tide on the plan page: the window, what falls free, who steps back."""

from dataclasses import replace
from typing import Any

from dashboards.pages.plan_relief import ROWS_MAX, tide
from fleet.decisions import ScheduledReplicas
from fleet.inventory import CardId, WorkloadId
from tests.dashboards.embedded import make_plan, make_profiles

PLAN = make_plan(make_profiles())


def steps_back(number: int) -> ScheduledReplicas:
    return ScheduledReplicas(
        workload=WorkloadId(f"team/Deployment/<b>web-{number}</b>"),
        replicas=2,
        start="22:00",
        end="07:00",
        time_zone="Asia/Shanghai",
        frees=(CardId(f"GPU-{number}"),),
    )


def texts(part: Any) -> list[str]:
    """Every text of a component, in order."""
    if part is None:
        return []
    if isinstance(part, (list, tuple)):
        return [text for each in part for text in texts(each)]
    return texts(part.children) if hasattr(part, "children") else [str(part)]


def test_a_plan_without_a_tide_shows_none() -> None:
    assert tide(replace(PLAN, schedule=())) is None


def test_window_cards_and_workloads_are_told() -> None:
    told = texts(tide(replace(PLAN, schedule=(steps_back(1), steps_back(2)))))
    assert "22:00 – 07:00 (Asia/Shanghai)" in told[0]
    assert "2 cards of 2 workloads" in told[0]
    assert told[4:7] == ["team/Deployment/<b>web-1</b>", "2", "1"]


def test_a_long_list_says_what_is_left_out() -> None:
    told = texts(tide(replace(PLAN, schedule=tuple(steps_back(number) for number in range(ROWS_MAX + 3)))))
    assert told[-1] == "… and 3 more: `gputide plan show`"
