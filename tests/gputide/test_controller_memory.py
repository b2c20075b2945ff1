"""What a controller keeps small for: it runs for months beside others, and reads days of measurements now and then."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.measured_run import ROOT

HEAVY = ("duckdb", "numba", "pandas", "pyarrow")


def test_controller_loads_nothing_that_reads_the_warehouse() -> None:
    code = f"import sys, gputide.verbs.run.controller; print([name for name in {HEAVY} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert ended.stdout.strip() == "[]"


_JUDGED = """
import sys
from datetime import timedelta
from pathlib import Path
from fleet.data_folder import open_data_folder
from fleet.settings.settings import Settings
from gputide.container.enforcer import harm_budgets
from tests.recommender.builders import NOW

folder = open_data_folder(Path(sys.argv[1]), create=True)
settings = Settings.model_validate({"cluster": {"name": "north"}, "enforcer": {"cluster": "kubernetes"}})
harm_budgets(folder, settings, is_apart=sys.argv[2] == "apart").judge((), NOW - timedelta(hours=1), NOW)
print("gputide.container.measured_harm" in sys.modules)
"""


@pytest.mark.parametrize(("way", "is_loaded_here"), [("apart", "False"), ("here", "True")])
def test_what_reads_harm_is_loaded_by_a_process_of_its_own_where_asked(
    tmp_path: Path, way: str, is_loaded_here: str
) -> None:
    asked = [sys.executable, "-c", _JUDGED, str(tmp_path / "data"), way]
    ended = subprocess.run(asked, check=True, capture_output=True, text=True, cwd=ROOT)
    assert ended.stdout.strip() == is_loaded_here
