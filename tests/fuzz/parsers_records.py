"""What gputide keeps of plans and changes: ledgers, their heads and anchors, approvals, wishes, objects of the cluster.

Whoever may write the data folder, or the objects, may chain and seal anything, so contents are damaged behind hashes
that fit, and all that a journal makes of them is looked at.
"""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from dashboards.stored.changes import StoredOutcomes, acts_of, change_events
from enforcer.kubernetes.change_store import GpuChanges
from enforcer.kubernetes.ledger_anchor import HEADS_ANNOTATION, LeaseAnchor
from enforcer.kubernetes.plan_objects import WANTED_BY_ANNOTATION, GpuPlans, name_of, part_name_of
from enforcer.record.anchor import AnchorFile
from enforcer.record.journal import Journal
from enforcer.record.ledger import GENESIS, Ledger, chained_hash, ledger_at
from enforcer.record.outcome_store import read_outcomes
from enforcer.record.plan_status import plan_status
from enforcer.record.plan_store import PlanStore
from enforcer.record.request_log import RequestLog
from enforcer.record.shared_ledger import stored_runs
from enforcer.relief.relief_journal import ReliefJournal
from enforcer.tide.tide_journal import TideJournal, evictions_of
from fleet.data_folder import DataFolder
from fleet.documents import plan_document, plan_from_json, plan_to_json, seal_plan
from fleet.errors import Corrupt
from tests.fleet.test_documents import a_plan
from tests.fuzz.parsers import Parser
from tests.fuzz.parsers_cluster import scratch_file
from tests.fuzz.parsers_files import an_outcome
from wire.http_client import Endpoint
from wire.kubernetes.refusals import Deed
from wire.kubernetes.write import WritingApi

