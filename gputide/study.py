"""What-ifs and back-tests in a process of their own, one at a time, each ended when its time is over.

They plan anew, which takes seconds to minutes. The process loads what plans need and nothing that shows them. Called by
the tools of the assistant.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from fleet import errors
from fleet.documents import document
from fleet.errors import GputideError, Unavailable
from gputide.container.workers import end_with_parent
from gputide.session import Session

_UNDER_WAY = threading.Lock()


@dataclass(frozen=True, slots=True)
class Study:
    """Finds out in a process of its own what takes long."""

    session: Session
    seconds_max: float

    def find(self, name: str, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """What the process finds.

        Raises:
            Unavailable: another is under way, it took too long, or it was killed.
        """
        if not _UNDER_WAY.acquire(blocking=False):
            raise Unavailable(f"cannot start {name}: another what-if or back-test is under way; ask again later")
        try:
            return self._found(name, asked)
        finally:
            _UNDER_WAY.release()

    def _found(self, name: str, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        # A forked one would share the locks of this process's threads as they stand.
        context = get_context("spawn")
        reading, writing = context.Pipe(duplex=False)
        process = context.Process(target=_studied, args=(writing, self.session, name, asked))
        process.start()
        writing.close()
        try:
            if not reading.poll(self.seconds_max):
                raise Unavailable(
                    f"cannot answer {name} in {self.seconds_max:g} s: the fleet is large; `gputide plan` does it on "
                    "the command line, where nobody waits"
                )
            kind, found = reading.recv()
        except EOFError as exc:
            raise Unavailable(f"cannot answer {name}: its process was killed, as where memory ends") from exc
        finally:
            process.kill()
            process.join()
            reading.close()
        if kind is not None:
            raise getattr(errors, kind)(found)
        answer: Mapping[str, Any] = found
        return answer


def _studied(writing: Connection, session: Session, name: str, asked: Mapping[str, Any]) -> None:
    """In the process: sends the kind of error, or None, and its message or what was found."""
    end_with_parent()
    cluster = asked["cluster"]
    try:
        if name == "what_if":
            from gputide.verbs.plan.make import supposed
            from recommender.problem import PlanScope

            whole = supposed(replace(session, is_quiet=True), asked["texts"], PlanScope(), cluster).document
            found = {key: whole[key] for key in ("is_hypothetical", "what_if", "compared", "card_models", "currency")}
            found["stays_on_its_cards"] = [
                {"workload": item["workload"], "code": item["reason"]} for item in whole["stays_on_its_cards"]
            ]
        else:
            from gputide.verbs.plan.backtest import judged

            own = session.with_overrides([f"cluster.name={cluster}"])
            days = {key: value for key, value in asked.items() if key != "cluster"}
            found = document(judged(own, **days))
        writing.send((None, found))
    except GputideError as exc:
        kind = next(one for one in type(exc).__mro__ if one.__module__ == errors.__name__)
        writing.send((kind.__name__, str(exc)))
