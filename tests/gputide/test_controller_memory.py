"""What a controller keeps small for: it runs for months beside others, and reads days of measurements now and then."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

from fleet.data_folder import open_data_folder
from fleet.settings.settings import Settings
from gputide.container.enforcer import harm_budgets
from tests.recommender.builders import NOW

HEAVY = ("duckdb", "numba", "pandas", "pyarrow")


def test_controller_loads_nothing_that_reads_the_warehouse() -> None:
    code = f"import sys, gputide.verbs.run.controller; print([name for name in {HEAVY} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ended.stdout.strip() == "[]"


def test_harm_is_read_by_a_process_of_its_own_where_asked(tmp_path: Path) -> None:
    folder = open_data_folder(tmp_path / "data", create=True)
    settings = Settings.model_validate({"cluster": {"name": "north"}, "enforcer": {"cluster": "kubernetes"}})
    apart, here = (harm_budgets(folder, settings, is_apart=is_apart) for is_apart in (True, False))
    since = NOW - timedelta(hours=1)
    assert apart.judge((), since, NOW) == here.judge((), since, NOW)
