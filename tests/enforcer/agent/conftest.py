"""What tests of the node agent share: containers with regions on disk, and views of a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.regions.writer import region_writer

__all__ = ("region_writer",)


@pytest.fixture
def containers(tmp_path: Path) -> Path:
    """Return the root of all regions."""
    root = tmp_path / "containers"
    root.mkdir()
    return root
