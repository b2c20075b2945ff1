"""The list of parsers against the code: what decodes foreign text is fuzzed, or it is named why not."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fuzz.decoders import NOT_FUZZED, ROOT, decoders

READ_ALL = """
from tests.fuzz.decoders import entered
from tests.fuzz.parser_list import all_parsers
from tests.fuzz.parsers_cluster import remove_scratch
print(*entered(all_parsers()), sep="\\n")
remove_scratch()
"""


@pytest.fixture(scope="module")
def reached() -> frozenset[str]:
    """In a process of its own: what other tests have read already may be remembered."""
    said = subprocess.run([sys.executable, "-c", READ_ALL], cwd=ROOT, capture_output=True, text=True, check=True)
    return frozenset(said.stdout.splitlines())


def _excused(decoder: str) -> str | None:
    return next(
        (name for name in NOT_FUZZED if decoder == name or (name.endswith("/") and decoder.startswith(name))), None
    )


def test_every_function_that_decodes_is_reached_by_a_parser_or_named_with_the_reason(reached: frozenset[str]) -> None:
    missing = sorted(name for name in decoders() - reached if _excused(name) is None)
    assert not missing, f"no parser of tests/fuzz/parser_list.py reads by {missing}: add one, or say why not"


def test_no_excuse_is_left_for_what_is_gone_or_is_fuzzed(reached: frozenset[str]) -> None:
    used = {_excused(name) for name in decoders() - reached}
    assert sorted(NOT_FUZZED.keys() - used) == []