_AT = datetime(2026, 1, 12, 8, 30, tzinfo=UTC)
_PLAN = seal_plan(a_plan())
_SAID = {"code": "progress.restoring", "values": {"reason": {"code": "mark.none", "values": {}}}}
_OBJECT = {
    "kind": "Deployment", "namespace": "team", "name": "web", "resource_version": "7", "recommendation": "r-1",
    "fields": [["spec.replicas", "4", "2"]], "holds": [["spec.paused", None, "true", "false"]], "generation": 3,
    "parts": {"spec": "ab"}, "owners": [{"manager": "kubectl", "operation": "Update"}],
}  # fmt: skip
_REQUESTS = [
    ["request_intent", {"branch": "gputide/7f3a", "stages": [1], "by": "ann"}],
    ["request_seen", {"number": 7, "url": "https://git.example.org/7", "state": "open"}],
]
_MOVE = {
    "namespace": "team", "pod": "web-0", "workload": "team/Deployment/web", "recommendation": "r-1",
    "old": [["main", "GPU-0", 4096, 50, None]], "new": [["main", None, 4096, 50, "high", "n1", "nvidia.com/gpu"]],
    "called": "web-1",
}  # fmt: skip
_STEP = {
    "stage": 1, "node": "n1", "empty_cards": ["GPU-0"], "restarts": [["kube-system", "plugin"]], "done_field": "a",
    "done_value": "b", "done_mode": None, "failed_value": None, "leaving": [], "advertised": [], "back": [["c", "d"]],
    "registers_mib": [["GPU-0", 4096]], "registered_mib": [], "offered_before": [],
}  # fmt: skip
_CHANGES: list[Any] = [
    ["begin", {"stages": [1], "by": "ann", "cards_granted": ["GPU-0"], "cluster": "c1"}],
    ["stage_begin", {"stage": 1}],
    ["intent", {"stage": 1, **_OBJECT}],
    ["move", {"stage": 1, **_MOVE}],
    ["node_step", _STEP],
    ["stage", {"stage": 1, "canary": ["team/Deployment/web"]}],
    ["evict", {"stage": 1, "pods": ["team/web-0"], "phase": "canary"}],
    ["watched", {"stage": 1, "batch": "canary", "complaints": [_SAID]}],
    ["promoted", {"stage": 1}],
    ["end", {}],
    ["undo_begin", {"stages": [1], "recommendation": None, "objects": [_OBJECT], "moves": [_MOVE]}],
    ["undone", {"stages": [1], "recommendation": None, "kept": [_SAID]}],
    ["begin", {"stages": [1], "by": "ann", "cards_granted": []}],
    ["stage_begin", {"stage": 1}],
    ["intent", {"stage": 1, **_OBJECT}],
    ["stage", {"stage": 1, "canary": []}],
    ["restoring", {"stage": 1, "reason": _SAID}],
    ["restored", {"stage": 1, "kept": [_SAID]}],
    ["undo_begin", {"stages": [], "recommendation": "r-1", "objects": [], "moves": []}],
    ["undone", {"stages": [], "recommendation": "r-1", "kept": []}],
]
_NIGHT: list[Any] = [
    ["tide_begin", {
        "night": "2026-01-12", "ends_at": "2026-01-13T06:00:00+00:00", "services": ["team/Deployment/web"],
        "scale": [_OBJECT], "left": [["team/Deployment/api", "pinned"]], "workloads": ["team/Deployment/web"],
        "cards": 2, "marks": [], "frees": [["team/Deployment/web", "GPU-0"]]}],
    ["tide_admit", {"admission": [_OBJECT], "tiers": ["batch"], "freed": ["GPU-0"], "machines": ["n1"],
                    "until": "2026-01-13T05:00:00+00:00"}],
    ["tide_home_early", {"needs": {"team/Deployment/web": "2 replicas"}}],
    ["tide_take_back", {"cards": ["GPU-0"]}],
    ["tide_abort", {"by": "ann"}],
    ["tide_go_home", {}],
    ["tide_end", {"seconds": 61.5, "late": False, "kept": [_SAID]}],
]  # fmt: skip
_RELIEF: list[Any] = [
    ["squeeze", {"node": "n1", "card": "GPU-0", "containers": [["u-1", "main"]], "reason": _SAID}],
    ["squeezed", {"nodes": ["n1"], "outcome": "stands"}],
    ["move_begin", {
        "move": "m1", "namespace": "team", "pod": "web-0", "pod_uid": "u-1", "workload": "team/Deployment/web",
        "maker": "web-5d4f", "replica": "web-warm", "from_node": "n1", "from_card": "GPU-0", "to_card": "GPU-1",
        "framebuffer_mib": 4096, "manner": "warm", "home": False, "reason": _SAID,
        "overloaded_at": "2026-01-12T08:29:00Z"}],
    ["move", {"move": "m1", "phase": "ready", "why": None}],
    ["move", {"move": "m1", "phase": "leaving", "why": _SAID}],
    ["move", {"move": "m1", "phase": "done", "why": None}],
    ["release", {"node": "n1", "card": "GPU-0"}],
]  # fmt: skip
_METADATA = {"resourceVersion": "7", "generation": 2, "uid": "u", "creationTimestamp": "2026-01-12T08:30:00Z"}
_CONDITIONS = [
    {"type": "Applied", "status": "False", "reason": "Refused", "message": "no", "observedGeneration": 2},
    {"type": "Failed", "status": "True", "observedGeneration": 1},
]


def _folder() -> DataFolder:
    place = scratch_file("records")
    place.mkdir(exist_ok=True)
    return DataFolder(path=place)


def _json(data: bytes) -> Any:
    """What the bytes hold as JSON; None where they hold none."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _chained(path: Path, entries: Any) -> bool:
    """Write entries as a ledger whose chain fits, as whoever may write the folder can; false where that can't be."""
    previous, lines = GENESIS, []
    try:
        for number, (event, content) in enumerate(entries, start=1):
            body = {"number": number, "at": f"2026-01-12T08:30:{number % 60:02}Z", "event": event,
                    "plan_id": _PLAN.plan_id, "content": content}  # fmt: skip
            previous = chained_hash(previous, body)
            lines.append(json.dumps({**body, "sha256": previous}, ensure_ascii=False).encode() + b"\n")
    except (ValueError, TypeError, RecursionError):
        return False
    path.with_name(f"{path.name}.head").unlink(missing_ok=True)
    path.write_bytes(b"".join(lines))
    return True


