"""The recipes of CONTRIBUTING are carried out word by word in a copy of the repository, and what they make works.

A recipe's code blocks say which file they make (`# PATH`) or how they change one (`--- PATH`, in `diff`). What a recipe
leaves to prose, sentences in the catalogues, is written here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from exporter.synthetic.writer import CARDS_MIN, write_synthetic_fleet

pytestmark = pytest.mark.long

CUT = "2026-01-14"
SOURCES = (
    "analyzer", "dashboards", "docs", "enforcer", "exporter", "fleet", "gputide", "pipeline", "recommender", "tests",
    "wire",
)  # fmt: skip
FILES_MAX = {"kind of advice": 3, "backend": 3, "metric": 3, "verb": 2}
"""Files that a recipe may touch; tests, catalogues and docs apart."""
_BLOCK = re.compile(r"^( *)```(python|diff)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_CATALOGUES = "fleet/locale"


@dataclass(frozen=True, slots=True)
class Made:
    """A copy of the repository in which one recipe was carried out.

    Attributes:
        root: the copy.
        touched: files that the recipe made or changed, relative to it.
    """

    root: Path
    touched: frozenset[str]

    def python(self, *arguments: str) -> str:
        """Run its Python to a good end; gives standard output."""
        done = subprocess.run(
            [sys.executable, *arguments], cwd=self.root, env={**os.environ, "PYTHONPATH": str(self.root)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout

    def played(self, code: str) -> str:
        """Run a piece of Python that calls the program's verbs by `said(*words)`; gives standard output."""
        return self.python("-c", f"{_PLAYER}{textwrap.dedent(code)}")

    def add_sentences(self, language: str, file: str, sentences: dict[str, str]) -> None:
        """Add entries to a catalogue, as a translator does."""
        path = self.root / _CATALOGUES / language / "LC_MESSAGES" / file
        entries = [f'\nmsgid "{name}"\nmsgstr "{text}"\n' for name, text in sentences.items()]
        path.write_text(path.read_text(encoding="utf-8") + "".join(entries), encoding="utf-8")


_PLAYER = """
import contextlib, io, json, sys
from pathlib import Path
from gputide import cli

def said(*words):
    '''What one call of the program prints.'''
    sys.argv = ["gputide", *words]
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            cli.main()
    except SystemExit as end:
        assert not end.code, (words, end.code, out.getvalue())
    return out.getvalue()
"""


