"""What was asked of a forge, and what was seen of it since: a ledger of its own (`DataFolder.requests`).

Before a branch is written its intent stands there, as in every ledger; the state of a request is added where it was
looked at and is another one than before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from enforcer.forge.forge import ForgeRequest, RequestState
from enforcer.record.ledger import ledger_at
from fleet.data_folder import DataFolder

_INTENT, _SEEN = "request_intent", "request_seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRequest:
    """A plan's newest request, as it was seen last.

    Attributes:
        seen_at: when that state was seen first.
    """

    number: int
    url: str
    state: RequestState
    seen_at: datetime


class RequestLog:
    """The requests of a data folder."""

    def __init__(self, folder: DataFolder) -> None:
        self._ledger = ledger_at(folder, folder.requests)

    def intend(self, plan_id: str, branch: str, stages: Sequence[int], *, by: str, at: datetime) -> None:
        """Write down who is about to send which stages."""
        content = {"branch": branch, "stages": list(stages), "by": by}
        self._ledger.append([(_INTENT, content)], plan_id=plan_id, at=at)

    def see(self, plan_id: str, request: ForgeRequest, at: datetime) -> None:
        """Write down a state that is a new one."""
        known = self.newest(plan_id)
        if known is None or (known.number, known.state) != (request.number, request.state):
            content = {"number": request.number, "url": request.url, "state": request.state.value}
            self._ledger.append([(_SEEN, content)], plan_id=plan_id, at=at)

    def stages(self, plan_id: str) -> frozenset[int]:
        """Stages that were to be sent in a plan's request; none once it was seen to be merged.

        Raises:
            Corrupt: the ledger was edited.
        """
        found: frozenset[int] = frozenset()
        for entry in self._ledger.entries(plan_id):
            if entry.event == _INTENT:
                found |= frozenset(entry.content["stages"])
            elif entry.content["state"] == RequestState.MERGED:
                found = frozenset()
        return found

    def newest(self, plan_id: str) -> KeptRequest | None:
        """A plan's newest request; None where none was sent.

        Raises:
            Corrupt: the ledger was edited.
        """
        found = [entry for entry in self._ledger.entries(plan_id) if entry.event == _SEEN]
        if not found:
            return None
        content = found[-1].content
        return KeptRequest(
            number=int(content["number"]), url=str(content["url"]), state=RequestState(content["state"]),
            seen_at=found[-1].at,
        )  # fmt: skip
