"""The catalogue of metrics names every family once per source, as both formats allow it to be named."""

import re
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics

from docs.metrics_catalogue import CATALOGUE
from exporter.collector import CollectorState, Snapshot
from exporter.exposition.rendering import OWN_FAMILIES, Exposition, TextFormat
from exporter.families import CataloguedFamily, FamilyKind
from exporter.reader import Reading

NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def every_family() -> tuple[CataloguedFamily, ...]:
    return tuple(family for section in CATALOGUE for family in section.families)


@pytest.mark.parametrize("family", every_family(), ids=lambda family: family.name)
def test_a_family_is_named_as_the_formats_want_it(family: CataloguedFamily) -> None:
    assert NAME.fullmatch(family.name)
    assert family.name.startswith("gputide_")
    # OpenMetrics refuses a whole scrape for a counter without its suffix.
    assert family.name.endswith("_total") == (family.kind is FamilyKind.COUNTER)
    assert family.name.endswith("_info") == (family.kind is FamilyKind.INFO)
    assert family.help_text.endswith(".")
    assert "\n" not in family.help_text
    assert all(NAME.fullmatch(label) for label in family.label_names)
    assert len(set(family.label_names)) == len(family.label_names)


def test_a_section_names_a_family_once() -> None:
    for section in CATALOGUE:
        names = [family.name for family in section.families]
        assert len(set(names)) == len(names), section.title


def test_a_name_has_one_kind() -> None:
    kinds: dict[str, set[FamilyKind]] = {}
    for family in every_family():
        kinds.setdefault(family.name, set()).add(family.kind)
    assert [name for name, found in kinds.items() if len(found) > 1] == []


def test_every_family_stands_on_the_page(repository: Path) -> None:
    page = "".join(path.read_text(encoding="utf-8") for path in (repository / "docs" / "metrics").glob("*.md"))
    assert [family.name for family in every_family() if f"| `{family.name}` | {family.kind.value} |" not in page] == []


def test_all_families_together_are_a_valid_answer() -> None:
    own = {family.name for family in OWN_FAMILIES}
    named = {family.name: family for family in every_family() if family.name not in own}
    families = tuple(family.of((family.label_names,), np.ones(1)) for family in named.values())
    snapshot = Snapshot(
        number=1,
        reading=Reading(at=datetime(2026, 1, 5, tzinfo=UTC)),
        cards=(),
        nodes=(),
        grants=(),
        taken_at_seconds=0.0,
        families=families,
    )
    state = CollectorState(snapshot=snapshot, age_seconds=0.0, readings=1, failures=0)
    text = Exposition().render(state, TextFormat.OPENMETRICS).decode()
    # The parser refuses names that clash once suffixes are gone, units that don't fit, infos that aren't 1.
    parsed = {sample.name for family in parse_openmetrics(text) for sample in family.samples}
    assert parsed == set(named) | own