def _said(*records: object) -> None:
    """Print what was read, as a terminal and a page do."""
    for record in records:
        json.dumps(str(record), ensure_ascii=False).encode()


def _changes(data: bytes) -> object:
    folder = _folder()
    PlanStore(folder.plans).add(_PLAN)
    if not _chained(folder.ledger, _json(data)):
        return None
    journal = Journal(ledger_at(folder, folder.ledger), cluster="c1")
    runs = journal.runs()
    status = plan_status([1], (), runs, PlanStore(folder.plans).wish(_PLAN.plan_id))
    lines = StoredOutcomes(folder).ledger(_PLAN.cluster)
    _said(status, *(f"{line.subject} {line.detail}" for line in lines))
    return runs, journal.open_undos(), journal.undone_recommendations(), change_events(journal, "team/Deployment/web")


def _nights(data: bytes) -> object:
    folder = _folder()
    if not _chained(folder.tide, _json(data)):
        return None
    journal = TideJournal(ledger_at(folder, folder.tide))
    nights = journal.nights()
    made = journal.scalings(), journal.absences(), journal.lead(timedelta(minutes=5)), journal.evictions_per_hour(_AT)
    return nights, made, evictions_of(nights), [night.card_hours for night in nights]


def _relief(data: bytes) -> object:
    folder = _folder()
    if not _chained(folder.relief, _json(data)):
        return None
    journal = ReliefJournal(ledger_at(folder, folder.relief))
    acts = acts_of(journal)
    _said(*(move.why for move in journal.moves()), *(move.order.reason for move in journal.moves()))
    return acts, journal.past_moves(), journal.measured(), journal.open_squeezes()


def _freezes(data: bytes) -> object:
    folder = _folder()
    if not _chained(folder.freezes, _json(data)):
        return None
    _chained(folder.ledger, [])
    return StoredOutcomes(folder).ledger(_PLAN.cluster)


def _requests(data: bytes) -> object:
    folder = _folder()
    return RequestLog(folder).newest(_PLAN.plan_id) if _chained(folder.requests, _json(data)) else None


def _ledger_file(data: bytes) -> object:
    path = scratch_file("raw.jsonl")
    path.with_name("raw.jsonl.head").unlink(missing_ok=True)
    path.write_bytes(data)
    return Ledger(path, key=b"k" * 32).entries()


def _head(data: bytes) -> object:
    folder = _folder()
    _chained(folder.ledger, _CHANGES[:2])
    folder.ledger.with_name("ledger.jsonl.head").write_bytes(data)
    return Ledger(folder.ledger).head()


def _raw_ledger() -> bytes:
    path = scratch_file("raw.jsonl")
    _chained(path, [])
    Ledger(path, key=b"k" * 32).append([("evict", {"pods": ["a/b"]}), ("x", {})], plan_id="p", at=_AT)
    return path.read_bytes()


def _raw_head() -> bytes:
    folder = _folder()
    _chained(folder.ledger, _CHANGES[:2])
    Ledger(folder.ledger).verify()
    return folder.ledger.with_name("ledger.jsonl.head").read_bytes()


def _anchor_file(data: bytes) -> object:
    path = scratch_file("anchors.json")
    path.write_bytes(data)
    return AnchorFile(path, "/data").heads()


def _of_plan(name: str, read: Callable[[PlanStore], object]) -> Callable[[bytes], object]:
    """A reader of a file beside a plan."""

    def read_file(data: bytes) -> object:
        folder = _folder()
        folder.plans.mkdir(exist_ok=True)
        path = folder.plans / f"p.{name}"
        path.write_bytes(data)
        try:
            return read(PlanStore(folder.plans))
        finally:
            path.unlink()

    return read_file


def _outcomes(data: bytes) -> object:
    folder = _folder()
    folder.outcomes.mkdir(exist_ok=True)
    (folder.outcomes / "p.json").write_bytes(data)
    return read_outcomes(folder)


