"""A double that stands for somebody else's scheduler, or a judge of plans, shares no code with what it judges."""

import ast
from pathlib import Path

JUDGES = (
    "bench/enforced_judge.py",
    "tests/cluster/hami_double.py",
    "tests/cluster/hami_rules.py",
    "tests/cluster/volcano_rules.py",
)
JUDGED = ("enforcer", "exporter", "fleet", "recommender")


def test_judges_import_nothing_of_what_they_judge(repository: Path) -> None:
    found = [
        f"{judge}: {module}"
        for judge in JUDGES
        for module in imported((repository / judge).read_text(encoding="utf-8"))
        if module.partition(".")[0] in JUDGED
    ]
    assert found == []


def test_an_import_is_seen_wherever_it_stands() -> None:
    code = "import json, enforcer.simulated\ndef late():\n    from fleet.grammars import hami\n"
    assert imported(code) == ["json", "enforcer.simulated", "fleet.grammars"]


def imported(code: str) -> list[str]:
    """Modules that code imports."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
    return found
