"""What of the chart is made from the code says what the code says."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def made(repository: Path) -> dict[str, str]:
    found: dict[str, str] = runpy.run_path(str(repository / "deploy" / "helm" / "generate.py"))["chart_files"]()
    return found


def test_dashboards_rules_schema_and_version_are_current(made: dict[str, str], repository: Path) -> None:
    chart = repository / "deploy" / "helm" / "gputide"
    differing = [place for place, text in made.items() if (chart / place).read_text(encoding="utf-8") != text]
    assert differing == [], "run python docs/generate.py"


def test_chart_carries_every_dashboard_and_no_other(made: dict[str, str], repository: Path) -> None:
    chart = repository / "deploy" / "helm" / "gputide"
    carried = {path.relative_to(chart).as_posix() for path in (chart / "files").rglob("*") if path.is_file()}
    assert carried == {place for place in made if place.startswith("files/")}
    assert len(carried) > 6
