"""Analyzer and recommender take time, seeds and settings as arguments: no call in them reads the world.

import-linter forbids the modules; a clock, an unseeded generator or a file can also be had through a module that is
allowed (`datetime.now`, `numpy.random.rand`, `open`), which is what is looked for here.
"""

import ast
from pathlib import Path

import pytest

PURE_ROOMS = ("analyzer", "recommender")
WORLD_READING_CALLS = {
    "open", "input", "print", "breakpoint",
    "datetime.now", "datetime.utcnow", "datetime.today", "date.today",
    "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.date.today",
    "uuid.uuid1", "uuid.uuid4", "uuid1", "uuid4",
    "np.load", "np.save", "np.fromfile", "np.loadtxt", "numpy.load",
}  # fmt: skip
UNSEEDED = {"default_rng", "Random", "SeedSequence", "RandomState"}


def test_pure_rooms_call_nothing_that_reads_the_world(repository: Path) -> None:
    found = [
        f"{path.relative_to(repository)}:{line}: {call}"
        for room in PURE_ROOMS
        for path in sorted((repository / room).rglob("*.py"))
        for line, call in impure_calls(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        "from datetime import datetime, UTC\nnow = datetime.now(UTC)",
        "import datetime\nnow = datetime.datetime.now()",
        "import numpy as np\nnoise = np.random.rand(3)",
        "import numpy as np\nrng = np.random.default_rng()",
        "import random\nchance = random.random()",
        "text = open('plan.json').read()",
    ],
)
def test_a_call_that_reads_the_world_is_seen(code: str) -> None:
    assert impure_calls(code)


@pytest.mark.parametrize(
    "code",
    [
        "import numpy as np\nrng = np.random.default_rng(seed)\nnoise = rng.random(3)",
        "import random\nrng = random.Random(seed)",
        "from datetime import datetime\nparsed = datetime.fromisoformat(text)",
    ],
)
def test_a_seeded_generator_and_a_parsed_time_are_fine(code: str) -> None:
    assert impure_calls(code) == []


def impure_calls(code: str) -> list[tuple[int, str]]:
    """Return line and name of every call that depends on more than its arguments."""
    return [
        (node.lineno, name)
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) and _is_impure(name, node)
    ]


def _is_impure(name: str, call: ast.Call) -> bool:
    last = name.rpartition(".")[2]
    if last in UNSEEDED:
        return not call.args and not call.keywords
    return name in WORLD_READING_CALLS or name.startswith(("np.random.", "numpy.random.", "random."))
