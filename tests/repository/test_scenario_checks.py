"""Checks of a scenario miss what is not there, and hold a ratio against each item."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.scenario_folder import missed_checks
from fleet.errors import Misconfigured

WRITTEN = {
    "rows": [
        {"name": "a", "hours": 2, "full_ratio": 0.25, "left": 4},
        {"name": "b", "hours": 3, "full_ratio": 1.5, "left": None},
    ],
    "rest": [],
    "unknown": None,
}


def missed(folder: Path, check: str) -> list[str]:
    (folder / "out.json").write_text(json.dumps(WRITTEN))
    (folder / "expected.toml").write_text(f'checks = [{{files = ["out.json"], why = "so", {check}}}]')
    return list(missed_checks(folder, "hami"))


@pytest.mark.parametrize(
    ("check", "says"),
    [
        ('path = "rows.hours", equals = 5', []),
        ('path = "rows.name=b.hours", min = 3, max = 3', []),
        ('path = "rows.name=c.#", equals = 0', []),
        ('path = "rest.#", max = 0', []),
        ('path = "rows.full_ratio", max = 1.5', []),
        ('path = "rows.full_ratio", max = 1.0', ["rows.full_ratio is 1.5, not {'max': 1.0}: so"]),
        ('path = "rows.name=a.hours", min = 3', ["rows.name=a.hours is 2, not {'min': 3}: so"]),
        ('path = "rows.name=c.hours", max = 9', ["nothing is at rows.name=c.hours: so"]),
        ('path = "rest.full_ratio", max = 9', ["nothing is at rest.full_ratio: so"]),
        ('path = "rows.left", min = 4', ["rows.left is None, not {'min': 4}: so"]),
        ('path = "unknown", max = 9', ["unknown is None, not {'max': 9}: so"]),
    ],
)
def test_check_holds_only_of_what_is_there(tmp_path: Path, check: str, says: list[str]) -> None:
    assert missed(tmp_path, check) == [f"out.json: {one}" for one in says]


@pytest.mark.parametrize("check", ['files = ["out.json"]', "files = [], max = 9"])
def test_check_that_could_not_miss_is_an_error(tmp_path: Path, check: str) -> None:
    (tmp_path / "expected.toml").write_text(f'checks = [{{path = "rows.hours", why = "so", {check}}}]')
    with pytest.raises(Misconfigured, match="it needs files and one of equals, min, max"):
        list(missed_checks(tmp_path, "hami"))
