"""The state of the simulated cluster: one SQLite file, changed in whole transactions, whole after a kill at any moment.

Called by the simulated cluster's controllers and its ports only. The scheduler's books are kept in memory beside the
file and made anew when another process has written since.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enforcer.manifest import Manifest
from enforcer.simulated.books import Allocation, CardBook, NodeBook, book
from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.units import MIB

STATE_VERSION = 3
"""Version of the tables below; a file of 2 is brought to it, one of another is refused."""

BUSY_SECONDS = 20.0
"""How long a writer waits for another process's transaction."""

_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE nodes (name TEXT PRIMARY KEY, cpu_cores REAL, memory_bytes INTEGER, scaling REAL NOT NULL,
    slices_max INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE cards (card TEXT PRIMARY KEY, card_model TEXT NOT NULL, framebuffer_bytes INTEGER NOT NULL,
    node TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE objects (kind TEXT, namespace TEXT, name TEXT, version INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (kind, namespace, name)) WITHOUT ROWID;
CREATE TABLE pods (namespace TEXT, name TEXT, owner_kind TEXT NOT NULL, owner_name TEXT NOT NULL,
    version INTEGER NOT NULL, node TEXT, made_ms INTEGER NOT NULL, ready_ms INTEGER, restarts INTEGER NOT NULL,
    is_oom INTEGER NOT NULL,
    reason TEXT, cpu_cores REAL NOT NULL, memory_bytes INTEGER NOT NULL, body TEXT NOT NULL,
    plays TEXT NOT NULL, revision TEXT NOT NULL, PRIMARY KEY (namespace, name)) WITHOUT ROWID;
CREATE INDEX pods_plays ON pods (namespace, plays);
CREATE INDEX pods_owner ON pods (namespace, owner_kind, owner_name);
CREATE INDEX pods_pending ON pods (made_ms) WHERE node IS NULL;
CREATE TABLE slots (namespace TEXT, pod TEXT, container TEXT, card TEXT, framebuffer_mib INTEGER NOT NULL,
    core_percent INTEGER NOT NULL, lent_percent INTEGER NOT NULL, PRIMARY KEY (namespace, pod, container, card))
    WITHOUT ROWID;
CREATE INDEX slots_card ON slots (card);
CREATE TABLE roster (namespace TEXT, pod TEXT, owner_kind TEXT NOT NULL, owner_name TEXT NOT NULL,
    homes TEXT NOT NULL, remade INTEGER NOT NULL, PRIMARY KEY (namespace, pod)) WITHOUT ROWID;
CREATE INDEX roster_owner ON roster (namespace, owner_kind, owner_name);
CREATE TABLE rolling (kind TEXT, namespace TEXT, name TEXT, PRIMARY KEY (kind, namespace, name)) WITHOUT ROWID;
CREATE TABLE events (number INTEGER PRIMARY KEY, at_ms INTEGER NOT NULL, kind TEXT NOT NULL, namespace TEXT NOT NULL,
    name TEXT NOT NULL, reason TEXT NOT NULL, message TEXT NOT NULL);
"""

_FROM_2 = """
ALTER TABLE nodes ADD COLUMN slices_max INTEGER NOT NULL DEFAULT 10;
ALTER TABLE slots ADD COLUMN lent_percent INTEGER NOT NULL DEFAULT 0;
INSERT INTO meta VALUES ('system', 'hami');
"""
"""A file of version 2 plays HAMi, whose cards have ten slices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRow:
    """One pod as it is kept.

    Attributes:
        ready_ms: when it is ready; None for never.
        plays: pod of the trace that it stands for: its own name until its owner makes it anew under another one.
        revision: hash of the template that it was made from.
        version: resource version; 0 before it was written.
    """

    namespace: str
    name: str
    owner_kind: str
    owner_name: str
    node: str | None
    made_ms: int
    ready_ms: int | None
    restarts: int
    is_oom: bool
    reason: str | None
    cpu_cores: float
    memory_bytes: int
    body: Manifest
    plays: str
    revision: str
    version: int = 0


@dataclass(slots=True, kw_only=True)
class Books:
    """What the scheduler counts; mutable: pods are booked in and out."""

    cards: dict[str, CardBook]
    nodes: dict[str, NodeBook]


class SimulatedStore:
    """Reads and writes the state; every write happens inside `transaction`.

    Args:
        path: the file; made when it is not there.
        backend: the sharing system that it plays; None for whichever it plays, HAMi where it is new.

    Attributes:
        backend: the sharing system that it plays, by the name of its record.

    Each call, and this one, raises:
        Corrupt: the file is no such state, or of a later version; storage can't take more.
        Misconfigured: it plays another system.
        Unavailable: it can't be opened, or another process kept it busy.
    """

    def __init__(self, path: Path, backend: str | None = None) -> None:
        self._lock = threading.RLock()
        self._books: Books | None = None
        self._books_generation = -1
        self._path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.db = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            self.db.execute("PRAGMA journal_mode=WAL")
            self.db.execute("PRAGMA synchronous=NORMAL")
            self._create(backend or "hami")
        except (sqlite3.Error, OSError) as exc:
            raise _failure(exc, path) from exc
        self.backend = str(self.rows("SELECT value FROM meta WHERE key='system'")[0][0])
        if backend not in (None, self.backend):
            self.close()
            raise Misconfigured(
                f"cannot use the simulated cluster of {path.parent} with enforcer.backend={backend}: it plays "
                f"{self.backend}; set enforcer.backend={self.backend}, or replay into another --data-dir"
            )

    def close(self) -> None:
        """Close the file."""
        self.db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing; nested use joins the outer one."""
        with self._lock:
            if self.db.in_transaction:
                yield
                self._bump()
                return
            try:
                self.db.execute("BEGIN IMMEDIATE")
                if self._books_generation != self.number("generation"):
                    self._books = None
                yield
                self._bump()
                self.db.execute("COMMIT")
            except BaseException as exc:
                self._books = None
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")
                if isinstance(exc, sqlite3.Error):
                    raise _failure(exc, self._path) from exc
                raise

    @contextmanager
    def long_transaction(self) -> Iterator[Callable[[], None]]:
        """Many transactions kept together: yields what keeps all since the last time; the rest is lost at the end."""

        def keep() -> None:
            self.db.execute("COMMIT")
            self.db.execute("BEGIN IMMEDIATE")

        with self._lock:
            try:
                self.db.execute("BEGIN IMMEDIATE")
                self._books = None
                yield keep
            except sqlite3.Error as exc:
                raise _failure(exc, self._path) from exc
            finally:
                self._books = None
                if self.db.in_transaction:
                    self.db.execute("ROLLBACK")

    def rows(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        with self._lock:
            try:
                return self.db.execute(sql, values).fetchall()
            except sqlite3.Error as exc:
                raise _failure(exc, self._path) from exc

    def write(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        """One statement for many rows, inside a transaction."""
        self.db.executemany(sql, rows)

    def number(self, key: str) -> int:
        """A kept number; 0 where it was never set."""
        found = self.rows("SELECT value FROM meta WHERE key = ?", key)
        return int(found[0][0]) if found else 0

    def set_number(self, key: str, value: int) -> None:
        """Keep a number."""
        self.write("INSERT OR REPLACE INTO meta VALUES (?, ?)", [(key, value)])

    def next_version(self) -> int:
        """A resource version that was never given before."""
        version = self.number("version") + 1
        self.set_number("version", version)
        return version

    def books(self) -> Books:
        """The scheduler's books, current."""
        generation = self.number("generation")
        if self._books is None or (not self.db.in_transaction and self._books_generation != generation):
            self._books = self._read_books()
            self._books_generation = generation
        return self._books

    def refresh(self) -> None:
        """Forget the books: cards or nodes changed."""
        self._books = None

    def object_body(self, kind: str, namespace: str, name: str) -> tuple[int, Manifest] | None:
        """Version and body of one object."""
        found = self.rows(
            "SELECT version, body FROM objects WHERE kind=? AND namespace=? AND name=?", kind, namespace, name
        )
        return (int(found[0][0]), json.loads(found[0][1])) if found else None

    def objects_of(self, kind: str) -> list[tuple[int, Manifest]]:
        """Version and body of all objects of a kind, by namespace and name."""
        found = self.rows("SELECT version, body FROM objects WHERE kind=? ORDER BY namespace, name", kind)
        return [(int(version), json.loads(body)) for version, body in found]

    def put_object(self, body: Manifest) -> int:
        """Write one object under a new version, which is returned."""
        version = self.next_version()
        metadata = body["metadata"]
        row = (body["kind"], metadata.get("namespace", ""), metadata["name"], version, json.dumps(body))
        self.write("INSERT OR REPLACE INTO objects VALUES (?, ?, ?, ?, ?)", [row])
        return version

    def drop_object(self, kind: str, namespace: str, name: str) -> None:
        """Take one object away."""
        self.write("DELETE FROM objects WHERE kind=? AND namespace=? AND name=?", [(kind, namespace, name)])

    def drop_revisions(self, kind: str, namespace: str, name: str) -> None:
        """Take away what was kept of an owner's templates."""
        self.write(
            "DELETE FROM objects WHERE kind IN ('ReplicaSet', 'ControllerRevision') AND namespace=? "
            "AND json_extract(body, '$.metadata.ownerReferences[0].kind')=? "
            "AND json_extract(body, '$.metadata.ownerReferences[0].name')=?",
            [(namespace, kind, name)],
        )

    def roster(self, kind: str, namespace: str, owner: str) -> list[tuple[str, str]]:
        """Pods that the users of an owner run, by name, each with its cards in the trace as JSON."""
        found = self.rows(
            "SELECT pod, homes FROM roster WHERE namespace=? AND owner_kind=? AND owner_name=? ORDER BY pod",
            namespace, kind, owner,
        )  # fmt: skip
        return [(str(pod), str(homes)) for pod, homes in found]

    def put_pod(self, pod: PodRow, allocations: Sequence[Allocation]) -> None:
        """Write a pod and its slots, and enter them into the books."""
        version = self.next_version()
        row = (
            pod.namespace, pod.name, pod.owner_kind, pod.owner_name, version, pod.node, pod.made_ms, pod.ready_ms,
            pod.restarts, int(pod.is_oom), pod.reason, pod.cpu_cores, pod.memory_bytes, json.dumps(pod.body),
            pod.plays, pod.revision,
        )  # fmt: skip
        self.write("INSERT OR REPLACE INTO pods VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)", [row])
        place = (pod.namespace, pod.name)
        self.write(
            "INSERT INTO slots VALUES (?, ?, ?, ?, ?, ?, ?)",
            [
                (*place, part.container, part.card, part.framebuffer_mib, part.core_percent, part.lent_percent)
                for part in allocations
            ],
        )
        self._count_pod(pod, allocations, 1)

    def drop_pod(self, pod: PodRow) -> None:
        """Take a pod and its slots away, and out of the books."""
        self._count_pod(pod, self.allocations(pod.namespace, pod.name), -1)
        self.write("DELETE FROM slots WHERE namespace=? AND pod=?", [(pod.namespace, pod.name)])
        self.write("DELETE FROM pods WHERE namespace=? AND name=?", [(pod.namespace, pod.name)])

    def pods(self, where: str = "TRUE", *values: object) -> list[PodRow]:
        """Pods that fit a condition, sorted by namespace and name."""
        found = self.rows(
            "SELECT namespace, name, owner_kind, owner_name, node, made_ms, ready_ms, restarts, is_oom, reason, "
            f"cpu_cores, memory_bytes, body, version, plays, revision FROM pods WHERE {where} ORDER BY namespace, name",
            *values,
        )
        return [
            PodRow(
                namespace=row[0], name=row[1], owner_kind=row[2], owner_name=row[3], node=row[4], made_ms=row[5],
                ready_ms=row[6], restarts=row[7], is_oom=bool(row[8]), reason=row[9], cpu_cores=row[10],
                memory_bytes=row[11], body=json.loads(row[12]), version=row[13],
                plays=row[14], revision=row[15],
            )
            for row in found
        ]  # fmt: skip

    def allocations(self, namespace: str, pod: str) -> tuple[Allocation, ...]:
        """Slots of one pod, by container and card."""
        found = self.rows(
            "SELECT container, card, framebuffer_mib, core_percent, lent_percent FROM slots "
            "WHERE namespace=? AND pod=?",
            namespace,
            pod,
        )
        return tuple(
            Allocation(container=a, card=b, framebuffer_mib=c, core_percent=d, lent_percent=e)
            for a, b, c, d, e in found
        )

    def record_event(self, kind: str, namespace: str, name: str, reason: str, message: str) -> None:
        """Keep an event, at the cluster's clock."""
        row = (self.number("clock_ms"), kind, namespace, name, reason, message)
        self.write(
            "INSERT INTO events (at_ms, kind, namespace, name, reason, message) VALUES (?, ?, ?, ?, ?, ?)", [row]
        )

    def _count_pod(self, pod: PodRow, allocations: Sequence[Allocation], sign: int) -> None:
        if pod.node is None:
            return
        books = self.books()
        book(books.cards, allocations, sign)
        node = books.nodes.get(pod.node)
        if node is not None:
            node.used_cpu_cores += sign * pod.cpu_cores
            node.used_memory_bytes += sign * pod.memory_bytes

    def _read_books(self) -> Books:
        nodes = {
            name: NodeBook(node=name, cpu_cores=cpu, memory_bytes=memory)
            for name, cpu, memory in self.rows("SELECT name, cpu_cores, memory_bytes FROM nodes ORDER BY name")
        }
        cards = {
            card: CardBook(
                card=card,
                card_model=model,
                node=node,
                framebuffer_mib=int(size // MIB * scaling),
                slices_max=slices_max,
            )
            for card, model, size, node, scaling, slices_max in self.rows(
                "SELECT card, card_model, framebuffer_bytes, node, scaling, slices_max FROM cards "
                "JOIN nodes ON node = name ORDER BY node, card"
            )
        }
        for card, slices, used, cores, lent in self.rows(
            "SELECT card, count(*), sum(framebuffer_mib), sum(core_percent), sum(lent_percent) FROM slots GROUP BY card"
        ):
            if card in cards:
                cards[card].slices, cards[card].used_mib, cards[card].used_cores = slices, used, cores
                cards[card].lent_cores = lent
        for node, cpu, memory in self.rows(
            "SELECT node, sum(cpu_cores), sum(memory_bytes) FROM pods WHERE node IS NOT NULL GROUP BY node"
        ):
            if node in nodes:
                nodes[node].used_cpu_cores, nodes[node].used_memory_bytes = cpu, memory
        return Books(cards=cards, nodes=nodes)

    def _bump(self) -> None:
        generation = self.number("generation") + 1
        self.set_number("generation", generation)
        self._books_generation = generation

    def _create(self, backend: str) -> None:
        found = self.db.execute("SELECT count(*) FROM sqlite_master WHERE name = 'meta'").fetchone()[0]
        if not found:
            script = "".join(f"{part};" for part in _TABLES.split(";") if part.strip())
            self.db.executescript(
                f"BEGIN IMMEDIATE; {script} INSERT INTO meta VALUES ('state_version', {STATE_VERSION}), "
                f"('system', '{backend}'); COMMIT;"
            )
        version = self.number("state_version")
        if version == 2:
            script = f"{_FROM_2} UPDATE meta SET value={STATE_VERSION} WHERE key='state_version';"
            self.db.executescript(f"BEGIN IMMEDIATE; {script} COMMIT;")
            version = STATE_VERSION
        if version != STATE_VERSION:
            raise Corrupt(
                f"cannot read simulated cluster {self._path}: state version {version}, known: {STATE_VERSION}"
            )


def _failure(exc: Exception, path: Path) -> Corrupt | Unavailable:
    text = str(exc)
    if "locked" in text or "busy" in text or isinstance(exc, PermissionError):
        return Unavailable(f"cannot use simulated cluster {path}: {text}")
    return Corrupt(f"cannot use simulated cluster {path}: {text}")
