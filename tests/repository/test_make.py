"""The front of the repository: what `make` offers, and the two runners behind `make test` and `make bars`."""

import importlib.util
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

BAR = {"name": "replay", "value": 90.5, "bar": "<= 120 s", "baseline": None, "ratio": None, "holds": True}


@pytest.fixture
def bars_table(repository: Path) -> ModuleType:
    return _load(repository / "bench" / "bars_table.py")


@pytest.fixture
def run_tiers(repository: Path) -> ModuleType:
    return _load(repository / "tests" / "run_tiers.py")


@pytest.fixture
def add_bar(tmp_path: Path) -> Callable[[str, str], None]:
    def add(name: str, body: str) -> None:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    return add


def test_help_explains_every_target(repository: Path) -> None:
    makefile = (repository / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.+)$", makefile, re.M)
    shown = subprocess.run(["make", "help"], cwd=repository, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"^  make (\w+) +\S", shown, re.M) == phony.split()


def test_a_bar_that_does_not_hold_makes_the_table_red(
    bars_table: ModuleType, add_bar: Callable[[str, str], None], tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    add_bar("holds", f"echo '{json.dumps(BAR)}'")
    assert bars_table.main([], tmp_path) == 0
    add_bar("slow", f"echo '{json.dumps({**BAR, 'name': 'slow', 'holds': False})}'")
    assert bars_table.main([], tmp_path) == 1
    assert "slow" in capfd.readouterr().out


def test_a_bar_that_falls_over_after_its_line_does_not_hold(
    bars_table: ModuleType, add_bar: Callable[[str, str], None], tmp_path: Path
) -> None:
    add_bar("falls", f"echo '{json.dumps(BAR)}'; exit 3")
    assert bars_table.main([], tmp_path) == 1


def test_a_bar_that_prints_no_line_does_not_hold(
    bars_table: ModuleType, add_bar: Callable[[str, str], None], tmp_path: Path
) -> None:
    add_bar("silent", "echo measured nothing")
    assert bars_table.main([], tmp_path) == 1


def test_a_bar_that_could_not_be_measured_here_says_why_and_is_not_red(
    bars_table: ModuleType, add_bar: Callable[[str, str], None], tmp_path: Path, capfd: pytest.CaptureFixture
) -> None:
    add_bar("absent", f"echo '{json.dumps({**BAR, 'holds': None, 'why': 'no recorded traces'})}'")
    assert bars_table.main([], tmp_path) == 0
    assert "no recorded traces" in capfd.readouterr().out.splitlines()[-2]


def test_an_unknown_bar_is_wrong_use(bars_table: ModuleType, tmp_path: Path) -> None:
    assert bars_table.main(["nothing"], tmp_path) == 2


def test_a_tier_that_cannot_run_is_a_failure_in_ci_alone(
    run_tiers: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def prepare() -> dict[str, str]:
        raise run_tiers.CannotRunError("no moon")

    tier = run_tiers.Tier(name="lunar", marker_expression="lunar", prepare=prepare)
    monkeypatch.setattr(run_tiers, "TIERS", (tier,))
    monkeypatch.delenv("CI", raising=False)
    assert run_tiers.main([]) == 0
    assert "not run: no moon" in capsys.readouterr().out
    monkeypatch.setenv("CI", "true")
    assert run_tiers.main([]) == 1


@pytest.mark.long
def test_tiers_run_side_by_side_and_one_failure_is_a_failure(
    run_tiers: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    waits = "import time\nfrom pathlib import Path\nhere = Path(__file__).parent\n"
    for own, other in (("sun", "moon"), ("moon", "sun")):
        (tmp_path / f"test_{own}.py").write_text(
            f"{waits}def test_meets_the_other():\n    (here / '{own}').touch()\n    until = time.monotonic() + 60\n"
            f"    while not (here / '{other}').exists():\n        assert time.monotonic() < until\n"
            f"        time.sleep(0.05)\n    assert '{own}' == 'sun'\n"
        )
    tiers = tuple(
        run_tiers.Tier(
            name=name, marker_expression="", prepare=dict,
            pytest_arguments=("-p", "no:cacheprovider", str(tmp_path / f"test_{name}.py")),
        )
        for name in ("sun", "moon")
    )  # fmt: skip
    monkeypatch.setattr(run_tiers, "TIERS", tiers)
    assert run_tiers.main([]) == 1
    printed = capsys.readouterr().out
    assert "moon | " in printed
    assert printed.endswith("1 passed, 1 failed, 0 skipped\n")
    last = printed.splitlines()[-2]
    assert "test_moon.py::test_meets_the_other - AssertionError: assert 'moon' == 'sun'" in last, "and why it failed"


@pytest.mark.long
def test_results_of_a_tier_are_counted_and_failures_named_from_what_pytest_wrote(
    run_tiers: ModuleType, tmp_path: Path
) -> None:
    suite = tmp_path / "part" / "test_many.py"
    suite.parent.mkdir()
    (tmp_path / "pytest.ini").touch()  # else its root is wherever above a setup.py happens to be
    (suite.parent / "test_broken.py").write_text("import nothing_of_this_name\n")
    suite.write_text(
        "import pytest\n\n"
        "@pytest.fixture\ndef left():\n    yield\n    assert 0\n\n"
        "def test_passes(): import time; time.sleep(0.2)\n"
        "def test_skips(): pytest.skip('x')\n"
        "def test_fails_twice(left): assert 0\n"
        "class TestGroup:\n"
        "    @pytest.mark.parametrize('word', ['a.b'])\n"
        "    def test_fails(self, word): assert 0\n"
    )
    results = tmp_path / "results.xml"
    command = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"),
        *(f"--junit-xml={results}", *run_tiers.JUNIT_WITH_FILES, str(tmp_path)),
    ]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    passed, failed, skipped, seconds = run_tiers.read_results(results)
    assert (passed, skipped) == (1, 1)
    assert seconds["part/test_many.py"] >= 0.2
    assert "collection failure" in failed["part/test_broken.py"]
    assert set(failed) == {
        "part/test_broken.py", "part/test_many.py::test_fails_twice", "part/test_many.py::TestGroup::test_fails[a.b]"
    }  # fmt: skip


def test_every_marker_of_pytest_is_left_out_of_the_quick_tier(
    run_tiers: ModuleType, pytestconfig: pytest.Config
) -> None:
    own = {"browser", "cluster", "engines", "long"}
    registered = {line.split(":")[0] for line in pytestconfig.getini("markers")}
    (quick,) = [tier for tier in run_tiers.TIERS if tier.name == "quick"]
    assert own <= registered
    assert all(f"not {marker}" in quick.marker_expression for marker in own)


def test_every_test_of_a_tier_is_in_the_folder_that_the_tier_reads(run_tiers: ModuleType, repository: Path) -> None:
    files = list((repository / "tests").rglob("test_*.py"))
    for tier in run_tiers.TIERS:
        marker = re.compile(rf"pytest\.mark\.{tier.name}\b")
        marked = [path for path in files if marker.search(path.read_text(encoding="utf-8"))]
        assert marked or tier.name == "quick"
        assert [path for path in marked if not path.is_relative_to(repository / tier.folder)] == []


def test_make_lets_python_keep_its_bytecode_whatever_the_shell_says(repository: Path) -> None:
    command = ["make", "-C", str(repository), "--eval", 'shown: ; @echo "[$$PYTHONDONTWRITEBYTECODE]"', "shown"]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert "[]" in shown


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module
