import os
import shutil
import time
from pathlib import Path

import pytest

from exporter.regions.tree import CONTAINERS_MAX, FILES_MAX, LOOKS_BETWEEN, ContainerKey, ContainerPlace, RegionTree
from fleet.errors import Unavailable
from fleet.regions.doubts import RegionDoubt
from tests.regions.plain_regions import PlainRegion, write_region

POD = "0f1e2d3c-0000-4000-8000-00000000000{}"
REGION = "0f1e2d3c-1111-4000-8000-000000000001.cache"
OLD = time.time() - 3600
"""A time stamp that has settled."""


def directory(root: Path, pod: int = 1, container: str = "main") -> Path:
    made = root / f"{POD.format(pod)}_{container}"
    made.mkdir()
    return made


def region(at: Path, name: str = REGION, *, age_seconds: float = 0.0) -> Path:
    write_region(at / name, PlainRegion())
    os.utime(at / name, (OLD - age_seconds, OLD - age_seconds))
    return at / name


def opened(place: ContainerPlace) -> str:
    """The path of the file that is open."""
    assert place.region is not None
    return os.readlink(f"/proc/self/fd/{place.region.fd}")


def test_directory_names_a_pod_and_a_container(tmp_path: Path) -> None:
    directory(tmp_path, 2, "sidecar-1")
    directory(tmp_path, 1)
    (tmp_path / ("a" * 32 + "_static")).mkdir()
    places = RegionTree(tmp_path).look()
    assert [(place.key.pod_uid, place.key.container) for place in places] == [
        (POD.format(1), "main"),
        (POD.format(2), "sidecar-1"),
        ("a" * 32, "static"),
    ]


