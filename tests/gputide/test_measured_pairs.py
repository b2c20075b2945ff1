"""Measured pairs: those of a file are read as they are or refused with line, value and limit; own ones are shown."""

from dataclasses import replace
from pathlib import Path

import pytest

from analyzer.profile import profile_fleet
from fleet.errors import Misconfigured
from fleet.inventory import WorkloadId
from fleet.profiles import NeighbourEffect
from fleet.settings.settings import AnalyzerSettings
from gputide.answers.fleet import profile_answer
from gputide.container.measured_pairs import read_measured_pairs
from tests.recommender.builders import NOW, Service, cluster

HEADER = "victim,aggressor,speed_ratio,victim_duty_cycle_ratio,aggressor_framebuffer_bytes\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "pairs.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_is_read_as_it_is(tmp_path: Path) -> None:
    first, second = read_measured_pairs(written(tmp_path, HEADER + "web,train,0.93,0.4,1073741824\nweb,other,1,,\n"))
    assert (first.victim.family, first.aggressor.family, first.speed_ratio) == ("web", "train", 0.93)
    assert (first.victim.duty_cycle_ratio, first.aggressor.framebuffer_bytes) == (0.4, 2.0**30)
    assert second.victim.duty_cycle_ratio is None


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("victim,speed_ratio\n", "no column 'aggressor'"),
        (HEADER.strip() + ",colour\n", "unknown column 'colour'"),
        (HEADER + "web,train,fast,,\n", "line 2: speed_ratio='fast' is no number from 0 to 2"),
        (HEADER + "web,train,2.5,,\n", "speed_ratio='2.5'"),
        (HEADER + "web,train,nan,,\n", "speed_ratio='nan'"),
        (HEADER + "web,train,,,\n", "line 2: speed_ratio is empty"),
        (HEADER + ",train,0.9,,\n", "line 2: victim is empty"),
        (HEADER + "web,train,0.9,40,\n", "victim_duty_cycle_ratio='40' is no number from 0 to 1"),
        ("", "no column 'victim'"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(Misconfigured, match=r"recommender\.measured_pairs=") as caught:
        read_measured_pairs(written(tmp_path, text))
    assert named in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"nowhere\.csv"):
        read_measured_pairs(tmp_path / "nowhere.csv")


def test_what_was_measured_at_home_is_shown_with_its_interval() -> None:
    profile = profile_fleet(cluster(Service(name="web")), settings=AnalyzerSettings(), now=NOW).workloads[0]
    effect = NeighbourEffect(
        neighbour=WorkloadId("team/Job/train"), measured_by="latency_p99_seconds", days=9, speed_ratio=0.81,
        speed_ratio_min=0.76, speed_ratio_max=0.86,
    )  # fmt: skip
    answer = profile_answer(replace(profile, beside=(effect,)))
    (shown,) = [listing for listing in answer.listings if listing.title.startswith("Speed beside")]
    assert list(shown.rows) == [["team/Job/train", "81.00 %", "76.00 %", "86.00 %", 9, "latency_p99_seconds"]]
    assert answer.document["beside"][0]["speed_ratio_min"] == 0.76
    assert not [one for one in profile_answer(profile).listings if one.title.startswith("Speed beside")]
