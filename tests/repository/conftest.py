"""What tests of the tree share."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.shipped_modules import ShippedModules


@pytest.fixture(scope="session")
def shipped(repository: Path) -> ShippedModules:
    """Return the modules that are shipped, each parsed once for all tests that read them."""
    return ShippedModules(root=repository)
