"""What tests of the driver share: a world for the stand-in library to play, and the library that plays it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.nvml.library import NvmlLibrary
from tests.exporter.nvml.drivers import started_library
from tests.exporter.nvml.standin import DATA_VARIABLE, StandInWorld
from tests.regions.writer import region_writer

__all__ = ("region_writer",)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInWorld:
    """A world without cards, which the stand-in reads once it is written."""
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "world.txt"))
    return StandInWorld(tmp_path / "world.txt")


@pytest.fixture
def library(world: StandInWorld) -> Iterator[NvmlLibrary]:
    """The stand-in, started."""
    world.write()
    with started_library() as library:
        yield library
