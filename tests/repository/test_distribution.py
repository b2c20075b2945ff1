"""What is handed to users: one wheel with eight packages, a lock file that anybody can install from."""

import importlib
import re
import tomllib
import zipfile
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOMS = ("fleet", "wire", "exporter", "pipeline", "analyzer", "recommender", "enforcer", "dashboards", "gputide")


@pytest.fixture(scope="module")
def project(repository: Path) -> dict:
    return tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def wheel_files(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    (wheel,) = WheelBuilder(str(repository)).build(
        directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"]
    )
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_carries_the_eight_rooms_and_nothing_else(wheel_files: set[str]) -> None:
    tops = {name.split("/")[0] for name in wheel_files}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(ROOMS)


def test_the_wheel_carries_every_file_that_lies_in_a_room(repository: Path, wheel_files: set[str]) -> None:
    in_tree = {
        path.relative_to(repository).as_posix()
        for room in ROOMS
        for path in (repository / room).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert in_tree - wheel_files == set()


def test_the_wheel_carries_its_licence_and_that_of_its_font(wheel_files: set[str]) -> None:
    for licence in ("licenses/LICENSE", "licenses/dashboards/report/fonts/OFL.txt"):
        assert any(name.endswith(licence) for name in wheel_files)


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_is_listed_exists_and_says_what_it_is(project: dict, room: str) -> None:
    assert room in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert room in project["tool"]["importlinter"]["root_packages"]
    assert (importlib.import_module(room).__doc__ or "").strip()


def test_the_extra_called_all_holds_every_other_extra(project: dict) -> None:
    extras = project["project"]["optional-dependencies"]
    (everything,) = extras["all"]
    named = re.fullmatch(r"gputide\[(.+)\]", everything)
    assert named is not None
    assert set(named[1].split(",")) == extras.keys() - {"all"}


def test_the_lock_file_names_the_public_index_alone(repository: Path) -> None:
    urls = re.findall(r'https?://[^\s"]+', (repository / "uv.lock").read_text(encoding="utf-8"))
    assert {urlsplit(url).hostname for url in urls} == {"pypi.org", "files.pythonhosted.org"}


def test_every_dependency_is_locked_by_a_hash(repository: Path) -> None:
    lock = tomllib.loads((repository / "uv.lock").read_text(encoding="utf-8"))
    files = {
        package["name"]: [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ())]
        for package in lock["package"]
        if package["name"] != "gputide"
    }
    assert len(files) > 50
    assert [name for name, found in files.items() if not found] == []
    assert {file["hash"].partition(":")[0] for found in files.values() for file in found} == {"sha256"}
    # The image's build takes uv itself by hash, and what it then installs is what the lock says, unasked.
    image = repository / "deploy" / "image"
    assert re.search(r"^uv==\S+ \\\n +--hash=sha256:", (image / "uv.txt").read_text(encoding="utf-8"), re.M)
    script = (image / "install.sh").read_text(encoding="utf-8")
    assert re.findall(r"pip\" install .*", script) == re.findall(r"pip\" install .*--require-hashes .*", script)
    assert re.findall(r"uv (?:sync|pip|add) .*", script) == re.findall(r"uv sync --frozen .*", script)


def test_the_lock_file_knows_every_dependency_of_the_project(repository: Path, project: dict) -> None:
    lock = tomllib.loads((repository / "uv.lock").read_text(encoding="utf-8"))
    (locked,) = [package for package in lock["package"] if package["name"] == "gputide"]
    declared = {_name(requirement) for requirement in project["project"]["dependencies"]}
    assert {dependency["name"] for dependency in locked["dependencies"]} == declared


def _name(requirement: str) -> str:
    return re.split(r"[\[<>=!~ ;]", requirement, maxsplit=1)[0].lower()
