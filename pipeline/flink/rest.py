"""The few questions that the rollup asks Flink's REST interface. Called by `rollup_flink`."""

from __future__ import annotations

import json
import time
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from fleet.errors import Corrupt, Unavailable
from wire.http_answer import read_body
from wire.http_client import HttpClient, Request, endpoint_of
from wire.tls import Tls

_ANSWER_SECONDS = 10.0
_ANSWER_BYTES_MAX = 16 << 20
_PAUSE_SECONDS = 0.1


class FlinkRest:
    """A JobManager; every question raises `Unavailable` where it does not answer.

    Args:
        address: `http://HOST:PORT` or `https://HOST:PORT`.
        tls: how an https JobManager is checked, and what it is shown.

    Raises:
        Misconfigured: the address is none.
    """

    def __init__(self, address: str, tls: Tls | None = None) -> None:
        endpoint = endpoint_of(address, setting="flink.rest", tls=tls)
        self._http = HttpClient(endpoint, "gputide-rollup", is_kept=False)
        self.address = address.rstrip("/")
        """Where it answers."""

    def job_state(self, job: str) -> str | None:
        """`RUNNING`, `FAILED`, …; None where the JobManager does not know the job."""
        answer = self._ask(f"/jobs/{job}", missing_is_none=True)
        return None if answer is None else str(answer["state"])

    def overview(self) -> dict[str, Any]:
        """What the JobManager says of its cluster: `flink-version`, `slots-available`, `taskmanagers`."""
        return dict(self._ask("/overview"))

    def jobs(self) -> list[dict[str, Any]]:
        """Its jobs: `jid`, `name`, `state`, `start-time` (epoch milliseconds) of each."""
        return [dict(job) for job in self._ask("/jobs/overview").get("jobs", [])]

    def newest_checkpoint(self, job: str) -> float | None:
        """When the newest checkpoint of a job was completed, epoch seconds; None where there is none."""
        answer = self._ask(f"/jobs/{job}/checkpoints", missing_is_none=True) or {}
        newest = (answer.get("latest") or {}).get("completed")
        return None if newest is None else float(newest["latest_ack_timestamp"]) / 1000

    def failure(self, job: str) -> str:
        """Why a job failed last, one line; empty where it did not."""
        answer = self._ask(f"/jobs/{job}/exceptions", missing_is_none=True) or {}
        lines = str(answer.get("root-exception") or "").splitlines()
        causes = [line.strip() for line in lines if line.startswith("Caused by:")]
        return "; ".join([*lines[:1], *causes[-2:]])

    def stop(self, job: str, savepoints: str, *, seconds_max: float) -> None:
        """Stops a job with a savepoint, in the state's own format: the other one reads every sample that was counted.

        Args:
            savepoints: URI of the folder for the savepoint.

        Raises:
            Unavailable: it failed or took longer; the job may run still.
        """
        asked = self._ask(f"/jobs/{job}/stop", {"targetDirectory": savepoints, "drain": False, "formatType": "NATIVE"})
        operation = self._done(f"/jobs/{job}/savepoints/{asked['request-id']}", seconds_max)
        if operation is None:
            raise Unavailable(f"cannot stop Flink job {job} with a savepoint: it is not done after {seconds_max:.0f} s")
        cause = operation.get("failure-cause")
        if cause is not None:
            raise Unavailable(f"cannot stop Flink job {job} with a savepoint: {_first_line(cause)}")

    def checkpoint(self, job: str, *, seconds_max: float) -> int:
        """Makes a job take a checkpoint now, beside those that it takes by the clock; gives its number.

        It is begun after the call: one that was under way already does not count
        (nightlies.apache.org/flink/flink-docs-release-2.2/docs/ops/rest_api: POST /jobs/:jobid/checkpoints).

        Raises:
            Unavailable: it failed, as it does while tasks are still being started, or took longer.
        """
        asked = self._ask(f"/jobs/{job}/checkpoints", {"checkpointType": "CONFIGURED"})
        operation = self._done(f"/jobs/{job}/checkpoints/{asked['request-id']}", seconds_max)
        if operation is None:
            raise Unavailable(f"cannot make Flink job {job} take a checkpoint: it has none after {seconds_max:.0f} s")
        cause = operation.get("failureCause")
        if cause is not None:
            raise Unavailable(f"cannot make Flink job {job} take a checkpoint: {_first_line(cause)}")
        return int(operation["checkpointId"])

    def cancel(self, job: str) -> None:
        """Ends a job where it stands."""
        self._ask(f"/jobs/{job}?mode=cancel", {}, method="PATCH", missing_is_none=True)

    def _done(self, path: str, seconds_max: float) -> dict[str, Any] | None:
        """What became of an operation that takes its time; None where it takes longer than that."""
        deadline = time.monotonic() + seconds_max
        while time.monotonic() < deadline:
            answer = self._ask(path)
            if answer["status"]["id"] == "COMPLETED":
                return dict(answer["operation"])
            time.sleep(_PAUSE_SECONDS)
        return None

    def _ask(
        self, path: str, body: dict[str, Any] | None = None, *, method: str | None = None, missing_is_none: bool = False
    ) -> Any:
        target, _, query = path.partition("?")
        asked = Request(
            path=target,
            query=dict(parse_qsl(query)),
            method=method or ("GET" if body is None else "POST"),
            body=None if body is None else json.dumps(body).encode(),
            seconds_max=_ANSWER_SECONDS,
        )
        what = f"cannot ask Flink at {self.address}{path}"
        try:
            with self._http.ask(asked) as answer:
                content = read_body(answer, _ANSWER_BYTES_MAX)
            if answer.status == HTTPStatus.NOT_FOUND and missing_is_none:
                return None
            if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
                raise Unavailable(f"{answer.status} {content[:500].decode(errors='replace')}")
            return json.loads(content)
        except (Unavailable, Corrupt, ValueError, RecursionError) as exc:
            raise Unavailable(f"{what}: {exc}") from exc


def _first_line(cause: dict[str, Any]) -> str:
    return str(cause.get("stack-trace", cause)).splitlines()[0]
