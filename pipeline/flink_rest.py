"""The few questions that the rollup asks Flink's REST interface. Called by `rollup_flink`."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any

from fleet.errors import Unavailable

_ANSWER_SECONDS = 10.0
_PAUSE_SECONDS = 0.1


class FlinkRest:
    """A JobManager.

    Args:
        address: `http://HOST:PORT`.
    """

    def __init__(self, address: str) -> None:
        self._address = address.rstrip("/")

    def job_state(self, job: str) -> str | None:
        """`RUNNING`, `FAILED`, …; None where the JobManager does not know the job.

        Raises:
            Unavailable: it does not answer.
        """
        answer = self._ask(f"/jobs/{job}", missing_is_none=True)
        return None if answer is None else str(answer["state"])

    def failure(self, job: str) -> str:
        """Why a job failed last, one line; empty where it did not."""
        answer = self._ask(f"/jobs/{job}/exceptions", missing_is_none=True) or {}
        lines = str(answer.get("root-exception") or "").splitlines()
        causes = [line.strip() for line in lines if line.startswith("Caused by:")]
        return "; ".join([*lines[:1], *causes[-2:]])

    def stop(self, job: str, savepoints: str, *, seconds_max: float) -> None:
        """Stops a job with a savepoint.

        Args:
            job: its id.
            savepoints: URI of the folder for the savepoint.
            seconds_max: how long that may take.

        Raises:
            Unavailable: it failed or took longer; the job may run still.
        """
        asked = self._ask(f"/jobs/{job}/stop", {"targetDirectory": savepoints, "drain": False})
        request = asked["request-id"]
        deadline = time.monotonic() + seconds_max
        while time.monotonic() < deadline:
            answer = self._ask(f"/jobs/{job}/savepoints/{request}")
            if answer["status"]["id"] == "COMPLETED":
                cause = answer["operation"].get("failure-cause")
                if cause is not None:
                    raise Unavailable(f"cannot stop Flink job {job} with a savepoint: {_first_line(cause)}")
                return
            time.sleep(_PAUSE_SECONDS)
        raise Unavailable(f"cannot stop Flink job {job} with a savepoint: it is not done after {seconds_max:.0f} s")

    def cancel(self, job: str) -> None:
        """Ends a job where it stands.

        Raises:
            Unavailable: the JobManager does not answer.
        """
        self._ask(f"/jobs/{job}?mode=cancel", {}, method="PATCH", missing_is_none=True)

    def _ask(
        self,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        method: str | None = None,
        missing_is_none: bool = False,
    ) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._address + path, data=data, headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as exc:
            if exc.code == 404 and missing_is_none:
                return None
            said = exc.read(500).decode(errors="replace")
            raise Unavailable(f"cannot ask Flink at {self._address}{path}: {exc.code} {said}") from exc
        except (OSError, ValueError) as exc:
            raise Unavailable(f"cannot ask Flink at {self._address}{path}: {exc}") from exc


def _first_line(cause: dict[str, Any]) -> str:
    return str(cause.get("stack-trace", cause)).splitlines()[0]
