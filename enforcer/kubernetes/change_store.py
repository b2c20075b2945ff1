"""What was changed, kept in the cluster that it was changed in: `GpuChange` objects (the port `ChangeStore`).

A plan has one object, and further ones where one would grow beyond what the API server takes. Each entry is chained to
the one before it by a hash, so an object that somebody edited is found out; each write depends on the version that was
read, so of two writers one learns that it is late. Objects whose version is known are not read again, and lie packed:
parsed, those of a year would take a gigabyte, and hardly any is looked at again.

Source: kubernetes/website:content/en/docs/reference/using-api/api-concepts.md (resource versions),
etcd-io/website:content/en/docs/v3.5/dev-guide/limit.md (1.5 MiB per request).
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

from enforcer.kept_manifests import as_manifest, as_text
from enforcer.kubernetes.custom_resources import (
    AS_MANAGER,
    OBJECT_BYTES_MAX,
    VERSION,
    got,
    kind_of,
    listed,
    making,
    warn_left_out,
)
from enforcer.manifest import Manifest
from enforcer.record.entry_shapes import CHANGES, check_content, moment_of
from enforcer.record.ledger import Overtaken, chained_hash
from enforcer.record.shared_ledger import StoredEntry
from fleet.errors import Corrupt, Refused
from fleet.json_text import json_value
from fleet.units import format_time
from wire.kubernetes.refusals import Conflict, Deed
from wire.kubernetes.write import Call, WritingApi

_PLAIN_BYTES_MAX = 16_384
"""A longer content is packed; a shorter one can be read by people."""
_UNPACKED_BYTES_MAX = 256 * 1024 * 1024
_NAME = re.compile(r"plan-(?P<plan>[0-9a-z.-]+)-(?P<page>[0-9]{1,6})", re.ASCII)
_CHANGES = kind_of("GpuChange", metadata_only=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Object:
    """One `GpuChange` as it was read last.

    Attributes:
        plan_id: empty where neither content nor name says one.
        damaged: why its content can't be read; None where it can.
    """

    name: str
    version: str
    plan_id: str
    page: int
    packed: bytes = b""
    damaged: Corrupt | None = None

    @property
    def manifest(self) -> Manifest:
        return as_manifest(zlib.decompress(self.packed))

    @property
    def entries(self) -> list[Manifest]:
        """Raises `Corrupt` where they are no objects of texts."""
        if self.damaged is not None:
            raise self.damaged.with_traceback(None)
        found = self.manifest["spec"].get("entries") or []
        if not isinstance(found, list) or not all(isinstance(one, dict) and _are_texts(one) for one in found):
            raise Corrupt(f"cannot read GpuChange {self.name}: its entries are damaged")
        return found


class _Chain(Sequence[StoredEntry]):
    """The entries of a plan, unpacked where somebody looks at them.

    Raises:
        Corrupt: somebody edited them.
    """

    def __init__(self, plan_id: str, objects: Sequence[_Object]) -> None:
        self._plan_id = plan_id
        self._objects = objects
        self._count = sum(1 for _ in self)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[StoredEntry]:
        return _unchained(self._plan_id, self._objects)

    @overload
    def __getitem__(self, place: int) -> StoredEntry: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[StoredEntry]: ...
    def __getitem__(self, place: int | slice) -> StoredEntry | Sequence[StoredEntry]:
        return list(self)[place]


class GpuChanges:
    """The `GpuChange` objects of one cluster.

    Each call raises as the port has it, and `Misconfigured` where a right is missing.
    """

    def __init__(self, api: WritingApi) -> None:
        self._api = api
        self._read: dict[str, _Object] = {}
        self._checked: dict[str, tuple[tuple[str, ...], _Chain | Corrupt]] = {}

    def entries(self) -> Mapping[str, Sequence[StoredEntry] | Corrupt]:
        """See `ChangeStore`."""
        self._look()
        plans = self._by_plan()
        self._checked = {plan_id: self._check(plan_id, objects) for plan_id, objects in plans.items()}
        return {plan_id: found for plan_id, (_, found) in self._checked.items()}

    def append(
        self, plan_id: str, known: int, entries: Sequence[StoredEntry], summary: Mapping[str, str | int]
    ) -> None:
        """See `ChangeStore`."""
        pages = self._by_plan().get(plan_id, [])
        held = [entry for page in pages for entry in page.entries]
        if len(held) != known:
            raise _late(plan_id)
        previous = str(held[-1]["sha256"]) if held else ""
        added = []
        for entry in entries:
            added.append(_chained(entry, previous))
            previous = added[-1]["sha256"]
        last = pages[-1] if pages else None
        for chunk in _chunks(added, 0 if last is None else _bytes_of(last.entries)):
            if last is not None and chunk.goes_on:
                last = self._written(last, [*last.entries, *chunk.entries], summary)
            else:
                number = 1 if last is None else last.page + 1
                last = self._made(plan_id, number, chunk.entries, summary)

    def _check(self, plan_id: str, objects: Sequence[_Object]) -> tuple[tuple[str, ...], _Chain | Corrupt]:
        """The versions of a plan's objects with their entries; read anew where a version is another one."""
        versions = tuple(one.version for one in objects)
        known = self._checked.get(plan_id)
        if known is not None and known[0] == versions:
            return known
        try:
            return versions, _Chain(plan_id, objects)
        except Corrupt as damaged:
            return versions, damaged

    def _look(self) -> None:
        """Read what has another version than it had."""
        versions = {
            str(one["metadata"]["name"]): str(one["metadata"]["resourceVersion"]) for one in listed(self._api, _CHANGES)
        }
        self._read = {name: found for name, found in self._read.items() if name in versions}
        for name, version in versions.items():
            known = self._read.get(name)
            if known is None or known.version != version:
                try:
                    manifest = got(self._api, _CHANGES, name)
                    if manifest is not None:
                        self._keep(manifest)
                except Corrupt as damaged:
                    self._read[name] = _damaged(name, version, damaged)

    def _keep(self, manifest: Manifest) -> _Object:
        """Raises `Corrupt` where it does not speak of the page that its name says."""
        metadata, spec = manifest["metadata"], manifest["spec"]
        found = _Object(
            name=str(metadata["name"]), version=str(metadata["resourceVersion"]), plan_id=str(spec["plan"]),
            page=int(spec["page"]), packed=zlib.compress(as_text(manifest), 1),
        )  # fmt: skip
        if found.name != name_of(found.plan_id, found.page):
            raise Corrupt(
                f"cannot read GpuChange {found.name}: it holds page {found.page} of plan {found.plan_id[:64]!r}"
            )
        self._read[found.name] = found
        return found

    def _by_plan(self) -> dict[str, list[_Object]]:
        found: dict[str, list[_Object]] = {}
        for one in sorted(self._read.values(), key=lambda one: one.page):
            if one.plan_id:
                found.setdefault(one.plan_id, []).append(one)
        return found

    def _made(self, plan_id: str, number: int, entries: list[Manifest], summary: Mapping[str, str | int]) -> _Object:
        spec = {"plan": plan_id, "page": number, "entries": entries}
        content = {"spec": spec, "status": dict(summary)}
        return self._sent(plan_id, making(_CHANGES, {"name": name_of(plan_id, number)}, content))

    def _written(self, last: _Object, entries: list[Manifest], summary: Mapping[str, str | int]) -> _Object:
        manifest = last.manifest
        deed = Deed(verb="update", resource=_CHANGES.resource, name=last.name)
        body = {**manifest, "spec": {**manifest["spec"], "entries": entries}, "status": dict(summary)}
        path = _CHANGES.path(VERSION, None, last.name)
        return self._sent(last.plan_id, Call(deed=deed, path=path, method="PUT", query=AS_MANAGER, body=body))

    def _sent(self, plan_id: str, call: Call) -> _Object:
        try:
            made = self._api.send(call)
        except Conflict as late:
            raise _late(plan_id) from late
        if made is None:
            raise _late(plan_id)
        return self._keep(made)


