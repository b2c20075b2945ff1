"""All parsers that are fuzzed by mutation, in the order of the data flow; bodies and regions have rows of their own."""

from __future__ import annotations

from functools import cache

from tests.fuzz.parsers import Parser
from tests.fuzz.parsers_annotations import ANNOTATIONS
from tests.fuzz.parsers_cluster import CLUSTER
from tests.fuzz.parsers_files import file_parsers
from tests.fuzz.parsers_forge import forge_parsers
from tests.fuzz.parsers_kept import kept_parsers
from tests.fuzz.parsers_records import record_parsers
from tests.fuzz.parsers_wire import wire_parsers


@cache
def all_parsers() -> tuple[Parser, ...]:
    """Every parser; made once, for some need keys or files."""
    return (
        *ANNOTATIONS,
        *CLUSTER,
        *wire_parsers(),
        *file_parsers(),
        *record_parsers(),
        *kept_parsers(),
        *forge_parsers(),
    )