@pytest.fixture(scope="module")
def copy(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the sources that the recipes take turns in; with compiled kernels and what Python cached."""
    root = tmp_path_factory.mktemp("copy")
    for name in SOURCES:
        shutil.copytree(repository / name, root / name, ignore=shutil.ignore_patterns("static", "*.png"))
    shutil.copy(repository / "pyproject.toml", root)
    return root


@pytest.fixture
def carry_out(copy: Path, repository: Path) -> Iterator[Callable[[str], Made]]:
    """Return what carries out the recipe under a heading; the copy is as it was afterwards."""
    before: dict[Path, bytes | None] = {}

    def write(path: Path, text: str) -> None:
        before.setdefault(path, path.read_bytes() if path.exists() else None)
        path.write_text(text, encoding="utf-8")

    for catalogue in (copy / _CATALOGUES).rglob("*.po"):
        write(catalogue, catalogue.read_text(encoding="utf-8"))

    def make(what: str) -> Made:
        page = (repository / "CONTRIBUTING.md").read_text(encoding="utf-8")
        _, _, rest = page.partition(f"\n## To add a {what}\n")
        recipe, _, _ = rest.partition("\n## ")
        blocks = [(kind, textwrap.dedent(text)) for _, kind, text in _BLOCK.findall(recipe)]
        assert blocks, f"CONTRIBUTING has no recipe for a {what}"
        touched = set()
        for kind, block in blocks:
            head, _, body = block.partition("\n")
            name = re.fullmatch(r"# (\S+)" if kind == "python" else r"--- (\S+)", head)
            assert name is not None, head
            path = copy / name[1]
            touched.add(name[1])
            if kind == "python":
                assert not path.exists(), f"{name[1]} is there already"
                write(path, body)
            else:
                write(path, _patched(path.read_text(encoding="utf-8"), body, name[1]))
        return Made(copy, frozenset(touched))

    yield make
    for path, content in before.items():
        if content is None:
            path.unlink()
        else:
            path.write_bytes(content)


@pytest.fixture(scope="module")
def replayed(copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data folder with nine days of a small fleet, and a simulated cluster of it."""
    trace, data = tmp_path_factory.mktemp("fleet"), tmp_path_factory.mktemp("data") / "data"
    write_synthetic_fleet(trace, cards=CARDS_MIN, days=9)
    words = ["-m", "gputide.cli", "--quiet", "--data-dir", str(data), "admin", "replay", str(trace), "--until", CUT]
    Made(copy, frozenset()).python(*words)
    return data


@pytest.fixture
def data(replayed: Path, tmp_path: Path) -> Path:
    """Return a data folder of the test's own."""
    return shutil.copytree(replayed, tmp_path / "data")


def test_kind_of_advice_is_proposed_explained_staged_applied_reported_and_translated(
    carry_out: Callable[[str], Made], data: Path
) -> None:
    made = carry_out("kind of advice")
    assert len(made.touched) <= FILES_MAX["kind of advice"], made.touched
    sentences = {
        "en": (
            "review",
            "Ask owners of idle cards",
            "Ask the owner: {workloads} ({freed})",
            "It holds {cards} idle cards",
        ),
        "zh": ("问主人", "请主人查看闲置的卡", "请问主人：{workloads}（{freed}）", "它占着 {cards} 张卡，却闲置"),
    }
    for language, (kind, stage, headline, said) in sentences.items():
        made.add_sentences(language, "gputide.po", {"kind.review": kind, "stage.review": stage})
        own = {"headline": headline, "meaning": kind, "said": said, "changes": kind}
        made.add_sentences(language, "advice.po", {f"{group}.review": text for group, text in own.items()})
    found = json.loads(
        made.played(f"""
        data = ("--quiet", "--data-dir", {str(data)!r})
        plan = json.loads(said(*data, "plan", "make", "--format", "json"))
        own = [one for one in plan["recommendations"] if one["kind"] == "review"]
        (stage,) = [one for one in plan["stages"] if own[0]["id"] in one["recommendations"]]
        explained = said(*data, "plan", "explain", own[0]["id"])
        said(*data, "plan", "approve", "--stage", str(stage["stage"]))
        applied = json.loads(said(*data, "apply", "--yes", "--stage", str(stage["stage"]), "--format", "json"))
        from dashboards.words.advice import reason_words
        from fleet.words import Language
        from fleet.data_folder import open_data_folder
        from gputide.container.plans import plan_store
        (stored,) = plan_store(open_data_folder(Path(data[-1]), create=False)).plans()
        reasons = {{one.id: reason_words(one, Language.ZH) for one in stored.recommendations}}
        print(json.dumps({{
            "own": own, "stage": stage, "explained": explained, "applied": applied,
            "reason": reasons[own[0]["id"]],
            "report": said(*data, "report", "--format", "md"),
            "zh": said(*data, "report", "--format", "md", "--lang", "zh"),
        }}))
        """)
    )
    assert "idle cards" in found["explained"]
    assert "Ask owners of idle cards" in found["report"]
    assert "请主人查看闲置的卡" in found["zh"]
    assert "张卡，却闲置" in found["reason"]
    assert [stage["state"] for stage in found["applied"]["stages"]] == ["promoted"]


def test_backend_is_chosen_planned_for_and_carried_out_on_the_simulated_cluster(
    carry_out: Callable[[str], Made], data: Path
) -> None:
    made = carry_out("backend")
    assert len(made.touched) <= FILES_MAX["backend"], made.touched
    found = json.loads(
        made.played(f"""
        import sqlite3
        from enforcer.backends.our_hami import OurHamiBackend
        from enforcer.simulated import cluster, systems
        from enforcer.simulated.hami import HamiSystem
        from fleet.capabilities.register import capabilities_of

        # Whether a simulated cluster can play a backend is a choice of its own: this one is played as HAMi.
        ours = HamiSystem(capabilities_of("our_hami"), OurHamiBackend(None).dialect)
        theirs = systems.system_of
        cluster.system_of = lambda name: ours if name == "our_hami" else theirs(name)
        with sqlite3.connect({str(data / "cluster.sqlite")!r}) as kept:
            kept.execute("UPDATE meta SET value = 'our_hami' WHERE key = 'system'")
        data = ("--quiet", "--data-dir", {str(data)!r}, "--set", "enforcer.backend=our_hami",
                "--set", "enforcer.experimental=true")
        plan = json.loads(said(*data, "plan", "make", "--format", "json"))
        diff = said(*data, "plan", "diff", "--format", "json")
        said(*data, "plan", "approve")
        said(*data, "apply", "--yes")
        print(json.dumps({{"plan": plan, "diff": diff, "drift": said(*data, "plan", "drift")}}))
        """)
    )
    assert found["plan"]["backend"] == "our_hami"
    assert "nvidia.com/gpumem" in found["diff"]
    assert found["drift"].startswith("everything is as applied plans left it")


def test_metric_is_scraped_stored_and_shown(carry_out: Callable[[str], Made], tmp_path: Path) -> None:
    made = carry_out("metric")
    assert len(made.touched) <= FILES_MAX["metric"], made.touched
    found = json.loads(
        made.played(f"""
        from datetime import UTC, datetime
        import numpy as np
        from exporter.collector import CollectorState, Snapshot
        from exporter.exposition.rendering import Exposition
        from exporter.reader import Reading
        from fleet.schema import CARD_USAGE, Measure
        from fleet.usage import CardKey
        from pipeline.remote_write.decode import Version
        from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
        from prometheus_client.parser import text_string_to_metric_families
        from tests.pipeline.builders import START_MS, Sample, encoded, file_bus, intake_of, roll_up, stored_rows

        measure = Measure("tensor_active_ratio")
        key = CardKey(cluster="c1", node="n1", card="GPU-1", card_model="NVIDIA A10")
        reading = Reading(
            at=datetime.fromtimestamp(START_MS / 1000, UTC), cards=(key,), card_values={{measure: np.array([0.25])}}
        )
        snapshot = Snapshot(number=1, reading=reading, cards=(), nodes=(), grants=(), taken_at_seconds=0.0)
        state = CollectorState(snapshot=snapshot, age_seconds=0.0, readings=1, failures=0)
        text = Exposition().render(state).decode()
        (scraped,) = [
            one for family in text_string_to_metric_families(text) for one in family.samples
            if one.name == "gputide_card_tensor_active_ratio"
        ]
        dcgm = {{"UUID": "GPU-2", "modelName": "NVIDIA A10", "Hostname": "n1", "cluster": "c1"}}
        labels = [
            {{"__name__": scraped.name, **scraped.labels}}, {{"__name__": "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", **dcgm}}
        ]
        samples = [
            Sample(number, measure, START_MS + 30_000, value, True) for number, value in enumerate((scraped.value, 0.5))
        ]
        folder = Path({str(tmp_path)!r})
        bus, warehouse = file_bus(folder / "bus"), DuckdbWarehouse(folder / "warehouse")
        assert intake_of(bus).take(encoded(labels, samples, Version.V2), Version.V2).status == 204
        roll_up(bus, warehouse)
        stored = stored_rows(warehouse, CARD_USAGE, levels=[60])
        print(json.dumps({{"text": text, "stored": [[key[2], row] for key, row in stored.items()]}}))
        """)
    )
    assert "# HELP gputide_card_tensor_active_ratio Share of time in which tensor cores worked, 0-1." in found["text"]
    sums = {card: row["tensor_active_ratio_sum"] for card, row in found["stored"]}
    assert sums == {"GPU-1": 250_000, "GPU-2": 500_000}
    shown = made.python(
        "-c", "import sys; sys.path.append('docs'); import metrics_page as page; print(*page.metrics_pages().values())"
    )
    assert "gputide_card_tensor_active_ratio" in shown
    assert "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE" in shown


def test_verb_is_listed_in_help_and_runs(carry_out: Callable[[str], Made], data: Path) -> None:
    made = carry_out("verb")
    assert len(made.touched) <= FILES_MAX["verb"], made.touched
    found = json.loads(
        made.played(f"""
        print(json.dumps({{
            "help": said("--help"),
            "own": said("clusters", "--help"),
            "found": json.loads(said("--data-dir", {str(data)!r}, "clusters", "--format", "json")),
        }}))
        """)
    )
    assert re.search(r"\bclusters +List the clusters that were ever seen\.", found["help"])
    assert "Example: gputide clusters" in found["own"]
    assert len(found["found"]["clusters"]) == 1


def _patched(text: str, change: str, name: str) -> str:
    """The text with the added lines of a change, beside lines of it that must be there exactly once."""
    lines = change.splitlines()
    assert all(line[:1] in (" ", "+", "") for line in lines), change
    old = "".join(f"{line[1:]}\n" for line in lines if not line.startswith("+"))
    new = "".join(f"{line[1:]}\n" for line in lines)
    assert text.count(old) == 1, f"{name} has {text.count(old)} times:\n{old}"
    return text.replace(old, new)