def _sealed(data: bytes) -> object:
    """A plan whose id fits what it says: whoever may write one may seal it too. It can be written again."""
    body = _json(data)
    if not isinstance(body, dict):
        return None
    body.pop("plan_id", None)
    try:
        canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        text = json.dumps({**body, "plan_id": hashlib.sha256(canonical).hexdigest()}).encode()
    except (ValueError, RecursionError):
        return None
    return plan_to_json(plan_from_json(text))


class _Answers(WritingApi):
    """An API server's answers by path, without the server: what is behind the connection is all of it ours."""

    def __init__(self, answers: Mapping[str, bytes]) -> None:
        super().__init__(Endpoint(host="127.0.0.1", port=1), "fuzz", rules_file="rules.yaml")
        self._answers = answers

    def exchange(self, deed: Deed, asked: Any, bytes_max: int) -> bytearray | None:
        """What the server says at the path."""
        del deed, bytes_max
        found = self._answers.get(asked.path)
        return None if found is None else bytearray(found)


_KINDS = "/apis/gputide.io/v1alpha1"


def _page(*objects: bytes) -> bytes:
    return b'{"metadata": {"resourceVersion": "7"}, "items": [%s]}' % b",".join(objects)


_HEAD_OBJECT: dict[str, Any] = {
    "metadata": {
        **_METADATA, "name": name_of(_PLAN.plan_id),
        "annotations": {WANTED_BY_ANNOTATION: json.dumps({"by": "ann", "apply": [1]})},
    },
    "spec": {"plan": _PLAN.plan_id, "apply": [1], "parts": 1, "sha256": ""},
    "status": {"conditions": _CONDITIONS},
}  # fmt: skip
_APPROVAL = {
    "metadata": {**_METADATA, "name": "plan-a-1"},
    "spec": {"plan": _PLAN.plan_id, "stages": [1], "approvedBy": "ann"},
}  # fmt: skip


def _plans(answers: Mapping[str, bytes]) -> GpuPlans:
    return GpuPlans(_Answers({f"{_KINDS}/gpuapprovals": _page(), **answers}))


def _gpu_plan(data: bytes) -> object:
    plans = _plans({f"{_KINDS}/gpuplans": _page(data), f"{_KINDS}/gpuplans/{name_of(_PLAN.plan_id)}": data})
    listed = plans.listed()
    _said(*listed, *(one.wish for one in listed.values()))
    wish = plans.wish(_PLAN.plan_id)
    with suppress(Corrupt):
        plans.content(_PLAN.plan_id)
    return wish


def _gpu_approval(data: bytes) -> object:
    """With a listed approval the folder's copy is written and read again."""
    found = _plans({f"{_KINDS}/gpuapprovals": _page(data)}).approvals(_PLAN.plan_id)
    store = PlanStore(_folder().plans)
    store.keep_approvals(_PLAN.plan_id, found)
    return store.approvals(_PLAN.plan_id)


def _gpu_plan_part(data: bytes) -> object:
    """A part whose digest fits: whoever may write the parts may write the plan that names it."""
    part = _json(data)
    spec = part.get("spec") if isinstance(part, dict) else None
    text = spec.get("data") if isinstance(spec, dict) else None
    digest = hashlib.sha256(text.encode(errors="replace") if isinstance(text, str) else b"").hexdigest()
    head = {**_HEAD_OBJECT, "spec": {**_HEAD_OBJECT["spec"], "sha256": digest}}
    content, _ = _plans({
        f"{_KINDS}/gpuplans/{name_of(_PLAN.plan_id)}": json.dumps(head).encode(),
        f"{_KINDS}/gpuplanparts/{part_name_of(_PLAN.plan_id, 1)}": data,
    }).content(_PLAN.plan_id)  # fmt: skip
    return plan_from_json(content)


def _part() -> bytes:
    content = json.dumps({"plan": plan_to_json(_PLAN).decode(), "inputs": None}).encode()
    data = base64.b64encode(zlib.compress(content)).decode()
    metadata = {**_METADATA, "name": part_name_of(_PLAN.plan_id, 1)}
    return json.dumps({"metadata": metadata, "spec": {"plan": _PLAN.plan_id, "part": 1, "data": data}}).encode()


