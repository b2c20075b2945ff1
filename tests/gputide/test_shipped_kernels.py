"""Kernels that were compiled beforehand are found where nothing may be written, and nobody else's are run."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from numba.core import config
from numba.core.caching import CacheImpl

from gputide.kernels import shipped as shipped_kernels
from gputide.kernels.shipped import ShippedKernels

SOURCE = """
from numba import njit

@njit(cache=True)
def doubled(x):
    return x + x
"""


@pytest.fixture
def module(tmp_path: Path) -> Path:
    path = tmp_path / "image" / "doubling.py"
    path.parent.mkdir()
    path.write_text(SOURCE, encoding="utf-8")
    return path


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    shipped_kernels._linked.cache_clear()
    return folder


@pytest.fixture
def read_only(module: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Say of the module's cache what a read-only file system says, of which root has none here."""
    real = os.access
    beside = module.parent / "__pycache__"
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != beside and real(path, mode))
    monkeypatch.setattr(config, "CACHE_LOCATOR_CLASSES", f"{ShippedKernels.__module__}.{ShippedKernels.__name__}")


def test_shipped_kernels_are_loaded_and_new_ones_are_kept_apart(
    module: Path, scratch: Path, request: pytest.FixtureRequest
) -> None:
    assert doubled_of(module)(2) == 4
    shipped = {path.name: path.read_bytes() for path in (module.parent / "__pycache__").glob("*.nb*")}
    assert len(shipped) == 2
    request.getfixturevalue("read_only")
    kernel = doubled_of(module)
    assert kernel(3) == 6
    assert sum(kernel.stats.cache_hits.values()) == 1
    assert not any(path.is_file() and not path.is_symlink() for path in scratch.rglob("*"))
    # A signature that was not shipped: its code and the new index lie in the private folder alone.
    assert kernel(1.5) == 3.0
    assert {path.name: path.read_bytes() for path in (module.parent / "__pycache__").glob("*.nb*")} == shipped
    assert sum(path.is_file() and not path.is_symlink() for path in scratch.rglob("*.nb*")) == 2
    shipped_kernels._linked.cache_clear()
    again = doubled_of(module)
    assert (again(1), again(2.5)) == (2, 5.0)
    assert sum(again.stats.cache_hits.values()) == 2


@pytest.mark.usefixtures("read_only")
def test_a_folder_that_others_may_write_to_is_not_read(module: Path, scratch: Path) -> None:
    private = scratch / f"gputide-kernels-{os.geteuid()}"
    private.mkdir()
    private.chmod(0o777)
    assert ShippedKernels.from_function(doubled_of, str(module)) is None
    private.chmod(0o700)
    assert ShippedKernels.from_function(doubled_of, str(module)) is not None


@pytest.mark.usefixtures("read_only")
def test_a_link_in_place_of_the_folder_is_not_followed(module: Path, scratch: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (scratch / f"gputide-kernels-{os.geteuid()}").symlink_to(elsewhere)
    assert ShippedKernels.from_function(doubled_of, str(module)) is None
    assert list(elsewhere.iterdir()) == []


def test_without_the_image_numba_keeps_kernels_where_it_always_does() -> None:
    assert vars(config)["CACHE_LOCATOR_CLASSES"] == ""
    assert ShippedKernels not in CacheImpl._locator_classes


def doubled_of(path: Path):
    """Load the module anew, as another process would."""
    spec = importlib.util.spec_from_file_location("doubling", path)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded.doubled
