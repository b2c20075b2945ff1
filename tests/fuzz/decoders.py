"""Where the shipped code decodes text or bytes: functions that call a decoder, found in the sources."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType

from tests.fuzz.parsers import Parser

ROOT = Path(__file__).parents[2]
ROOMS = ("fleet", "wire", "exporter", "pipeline", "analyzer", "recommender", "enforcer", "dashboards", "gputide")
_OF_MODULES = {
    ("json", "load"), ("json", "loads"), ("yaml", "load"), ("yaml", "safe_load"), ("yaml", "safe_load_all"),
    ("tomllib", "load"), ("tomllib", "loads"), ("csv", "reader"), ("csv", "DictReader"), ("zlib", "decompress"),
    ("zlib", "decompressobj"), ("gzip", "decompress"), ("base64", "b64decode"), ("struct", "unpack"),
    ("struct", "unpack_from"), ("pickle", "loads"), ("ast", "literal_eval"),
}  # fmt: skip
_METHODS = {"unpack", "unpack_from", "iter_unpack", "raw_decode", "validate_json", "model_validate_json"}
_FUNCTIONS = {"json_value", "from_json"}


def decoders() -> frozenset[str]:
    """Every function that calls a decoder itself, as `path/of/module.py:function`."""
    paths = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
    return frozenset(
        f"{path.relative_to(ROOT)}:{name}" for path in paths for name in _decoding(ast.parse(path.read_bytes()), "")
    )


def entered(parsers: Iterable[Parser]) -> frozenset[str]:
    """Functions of the shipped code that run while the parsers read their good inputs, named as in `decoders`."""
    seen: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            seen.add((frame.f_code.co_filename, frame.f_code.co_name))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        for parser in parsers:
            for seed in parser.seeds:
                parser.read(seed)
    finally:
        sys.setprofile(before)
    start = f"{ROOT}/"
    return frozenset(f"{file.removeprefix(start)}:{name}" for file, name in seen if file.startswith(start))


def _decoding(tree: ast.AST, function: str) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        if isinstance(node, ast.Call) and _decodes(node.func):
            yield inner
        yield from _decoding(node, inner)


def _decodes(called: ast.expr) -> bool:
    if isinstance(called, ast.Name):
        return called.id in _FUNCTIONS
    if not isinstance(called, ast.Attribute):
        return False
    of_module = isinstance(called.value, ast.Name) and (called.value.id, called.attr) in _OF_MODULES
    return of_module or called.attr in _METHODS


_COPY = "a copy of a record of our own, made of what the line before wrote"
_SHIPPED = "a file of the package"
_SIMULATED = "the simulated cluster's own database, which holds what it was given as objects"
_REGIONS = "shared regions, which `tests/fuzz/run_region_fuzz.py` fuzzes against a reader of their own"
_CHECKED = "a file of the data folder behind a checksum; a cut or damaged record ends the reading there"
_ONE_TRY = (
    "one call in one try: what is no such JSON, or not the one field that is asked for, is the answer 'unreadable'"
)
_ONE_PLACE = "JSON alone, refused as a whole; what it holds goes to a reader of the list"
NOT_FUZZED = {
    "dashboards/access/oidc.py:json": _ONE_PLACE,
    "dashboards/api/routes.py:_checked_body": _ONE_PLACE,
    "dashboards/grafana/shipped.py:_config_map": _SHIPPED,
    "dashboards/pages/downloads.py:_rows": _ONE_PLACE,
    "enforcer/agent/hami_node_actions.py:_closed_by_us": _ONE_TRY,
    "enforcer/agent/held_regions.py:last_kernel_at": _REGIONS,
    "enforcer/agent/held_regions.py:tail": _REGIONS,
    "enforcer/agent/launches.py:look": _REGIONS,
    "enforcer/agent/launches.py:uncount": _REGIONS,
    "enforcer/agent/node_agent.py:read": "lines of a file of the agent's own, which are shown and not gone by",
    "enforcer/agent/region_writing.py:_cards": _REGIONS,
    "enforcer/agent/region_writing.py:check_region": _REGIONS,
    "enforcer/emit/object_patch.py:object_patches": "YAML that `plan emit` has just written",
    "enforcer/forge/rest.py:_call": _ONE_PLACE,
    "enforcer/kubernetes/admission_server.py:_review": _ONE_PLACE,
    "enforcer/kubernetes/field_owners.py:_is_named": "keys of managed fields, which the API server itself makes",
    "enforcer/kubernetes/reader.py:known": _COPY,
    "enforcer/manifest.py:_variable": _ONE_TRY,
    "enforcer/router/model_router.py:is_asleep": _ONE_TRY,
    "enforcer/simulated/": _SIMULATED,
    "exporter/regions/followed.py:find_layout": _REGIONS,
    "fleet/json_text.py:as_stored": _COPY,
    "fleet/regions/layouts.py:_carries_version": _REGIONS,
    "fleet/regions/layouts.py:_processes_that_fit": _REGIONS,
    "gputide/container/notify.py:_dry_body": _COPY,
    "gputide/doctor/cluster_rights.py:rules": _SHIPPED,
    "gputide/doctor/finding.py:catalogue": _SHIPPED,
    "gputide/doctor/prometheus_server.py:dropped": "settings of a Prometheus that the user names; doctor alone",
    "gputide/doctor/services.py:_oidc_trouble": _ONE_TRY,
    "gputide/node_exporter.py:options_of": "options that the command line has just handed to a process of its own",
    "gputide/operate/engine_answers.py:flink_answers": _ONE_TRY,
    "gputide/operate/engine_flink.py:_settings": "settings of an engine that was unpacked from its release",
    "pipeline/bus/bus_file.py:_records": _CHECKED,
    "pipeline/flink/": "what our own job, and the JobManager that runs it, tell each other",
    "pipeline/records/sightings.py:_json": "cells of the warehouse's own tables; what is no JSON is Corrupt",
    "pipeline/warehouse/files.py:_follow_intent": _CHECKED,
    "pipeline/warehouse/manifest.py:_parsed": _CHECKED,
    "recommender/planner.py:_printed": _COPY,
    "wire/credentials.py:_ask": "what the kubeconfig's own program prints; one try, and no word of it is shown",
    "wire/http_answer.py:_unpacked": "a stream of bounded bytes, whose errors are `Unavailable`",
}
"""Decoders that no parser of the list reaches, or all of a folder, and why none has to."""