def name_of(plan_id: str, number: int) -> str:
    """Name of an object: the plan's id and the number of the page."""
    return f"plan-{plan_id}-{number}"


def _damaged(name: str, version: str, why: Corrupt) -> _Object:
    """What stops the plan that its name says; where it says none, nothing."""
    found = _NAME.fullmatch(name)
    if found is None:
        warn_left_out(_CHANGES.kind, str(why))
        return _Object(name=name, version=version, plan_id="", page=0, damaged=why)
    return _Object(name=name, version=version, plan_id=found["plan"], page=int(found["page"]), damaged=why)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """Entries that fit into one object; `goes_on` where that is the one written last."""

    entries: list[Manifest]
    goes_on: bool


def _chunks(entries: Sequence[Manifest], held_bytes: int) -> list[_Chunk]:
    found: list[_Chunk] = []
    size, part, goes_on = held_bytes, list[Manifest](), held_bytes > 0
    for entry in entries:
        own = _bytes_of([entry])
        if own > OBJECT_BYTES_MAX:
            raise Refused(
                f"cannot keep an entry of kind {entry['event']!r} in the cluster: it has {own} bytes, and an object "
                f"holds {OBJECT_BYTES_MAX}; apply fewer stages at once"
            )
        if size + own > OBJECT_BYTES_MAX:
            if part:
                found.append(_Chunk(entries=part, goes_on=goes_on))
            size, part, goes_on = 0, [], False
        part.append(entry)
        size += own
    return [*found, _Chunk(entries=part, goes_on=goes_on)]


