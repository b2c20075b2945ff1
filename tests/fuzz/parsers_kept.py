"""What we left with others and find again: marks on objects, configurations of plugins, files of the data folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from dashboards.api.operations import STAGES_BODY, fits
from dashboards.notify.sending import read_sent
from dashboards.report.weeks import read_weeks
from dashboards.view_models.grid_rows import GridColumn, GridRows
from enforcer.admission import PREVIOUS_ANNOTATION
from enforcer.agent.sleepers import _remembered as remembered_sleepers
from enforcer.backends.node_config import with_entries
from enforcer.backends.stage import _kept as previous_of
from enforcer.backends.vgpumanager import _merged as with_vgpu_entries
from enforcer.kubernetes.seat_claims import GIVEN_ANNOTATION
from enforcer.kubernetes.seat_claims import _given as seats_given
from enforcer.manifest import json_taken_back
from enforcer.policy_follower import Planned
from enforcer.record.fingerprint import _before_us as before_us
from enforcer.rollout.held_mark import HELD_ANNOTATION, released
from fleet.data_folder import DataFolder
from fleet.durable import read_stamp
from gputide.operate.engine_process import read_register
from gputide.replay.clock import read_replay_clock
from gputide.scanning.remembered import _remembered as scanned_backends
from tests.fuzz.parsers import Parser, text_of
from tests.fuzz.parsers_cluster import of_file, scratch_file
from wire.prometheus_query import _is_api_error as is_api_error
from wire.prometheus_query import _said as said_of
from wire.tokens import BearerTokens


def _held(data: bytes) -> object:
    """The mark of an owner whose template is changed."""
    spec = {"replicas": 1, "paused": True, "template": {"spec": {"containers": [{"name": "main", "image": "a"}]}}}
    before: dict[str, Any] = {
        "kind": "Deployment", "metadata": {"annotations": {HELD_ANNOTATION: text_of(data)}}, "spec": spec,
    }  # fmt: skip
    template = {"spec": {"containers": [{"name": "main", "image": "b"}]}}
    return released(before, {**before, "spec": {**spec, "template": template}})


def _in_folder(name: str, read: Callable[[DataFolder], object]) -> Callable[[bytes], object]:
    """A reader of one file of a data folder."""

    def read_file(data: bytes) -> object:
        folder = DataFolder(path=scratch_file("kept"))
        path = folder.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return read(folder)

    return read_file


def _body(data: bytes) -> object:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return sorted(int(stage) for stage in content["stages"]) if fits(content, STAGES_BODY) else None


_TABLE: GridRows[int] = GridRows(
    range(5),
    (
        GridColumn(field="name", value=lambda item: None if item == 2 else f"row {item}"),
        GridColumn(field="busy", value=lambda item: item / 4, is_number=True, is_ratio=True),
    ),
)


def _rows_asked(data: bytes) -> object:
    """What a page asks of a table."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        content = None
    return _TABLE.page(content)


def _previous(data: bytes) -> object:
    """What an annotation of an owner says that it was before a plan; whoever may write the owner writes it."""
    owner = {
        "kind": "Deployment", "metadata": {"name": "web", "annotations": {PREVIOUS_ANNOTATION: text_of(data)}},
        "spec": {"template": {"spec": {"containers": [{"name": "main", "image": "a"}]}}},
    }  # fmt: skip
    return before_us(owner), previous_of(owner, f"metadata.annotations[{PREVIOUS_ANNOTATION}]")


def _seats_given(data: bytes) -> object:
    return seats_given({"metadata": {"annotations": {GIVEN_ANNOTATION: text_of(data)}}})


def _prometheus_says(data: bytes) -> object:
    return said_of(bytearray(data)), is_api_error(bytearray(data))


def _authorization(data: bytes) -> object:
    path = scratch_file("tokens")
    path.write_bytes(b"0123456789abcdef0123 edge-1\n")
    return BearerTokens(path, setting="receiver.tokens_file", now_seconds=lambda: 0.0).name_of(text_of(data))


def _of(name: str, read: Callable[[bytes], object], *seeds: object, cost: int = 2) -> Parser:
    return Parser(name=name, seeds=tuple(json.dumps(seed).encode() for seed in seeds), read=read, cost=cost)


def kept_parsers() -> tuple[Parser, ...]:
    """In the order of the rooms that read them."""
    config = ("ConfigMap", "kube-system", "hami-device-plugin")
    news = [{"receiver": "mei", "channel": "mail", "key": "k", "topic": "plan", "at": "2026-01-12T08:30:00Z"}]
    week = {
        "week_start": "2026-01-12T00:00:00Z", "cards_freed": 2, "wasted_per_week": 12.5, "violation_ratio": 0.01,
        "cards_by_state": [["busy", 3]], "idle_gpu_hours": 7.5, "low_priority_gpu_hours": None, "kwh": 1.0,
        "kg_co2": None, "cluster": "c1",
    }  # fmt: skip
    return (
        _of("held-mark", _held, {"spec.paused": ["false", "true"], "spec.replicas": ["4", "1"]}),
        _of("node-config", lambda data: with_entries(text_of(data), {"n1": {"devicememoryscaling": 2.0}}, config),
            {"nodeconfig": [{"name": "n1", "devicesplitcount": 4}, {"name": "n2"}]}),
        _of("vgpu-node-config", lambda data: with_vgpu_entries(text_of(data), {"n1": {"deviceMemoryScaling": 2.0}}),
            [{"nodeName": "n1", "deviceSplitCount": 4}, {"nodeName": "n2"}]),
        _of("plans-part-of-json", lambda data: json_taken_back("[]", '[{"name": "n1", "a": 1}]', text_of(data)),
            [{"name": "n1", "a": 1}, {"name": "n2"}]),
        _of("values-before-a-plan", _previous, {"spec.template.spec.containers[main].image": "b"}),
        _of("seats-given", _seats_given, {"n1/GPU-0": 1767571200.5}),
        _of("prometheus-refusal", _prometheus_says, {"status": "error", "errorType": "bad_data", "error": "no"}),
        Parser(name="authorization", seeds=(b"Bearer 0123456789abcdef0123", b"Basic ZWRnZS0xOjAxMjM="),
               read=_authorization, cost=2),
        _of("engine-register", _in_folder("engines.json", lambda folder: read_register(folder.path)),
            {"version": 1, "engines": []}),
        _of("sleepers", of_file(remembered_sleepers, "sleepers.json"), [["u-1", "main"]]),
        _of("folder-stamp", _in_folder("FORMAT.json", lambda folder: read_stamp(folder.path)),
            {"schema_version": 1, "role": "data"}),
        _of("policies-followed", _in_folder("policies.json", lambda folder: Planned(folder.policies)),
            {"GpuPolicy team/web": ["0" * 64, "1" * 64]}),
        _of("replay-clock", _in_folder("clock.json", read_replay_clock),
            {"now": "2026-01-12T08:30:00Z", "trace": "t", "cluster": "c1"}),
        _of("scanned-backends", _in_folder("scanned-backends.json", scanned_backends), {"c1": "hami"}),
        _of("sent-news", _in_folder("sent.json", lambda folder: read_sent(folder.path)), news),
        _of("week", _in_folder("weeks/2026-01-12.json", read_weeks), week),
        _of("stages-to-approve", _body, {"stages": [1, 2]}),
        _of("rows-of-a-table", _rows_asked,
            {"first": 0, "count": 3, "filters": {"name": "row", "busy": ">5"}, "sorts": [["busy", "desc"]]}),
    )  # fmt: skip