@pytest.mark.parametrize(
    "name",
    ["lost+found", "_main", f"{POD.format(1)}_", f"{POD.format(1)}", f"{POD.format(1)}_a_b", f"{POD.format(1)}_A",
     f"{POD.format(1)}_{'a' * 64}", f"{POD.format(1)}_a\n", f"{POD.format(1).upper()}_a", "\udcff_a"],
)  # fmt: skip
def test_name_that_is_no_containers_is_counted_and_not_shown(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    tree = RegionTree(tmp_path)
    assert (tree.look(), tree.foreign_directories) == ((), 1)


def test_link_beside_the_directories_is_no_container(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    root = tmp_path / "containers"
    root.mkdir()
    (root / f"{POD.format(1)}_main").symlink_to(elsewhere)
    tree = RegionTree(root)
    assert (tree.look(), tree.foreign_directories) == ((), 1)


def test_root_that_is_not_there_yet_holds_nobody(tmp_path: Path) -> None:
    root = tmp_path / "containers"
    tree = RegionTree(root)
    assert tree.look() == ()
    root.mkdir()
    directory(root)
    assert len(tree.look()) == 1


def test_root_that_is_no_directory_is_unavailable(tmp_path: Path) -> None:
    root = tmp_path / "containers"
    root.write_text("")
    with pytest.raises(Unavailable, match="cannot list"):
        RegionTree(root).look()


def test_more_directories_than_are_looked_at_are_counted(tmp_path: Path) -> None:
    for number in range(CONTAINERS_MAX + 3):
        (tmp_path / f"{number:08x}-0000-4000-8000-000000000000_a").mkdir()
    tree = RegionTree(tmp_path)
    assert len(tree.look()) == CONTAINERS_MAX
    assert tree.foreign_directories == 3


def test_container_without_a_file_never_called_cuda(tmp_path: Path) -> None:
    (directory(tmp_path) / "libvgpu.so").write_bytes(b"")
    (place,) = RegionTree(tmp_path).look()
    assert (place.region, place.doubt, place.has_file) == (None, None, False)


def test_region_that_comes_later_is_found(tmp_path: Path) -> None:
    at = directory(tmp_path)
    tree = RegionTree(tmp_path)
    assert tree.look()[0].region is None
    region(at)
    assert tree.look()[0].region is not None


def test_youngest_of_several_regions_is_read_and_their_number_told(tmp_path: Path) -> None:
    at = directory(tmp_path)
    region(at, "0f1e2d3c-1111-4000-8000-000000000001.cache", age_seconds=100)
    young = region(at, "0f1e2d3c-1111-4000-8000-000000000002.cache", age_seconds=10)
    region(at, "0f1e2d3c-1111-4000-8000-000000000003.cache", age_seconds=50)
    (place,) = RegionTree(tmp_path).look()
    assert (opened(place), place.files) == (str(young), 3)


def test_file_of_a_regions_name_and_size_goes_before_a_younger_one(tmp_path: Path) -> None:
    at = directory(tmp_path)
    right = region(at, age_seconds=100)
    region(at, "decoy.cache")
    (at / "0f1e2d3c-1111-4000-8000-000000000009.cache").write_bytes(b"not a region's size")
    (at / "0f1e2d3c-1111-4000-8000-00000000000a.cache").symlink_to(right)
    (place,) = RegionTree(tmp_path).look()
    assert (opened(place), place.files) == (str(right), 4)


def test_link_instead_of_a_region_is_told(tmp_path: Path) -> None:
    (directory(tmp_path) / REGION).symlink_to("/etc/passwd")
    (place,) = RegionTree(tmp_path).look()
    assert (place.region, place.doubt, place.has_file) == (None, RegionDoubt.NOT_A_FILE, True)


def test_directory_with_too_many_files_is_told_and_not_searched(tmp_path: Path) -> None:
    at = directory(tmp_path)
    region(at)
    for number in range(FILES_MAX):
        (at / f"{number}").write_bytes(b"")
    (place,) = RegionTree(tmp_path).look()
    assert (place.region, place.doubt) == (None, RegionDoubt.TOO_MANY_FILES)


def test_file_that_takes_anothers_place_is_read_instead(tmp_path: Path) -> None:
    at = directory(tmp_path)
    path = region(at)
    tree = RegionTree(tmp_path)
    before = tree.look()[0].region
    path.unlink()
    region(at)
    assert tree.look()[0].region is not before


def test_directory_made_anew_under_its_name_is_read_anew(tmp_path: Path) -> None:
    at = directory(tmp_path)
    region(at)
    os.utime(at, (OLD, OLD))
    os.utime(tmp_path, (OLD, OLD))
    tree = RegionTree(tmp_path)
    before = tree.look()[0].region
    shutil.rmtree(at)
    region(directory(tmp_path))
    assert tree.look()[0].region is not before


def test_directory_that_vanishes_is_gone_and_its_region_closed(tmp_path: Path) -> None:
    at = directory(tmp_path)
    region(at)
    directory(tmp_path, 2)
    tree = RegionTree(tmp_path)
    place, _ = tree.look()
    assert place.region is not None
    fd = place.region.fd
    shutil.rmtree(at)
    assert [place.key.pod_uid for place in tree.look()] == [POD.format(2)]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_directory_that_vanishes_while_it_is_looked_at_is_without_region(tmp_path: Path) -> None:
    at = directory(tmp_path)
    region(at)
    place = ContainerPlace(RegionTree(tmp_path).look()[0].key, str(at))
    place.look(time.time_ns())
    assert place.has_file
    shutil.rmtree(at)
    place.look(time.time_ns())
    assert (place.region, place.doubt, place.files) == (None, None, 0)


def test_link_in_a_directorys_place_is_not_entered(tmp_path: Path) -> None:
    at = directory(tmp_path)
    key = RegionTree(tmp_path).look()[0].key
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    region(elsewhere)
    at.rmdir()
    at.symlink_to(elsewhere)
    place = ContainerPlace(key, str(at))
    place.look(time.time_ns())
    assert (place.region, place.doubt) == (None, RegionDoubt.UNREADABLE)


@pytest.mark.parametrize("claims", [None, "not-there"])
def test_settled_directories_are_looked_at_now_and_then_only(claims: str | None, tmp_path: Path) -> None:
    at = directory(tmp_path)
    path = region(at)
    os.utime(at, (OLD, OLD))
    os.utime(tmp_path, (OLD, OLD))
    tree = RegionTree(tmp_path, tmp_path / claims if claims else None)
    places = tree.look()
    assert places[0].is_settled
    before = places[0].region
    path.unlink()  # behind the reader's back; the root doesn't change
    region(at)
    looks = 0
    while tree.look()[0].region is before:
        looks += 1
        assert looks <= LOOKS_BETWEEN
    assert looks > 0
    assert tree.look() is places


# --- claims of HAMi's driver for dynamic resource allocation ----------------------------------------------------------

CLAIM = "c1a1c1a1-0000-4000-8000-00000000000{}"


def user(pod: int, container: str = "main") -> ContainerKey:
    return ContainerKey(pod_uid=POD.format(pod), container=container)


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    """The containers' and the claims' root."""
    made = tmp_path / "containers", tmp_path / "claims"
    for root in made:
        root.mkdir()
    return made


def claim_directory(roots: tuple[Path, Path], claim: int) -> Path:
    made = roots[1] / CLAIM.format(claim)
    made.mkdir()
    return made


def test_region_of_a_claim_belongs_to_the_container_that_uses_it(roots: tuple[Path, Path]) -> None:
    directory(roots[0], 2)
    held = region(claim_directory(roots, 1))
    claim_directory(roots, 2)
    tree = RegionTree(*roots)
    places = tree.look({CLAIM.format(1): user(1)})
    assert [place.key for place in places] == [user(1), user(2)]
    assert opened(places[0]) == str(held)
    # Nobody, or several, use the second.
    assert tree.foreign_directories == 1


def test_claim_whose_user_becomes_known_later_is_followed_from_then_on(roots: tuple[Path, Path]) -> None:
    region(claim_directory(roots, 1))
    tree = RegionTree(*roots)
    assert tree.look({}) == ()
    before = tree.look({CLAIM.format(1): user(1)})
    assert [place.key for place in before] == [user(1)]
    assert tree.look({CLAIM.format(1): user(1)}) is before
    descriptor = before[0].region
    assert [place.key for place in tree.look({CLAIM.format(1): user(2)})] == [user(2)]
    assert descriptor is not None
    assert before[0].region is None  # closed


def test_container_of_several_claims_has_one_region_the_one_that_is_written(roots: tuple[Path, Path]) -> None:
    # Its last claim's environment wins, and which that is nobody tells.
    claim_directory(roots, 1)
    second = claim_directory(roots, 2)
    users = {CLAIM.format(number): user(1) for number in (1, 2)}
    tree = RegionTree(*roots)
    (place,) = tree.look(users)
    assert not place.has_file
    held = region(second)
    (place,) = tree.look(users)
    assert opened(place) == str(held)


@pytest.mark.parametrize("name", ["lost+found", CLAIM.format(1) + "x", f"{POD.format(1)}_main", "\udcff"])
def test_entry_beside_the_claims_that_is_none_is_counted(name: str, roots: tuple[Path, Path]) -> None:
    (roots[1] / name).mkdir()
    tree = RegionTree(*roots)
    assert (tree.look({name: user(1)}), tree.foreign_directories) == ((), 1)


def test_claim_that_is_gone_is_closed(roots: tuple[Path, Path]) -> None:
    at = claim_directory(roots, 1)
    region(at)
    tree = RegionTree(*roots)
    (place,) = tree.look({CLAIM.format(1): user(1)})
    shutil.rmtree(at)
    assert tree.look({CLAIM.format(1): user(1)}) == ()
    assert place.region is None