def _bytes_of(entries: Sequence[Manifest]) -> int:
    return len(json.dumps(entries, ensure_ascii=False).encode())


def _late(plan_id: str) -> Overtaken:
    return Overtaken(
        f"cannot go on with plan {plan_id} for now: another enforcer has written of it since; look at what it did, "
        "then call again"
    )


def _chained(entry: StoredEntry, previous: str) -> Manifest:
    text = json.dumps(entry.content, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    body = {"at": format_time(entry.at), "event": entry.event}
    if len(text) > _PLAIN_BYTES_MAX:
        body["packed"] = base64.b64encode(zlib.compress(text.encode())).decode()
    else:
        body["content"] = text
    return {**body, "sha256": chained_hash(previous, body)}


def _unchained(plan_id: str, objects: Sequence[_Object]) -> Iterator[StoredEntry]:
    previous = ""
    for number, one in enumerate((entry for part in objects for entry in part.entries), start=1):
        body = {key: value for key, value in one.items() if key != "sha256"}
        if one.get("sha256") != chained_hash(previous, body):
            raise Corrupt(
                f"cannot trust the GpuChange objects of plan {plan_id}: entry {number} was edited, or one before it is "
                "missing"
            )
        previous = one["sha256"]
        content, event = _content(plan_id, body), body.get("event", "")
        try:
            check_content(CHANGES, event, content)
            yield StoredEntry(at=moment_of(body.get("at", "")), event=event, content=content)
        except Corrupt as exc:
            raise Corrupt(f"cannot read the GpuChange objects of plan {plan_id}: entry {number}: {exc}") from exc


def _are_texts(entry: Mapping[str, object]) -> bool:
    """Whether an entry holds texts alone, and no half of a surrogate pair."""
    try:
        return all(isinstance(text, str) and text.encode() is not None for text in (*entry, *entry.values()))
    except UnicodeEncodeError:
        return False


def _content(plan_id: str, body: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        text = body.get("content")
        if text is None:
            unpacking = zlib.decompressobj()
            text = unpacking.decompress(base64.b64decode(body.get("packed", "")), _UNPACKED_BYTES_MAX).decode()
            if unpacking.unconsumed_tail:
                raise ValueError(f"an entry has more than {_UNPACKED_BYTES_MAX} bytes")
        found = json_value(text)
    except (ValueError, zlib.error) as exc:
        raise Corrupt(f"cannot read a GpuChange object of plan {plan_id}: {exc}") from exc
    if not isinstance(found, dict):
        raise Corrupt(f"cannot read a GpuChange object of plan {plan_id}: an entry holds no object")
    return found
