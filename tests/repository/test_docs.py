"""The generated pages of the documentation say what the code says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from docs.backends_page import BY_RULES, ON_API_SERVER, UNDONE_SIMULATED, UNDONE_THERE
from fleet.capabilities.register import CAPABILITIES
from fleet.settings.settings import Settings
from gputide.doctor.finding import Area
from recommender.advice.register import ADVICE

METRICS = (
    "measures-cards-nodes-and-grants",
    "cards-beyond-the-stored-measures",
    "hami-s-shared-regions",
    "the-node-s-sources",
    "processes",
    "cross-checks",
    "the-scheduler-layer",
    "the-exporter-itself",
    "plans-and-savings",
    "checks",
    "names-of-other-exporters",
    "understood-on-the-way-in",
    "processes-of-gputide",
)
PAGES = (
    "settings.md",
    *(f"settings/{section}.md" for section in Settings.model_fields),
    "metrics.md",
    *(f"metrics/{name}.md" for name in METRICS),
    "backends.md",
    "card-models.md",
    "tables.md",
    "doctor.md",
    *(f"doctor/{area.value}.md" for area in Area),
    "sizing.md",
    "what-each-source-knows.md",
)


@pytest.fixture(scope="module")
def generated(repository: Path) -> dict[str, str]:
    """Return the pages that the generator makes, by name."""
    made: dict[str, str] = runpy.run_path(str(repository / "docs" / "generate.py"))["pages"]()
    assert set(made) == set(PAGES)
    return made


@pytest.mark.parametrize("name", PAGES)
def test_generated_page_is_up_to_date(name: str, repository: Path, generated: dict[str, str]) -> None:
    assert (repository / "docs" / name).read_text(encoding="utf-8") == generated[name], "run python docs/generate.py"


def test_matrix_of_backends_has_the_cells_that_are_promised(repository: Path) -> None:
    page = (repository / "docs" / "backends.md").read_text(encoding="utf-8").splitlines()
    heads = page.index(next(line for line in page if line.startswith("| backend | reclaim")))
    kinds = [cell.strip() for cell in page[heads].strip("|").split("|")][1:]
    cells: dict[tuple[str, str], str] = {}
    for line in page[heads + 2 :]:
        if not line:
            break
        first, *row = (cell.strip(" `") for cell in line.strip("|").split("|"))
        name = first.partition("`")[0]
        cells |= {(name, kind): cell for kind, cell in zip(kinds, row, strict=True)}
    promised = {
        "hami": ("slice", "oversubscribe", "colocate", "offpeak_pair", "mig"),
        "effectivegpu": ("slice", "colocate"),
        "volcano": ("slice", "colocate"),
        "mgpu": ("colocate",),
        "vgpu_manager": ("slice", "oversubscribe"),
        "kai": ("slice",),
        "kai_nvfractions": ("slice",),
        "nvidia_time_slicing": ("slice",),
        "nvidia_mps": ("slice",),
        "mig": ("mig",),
        "dra_mig": ("mig",),
        "dra_shared": ("slice",),
        "dra_consumable": ("slice",),
    }
    for backend, own in promised.items():
        for kind in (*own, "reclaim", "tide", "rehome", "fewer_cards"):
            assert cells[backend, kind] in ("yes", "part"), (backend, kind)


def test_page_of_backends_marks_those_that_nothing_real_has_accepted_and_no_other(repository: Path) -> None:
    page = (repository / "docs" / "backends.md").read_text(encoding="utf-8")
    marked = re.findall(r"^\| `(\w+)` \*\*experimental\*\* \|", page, re.MULTILINE)
    experimental = [record.backend for record in CAPABILITIES if record.is_experimental]
    assert marked == experimental * 3, "in all tables"
    assert set(experimental) == {
        "effectivegpu",
        "volcano",
        "mgpu",
        "vgpu_manager",
        "kai",
        "kai_nvfractions",
        "dra_consumable",
    }


def test_what_accepted_a_backend_is_a_test_that_is_there_or_is_said_to_be_none(repository: Path) -> None:
    for record in CAPABILITIES:
        for entry in (*record.accepted_by, *record.recorded):
            file, sign, name = entry.where.partition("::")
            if sign:
                assert re.search(rf"^def {name}\b", (repository / file).read_text(encoding="utf-8"), re.MULTILINE), name
            else:
                assert entry.where.startswith("tried by hand"), entry.where


_TRIED_IN = sorted({*ON_API_SERVER.values(), *UNDONE_THERE.values(), *UNDONE_SIMULATED.values(), *BY_RULES.values()})


@pytest.mark.parametrize("where", _TRIED_IN)
def test_what_tried_a_backend_is_a_test_that_is_there(repository: Path, where: str) -> None:
    file, _, name = where.partition("::")
    assert re.search(rf"^def {name}\b", (repository / file).read_text(encoding="utf-8"), re.MULTILINE)


def test_page_of_advice_lists_the_kinds_that_a_rule_permits(repository: Path) -> None:
    registered = [advice.kind.value for advice in ADVICE]
    for name in ("advice.md", "advice.zh.md"):
        page = (repository / "docs" / name).read_text(encoding="utf-8")
        table = page[page.index("\n|") : page.index("`--only")]
        listed = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
        assert sorted(listed) == sorted(registered), name


PLACEHOLDERS = re.compile(r"NAME|PORT|GROUP|SERVICE|ENGINE")
MADE_BY_BUILDS = {"build", "dist", "site"}
NOT_OF_THE_REPOSITORY = {
    "gputide/enforcer",  # the field manager of our writes
    "gputide/PLAN",  # branch and folder of a plan's pull request
    "dashboards/*.json", "dashboards/*.yaml",  # what `admin grafana` writes
    "recommender/advice/review.py", "enforcer/backends/our_hami.py", "gputide/verbs/clusters.py",  # made by recipes
}  # fmt: skip


def test_every_path_that_docs_name_is_there(repository: Path) -> None:
    found = {path.name for path in repository.iterdir() if path.is_dir() and path.name[0].isalpha()}
    folders = "|".join(sorted(found - MADE_BY_BUILDS))
    path_of_ours = re.compile(rf"(?<![\w/.:-])(?:{folders})/[\w./*{{}},-]*[\w*/}}]")
    pages = [repository / "CONTRIBUTING.md", repository / "README.md", *(repository / "docs").glob("*.md")]
    named = 0
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for name in set(path_of_ours.findall(text)) - NOT_OF_THE_REPOSITORY:
            if not PLACEHOLDERS.search(name):
                named += 1
                head, _, rest = name.partition("{")
                choices, _, tail = rest.partition("}")
                for path in (f"{head}{choice}{tail}" for choice in choices.split(",")):
                    assert list(repository.glob(path)), f"{page.name} names {path}"
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
    assert named > 50


GENERATED_ONLY_IN_ENGLISH = {
    "settings.md", "metrics.md", "backends.md", "card-models.md", "tables.md", "sizing.md", "doctor.md",
    "what-each-source-knows.md",
    "leaderboard.md", "forecasts.md", "constants.md", "third-party.md",
}  # fmt: skip
_BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)


def test_every_written_page_has_its_chinese_beside_it(repository: Path) -> None:
    docs = repository / "docs"
    written = {path.name for path in docs.glob("*.md")} - GENERATED_ONLY_IN_ENGLISH
    english = {name for name in written if not name.endswith(".zh.md")}
    assert {name.replace(".zh.md", ".md") for name in written - english} == english


def test_every_scenario_is_whole_has_a_bar_and_is_a_guided_tour(repository: Path) -> None:
    folders = [path for path in (repository / "scenarios").iterdir() if path.is_dir()]
    assert folders
    for folder in folders:
        own = {path.name for path in folder.iterdir()}
        assert own >= {"fleet.toml", "gputide.toml", "run.sh", "expected.toml", "tour.md", "tour.zh.md"}, folder.name
        assert (repository / "bench" / "bars" / f"scenario-{folder.name}").exists()
        for page, tour in (("tours.md", "tour.md"), ("tours.zh.md", "tour.zh.md")):
            assert f"scenarios/{folder.name}/{tour}" in (repository / "docs" / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", ["blocks", "headings", "rows of tables"])
def test_translation_has_the_same_parts_as_its_original(kind: str, repository: Path) -> None:
    for chinese in sorted((repository / "docs").glob("*.zh.md")):
        original = chinese.with_name(chinese.name.replace(".zh.md", ".md"))
        assert _parts(kind, chinese) == _parts(kind, original), chinese.name


def _parts(kind: str, page: Path) -> list[str] | int:
    text = page.read_text(encoding="utf-8")
    if kind == "blocks":
        return _BLOCK.findall(text)
    prose = _BLOCK.sub("", text).splitlines()
    return sum(line.startswith("#" if kind == "headings" else "|") for line in prose)
