"""What shows that somebody edited the ledgers of a data folder: where their heads are anchored.

Called by whatever opens the enforcer, by doctor and by `gputide admin ledger`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from enforcer.record.anchor import Anchor, Head
from enforcer.record.ledger import Ledger, anchor_of, ledgers_of
from fleet.data_folder import DataFolder
from fleet.errors import Corrupt, GputideError, Misconfigured, Unavailable
from fleet.logs import logger
from fleet.settings.settings import ClusterChoice, Settings
from gputide.container.cluster import open_cluster

_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_log = logger("gputide.ledgers")


def name_of(folder: DataFolder) -> str:
    """Under which name a cluster keeps the heads of a folder's ledgers; in a pod it outlives the pod."""
    place = socket.gethostname()
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        with suppress(OSError):
            place = f"namespace {_POD_NAMESPACE.read_text(encoding='utf-8').strip()}"
    return f"{place} in {folder.path.resolve()}"


@contextmanager
def anchored_folder(folder: DataFolder, settings: Settings) -> Iterator[AnchoredFolder]:
    """The ledgers of a data folder, beside what the cluster that the enforcer changes knows of them.

    Where that can't be reached `AnchoredFolder.unread` says why: it speaks against no ledger.
    """
    if settings.enforcer.cluster is ClusterChoice.SIMULATED:
        yield AnchoredFolder(folder, None)
        return
    with ExitStack() as opened:
        try:
            cluster = opened.enter_context(open_cluster(folder, settings))
            anchored = AnchoredFolder(folder, cluster.anchor(name_of(folder)))
        except (Misconfigured, Unavailable) as exc:
            anchored = AnchoredFolder(folder, None)
            anchored.unread = str(exc)
        yield anchored


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLook:
    """How a ledger stands.

    Attributes:
        entries: None where it can't be read.
        unmarked: entries from the first on that were written without the key.
        anchored: last entry of it that is known outside the folder; None where none is.
        fault: what speaks against it; empty where nothing does.
    """

    name: str
    entries: int | None
    unmarked: int
    anchored: int | None
    fault: str


class AnchoredFolder:
    """The ledgers of a data folder beside what a cluster knows of them.

    Args:
        anchor: keeps their heads; None where no cluster does.

    Attributes:
        unread: why the cluster's heads could not be read; empty where they could, or there are none.
    """

    def __init__(self, folder: DataFolder, anchor: Anchor | None) -> None:
        self._folder, self._anchor = folder, anchor
        self._heads: Mapping[str, Head] = {}
        self.unread = ""
        if anchor is None:
            return
        try:
            self._heads = anchor.heads()
        except (Misconfigured, Corrupt) as exc:
            # Who may only read plans holds no right to the lease; a damaged anchor must keep nobody from an undo.
            _log.warning("heads of ledgers are not read from the cluster", why=str(exc))
            self._anchor, self.unread = None, str(exc)

    def broken(self) -> dict[str, Corrupt]:
        """Ledgers that were edited, or do not hold what was anchored, by name."""
        found = {}
        for ledger in self._ledgers():
            try:
                ledger.check(self._heads.get(ledger.name))
            except Corrupt as exc:
                found[ledger.name] = exc
        return found

    def keep(self) -> None:
        """Anchor the heads of ledgers that hold what was anchored; where that can't be done now, a later call does."""
        for ledger in self._ledgers():
            known = self._heads.get(ledger.name)
            try:
                ledger.check(known)
                head = ledger.head()
                if self._anchor is not None and head.number and head != known:
                    self._anchor.move(ledger.name, known or Head(number=0, sha256=""), head)
            except GputideError as exc:
                _log.warning("head of a ledger is not anchored", ledger=ledger.name, why=str(exc))

    def looks(self) -> tuple[LedgerLook, ...]:
        """How each of them stands."""
        local = anchor_of(self._folder)
        beside: Mapping[str, Head] = {} if local is None else local.heads()
        return tuple(self._look(ledger, beside.get(ledger.name)) for ledger in self._ledgers())

    def accept(self) -> None:
        """Anchor all heads as they are, whatever was anchored.

        Raises:
            Corrupt: the chain of one is broken: put a copy of that file back, or move it away.
        """
        heads = {ledger.name: ledger.head() for ledger in ledgers_of(replace(self._folder, anchor_file=None))}
        for anchor in self._anchors():
            anchor.accept(heads)

    def _anchors(self) -> Sequence[Anchor]:
        local = anchor_of(self._folder)
        return [anchor for anchor in (local, self._anchor) if anchor is not None]

    @property
    def trust(self) -> str:
        """What stands behind the ledgers: `keyed` or `unkeyed`, and `anchored` or `unanchored` outside the folder."""
        key = "unkeyed" if self._folder.ledger_key is None else "keyed"
        return f"{key}, {'anchored' if self._anchors() else 'unanchored'}"

    def _ledgers(self) -> tuple[Ledger, ...]:
        return ledgers_of(self._folder)

    def _look(self, ledger: Ledger, beside: Head | None) -> LedgerLook:
        heads = [head.number for head in (beside, self._heads.get(ledger.name)) if head is not None and head.number]
        entries, unmarked, fault = None, 0, ""
        try:
            entries, unmarked = ledger.verify(), ledger.unmarked
            ledger.check(self._heads.get(ledger.name))
        except Corrupt as exc:
            fault = str(exc)
        return LedgerLook(
            name=ledger.name, entries=entries, unmarked=unmarked, anchored=max(heads, default=None), fault=fault
        )