def _change_of(entries: Any) -> dict[str, Any] | None:
    """A `GpuChange` whose chain fits."""
    previous, kept = "", []
    try:
        for number, (event, content) in enumerate(entries, start=1):
            text = json.dumps(content)
            body = {"at": f"2026-01-12T08:30:{number % 60:02}Z", "event": event}
            packed = base64.b64encode(zlib.compress(text.encode())).decode()
            body |= {"content": text} if number % 2 else {"packed": packed}
            previous = chained_hash(previous, body)
            kept.append({**body, "sha256": previous})
    except (ValueError, TypeError, RecursionError):
        return None
    metadata = {**_METADATA, "name": f"plan-{_PLAN.plan_id}-1"}
    return {"metadata": metadata, "spec": {"plan": _PLAN.plan_id, "page": 1, "entries": kept}}


def _gpu_change(data: bytes) -> object:
    name = f"plan-{_PLAN.plan_id}-1"
    store = GpuChanges(_Answers({f"{_KINDS}/gpuchanges": _page(data), f"{_KINDS}/gpuchanges/{name}": data}))
    return store.entries(), stored_runs(store, _PLAN.plan_id)


def _gpu_change_entries(data: bytes) -> object:
    found = _change_of(_json(data))
    return None if found is None else _gpu_change(json.dumps(found).encode())


def _lease_anchor(data: bytes) -> object:
    return LeaseAnchor(_Answers({_LEASE: data}), "gputide", "ann").heads()


_LEASE = "/apis/coordination.k8s.io/v1/namespaces/gputide/leases/enforcer"


def _lease() -> bytes:
    heads = json.dumps({"ann": {"ledger.jsonl": [7, "a" * 64]}})
    return json.dumps({"metadata": {**_METADATA, "annotations": {HEADS_ANNOTATION: heads}}, "spec": {}}).encode()


def _of_json(name: str, read: Callable[[bytes], object], seed: Any, cost: int = 4) -> Parser:
    return Parser(name=name, seeds=(json.dumps(seed).encode(),), read=read, cost=cost)


def record_parsers() -> tuple[Parser, ...]:
    """In the order in which a change comes about."""
    given = b'{"stages": [1, 2], "by": "ann", "at": "2026-01-12T08:30:00Z"}\n'
    wish = {"stages": [1], "by": "ann", "generation": 2}
    return (
        _of_json("plan-sealed", _sealed, plan_document(_PLAN)),
        Parser(name="approvals", seeds=(given * 2, given), cost=2,
               read=_of_plan("approvals.jsonl", lambda store: store.approvals("p"))),
        _of_json("wish", _of_plan("wish.json", lambda store: store.wish("p")), wish, cost=2),
        _of_json("gpu-plan", _gpu_plan, _HEAD_OBJECT),
        Parser(name="gpu-plan-part", seeds=(_part(),), read=_gpu_plan_part, cost=2),
        _of_json("gpu-approval", _gpu_approval, _APPROVAL),
        _of_json("gpu-change", _gpu_change, _change_of(_CHANGES)),
        _of_json("gpu-change-entries", _gpu_change_entries, _CHANGES, cost=6),
        Parser(name="ledger", seeds=(_raw_ledger(),), read=_ledger_file, cost=2),
        Parser(name="ledger-head", seeds=(_raw_head(),), read=_head, cost=8),
        _of_json("ledger-changes", _changes, _CHANGES, cost=10),
        _of_json("ledger-nights", _nights, _NIGHT, cost=6),
        _of_json("ledger-relief", _relief, _RELIEF, cost=6),
        _of_json("ledger-freezes", _freezes, [["frozen", {"by": "ann"}], ["thawed", {"by": "ann"}]]),
        _of_json("ledger-requests", _requests, _REQUESTS),
        _of_json("anchor-file", _anchor_file, {"/data": {"ledger.jsonl": [7, "a" * 64]}}, cost=2),
        Parser(name="anchor-lease", seeds=(_lease(),), read=_lease_anchor, cost=2),
        Parser(name="outcome-file", seeds=(an_outcome(),), read=_outcomes, cost=4),
    )  # fmt: skip
