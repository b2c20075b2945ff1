"""The stand-in for CUDA's driver, built once per session; skipped where there is no compiler."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from enforcer.probe.cuda_driver import CudaDriver

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def cuda_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the built library."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        reason = "no C compiler on PATH: the stand-in for CUDA's driver can't be built"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    library = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    subprocess.run([compiler, *flags, "-o", library, HERE / "cuda_standin.c"], check=True)
    return library


@pytest.fixture
def gpu(cuda_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., CudaDriver]]:
    """Return a maker of cards, each a driver of its own with the settings of cuda_standin.c in lower case."""
    made: list[CudaDriver] = []

    def make(**settings: object) -> CudaDriver:
        for name, value in settings.items():
            monkeypatch.setenv(f"PROBE_{name.upper()}", str(value))
        # The loader keeps one library per file: a copy begins anew.
        own = tmp_path / f"libcuda-{len(made)}.so"
        shutil.copy(cuda_library, own)
        made.append(CudaDriver(path=str(own)))
        return made[-1]

    yield make
    for driver in made:
        driver.close()
