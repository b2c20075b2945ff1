"""The generated pages of the documentation say what the code says."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

PAGES = ("settings.md", "metrics.md", "card-models.md", "tables.md", "scaling.md")


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_is_up_to_date(name: str, repository: Path) -> None:
    made = runpy.run_path(str(repository / "docs" / "generate.py"))["pages"]()
    assert set(made) == set(PAGES)
    assert (repository / "docs" / name).read_text(encoding="utf-8") == made[name], "run python docs/generate.py"
