"""The rollup on Flink (`run rollup --engine flink`): runs the job of `pipeline/flink/java`, and publishes its files.

The job reads a Kafka topic and puts additive rows into files of a staging folder at every checkpoint. This side starts
it from its newest checkpoint or savepoint, starts it again where it dies, and takes finished files into the warehouse
(`flink.publish`). Without the address of a JobManager the job runs in a small cluster inside a process of ours; with
one, that cluster runs it and goes on when we stop watching. Chosen by `gputide.container.flink`.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from fleet.errors import Misconfigured, Unavailable
from fleet.logs import logger
from pipeline.flink.configuration import FlinkJobOptions, FlinkPlaces, job_configuration
from pipeline.flink.description import FlinkDescription
from pipeline.flink.process import FlinkProcess, end_left_over
from pipeline.flink.publish import FlinkPublisher
from pipeline.flink.rest import FlinkRest
from pipeline.flink.state import FlinkRun, FlinkState, uri_of
from pipeline.rollup.rollup import RollupStep

_log = logger(__name__)

_SUBMIT_SECONDS = 300.0
_STOP_SECONDS = 120.0
_POLL_SECONDS = 0.1
_CHECK_SECONDS = 1.0
_OVER = {"FINISHED", "FAILED", "CANCELED", "SUSPENDED", None}


class TopicProgress(Protocol):
    """How far a topic reaches, and how far the job's checkpoints are."""

    def ends(self) -> Mapping[int, int]:
        """The offset after the last record of each partition."""
        ...

    def committed(self) -> Mapping[int, int]:
        """The offset that the job's group has committed, 0 where it has not."""
        ...


class FlinkRollup:
    """Rolls a topic up through Flink; a `Rollup`.

    Args:
        description: what the job does.
        program: the Java program, a jar whose name says which version it is.
        progress: the topic as the job's group sees it.
        process_of: starts Flink's process; its argument is the token that it shall carry.
    """

    def __init__(
        self,
        state: FlinkState,
        description: FlinkDescription,
        options: FlinkJobOptions,
        *,
        program: Path,
        publisher: FlinkPublisher,
        progress: TopicProgress,
        process_of: Callable[[str], FlinkProcess],
    ) -> None:
        self._state = state
        self._description = description
        self._options = options
        self._program = program
        self._publisher = publisher
        self._progress = progress
        self._process_of = process_of
        self._process: FlinkProcess | None = None
        self._rest: FlinkRest | None = None
        self._job = ""
        self._checked = 0.0

    @property
    def job(self) -> str:
        """Id of the job, 32 hexadecimal digits; empty before `start`."""
        return self._job

    @property
    def address(self) -> str | None:
        """Where the JobManager of the job answers, `http://HOST:PORT`; None while no job is watched."""
        return None if self._rest is None else self._rest.address

    def start(self) -> None:
        """Starts the job where it was, or watches the one that a cluster still runs.

        One that a cluster runs as former settings or a former program said is stopped with a savepoint first.

        Raises:
            Misconfigured: its state was lost, or another cluster runs it.
            Unavailable: Flink can't be started or reached.
        """
        former = self._state.run()
        if former is not None:
            end_left_over(former.token)
            if self._is_running(former):
                self._job, self._rest = former.job, FlinkRest(self._options.rest or "", self._options.rest_tls)
                if former.fingerprint == self._fingerprint():
                    return
                _log.info("flink job does not do what it shall any more; starting it again", job=former.job)
                self._stop_in_order(self._rest)
        newest = self._state.newest()
        if newest is None and self._publisher.published:
            raise Misconfigured(
                f"cannot start the Flink job without its state: the warehouse has {self._publisher.published} batches "
                f"of it, but {self._state.folder} holds no checkpoint; set flink.state_folder to where it lies"
            )
        self._submit(None if newest is None else uri_of(newest.folder))

    def step(self) -> RollupStep | None:
        """Publishes the next finished files; None where there are none. See `Rollup.step`.

        Raises:
            Unavailable: the job has ended and can't be started again.
        """
        step = self._publisher.publish()
        if step is None and time.monotonic() - self._checked > _CHECK_SECONDS:
            self._state.tidy()
            self.check()
            self._checked = time.monotonic()
        return step

    def check(self) -> None:
        """Starts the job again where it has ended.

        Raises:
            Unavailable: that does not work.
        """
        if self._rest is None:
            return
        why = self._reason_of_end(self._rest)
        if why is not None:
            _log.warning("flink job ended; starting it again", job=self._job, why=why)
            self._end_process()
            self.start()

    def settle(self, *, seconds_max: float) -> None:
        """Waits until everything that is on the topic now lies in finished files.

        Nothing of that waits for the checkpoints that come by the clock: they are asked for. The first one with the
        topic's ends as the job's offsets has all rows in its files, which have their names once one more is through.

        Raises:
            Unavailable: that takes longer, or the job has ended.
        """
        deadline = time.monotonic() + seconds_max
        self._read_up_to(self._progress.ends(), deadline)
        self._wait(lambda: self._checkpoint(deadline) is not None, deadline, "make a checkpoint")

    def stop(self) -> None:
        """Stops the job with a savepoint and publishes what that finishes; without a job nothing happens."""
        rest, run = self._rest, self._state.run()
        if rest is None or run is None:
            return
        try:
            self._stop_in_order(rest)
        except Unavailable as exc:
            _log.warning("flink job not stopped in order; its last checkpoint counts", why=str(exc))
            if self._options.rest is None:
                with suppress(Unavailable):
                    rest.cancel(self._job)
        finally:
            self._end_process()
            self._rest = None
        self._state.remember(replace(run, token=""))
        while self._publisher.publish() is not None:
            pass

    def leave(self) -> None:
        """Stops watching: a job in a cluster runs on, one in our own process is stopped with a savepoint."""
        if self._options.rest is None:
            self.stop()
        else:
            self._end_process()

    def _fingerprint(self) -> str:
        return self._description.fingerprint(self._program.name)

    def _submit(self, restore: str | None) -> None:
        job, token = secrets.token_hex(16), secrets.token_hex(16)
        process = self._process_of(token)
        try:
            # Written down before the job is sent: a later start finds the processes of a killed rollup by it.
            rest = self._options.rest or ""
            self._state.remember(FlinkRun(job=job, token=process.token, fingerprint=self._fingerprint(), rest=rest))
            address = self._options.rest or f"http://127.0.0.1:{_free_port()}"
            places = FlinkPlaces(
                job=job, address=address, program=self._program, checkpoints=self._state.checkpoints,
                scratch=self._state.scratch(job), restore=restore,
            )  # fmt: skip
            configuration = job_configuration(self._options, places)
            self._job = process.submit(
                {"configuration": configuration, **self._description.document()}, seconds_max=_SUBMIT_SECONDS
            )
        except BaseException:
            process.end()
            raise
        self._rest = FlinkRest(address, self._options.rest_tls)
        if self._options.rest is None:
            self._process = process
        else:
            process.end()
        _log.info("flink job started", job=self._job, address=address, restored_from=restore)

    def _is_running(self, former: FlinkRun) -> bool:
        """Whether a cluster still runs the job; a cluster that can't be asked might."""
        if not former.rest or FlinkRest(former.rest, self._options.rest_tls).job_state(former.job) in _OVER:
            return False
        if former.rest != self._options.rest:
            raise Misconfigured(
                f"cannot start the Flink job at flink.rest={self._options.rest or 'none'}: {former.rest} still runs it "
                f"as {former.job}, and two would count everything twice; stop it there first"
            )
        return True

    def _stop_in_order(self, rest: FlinkRest) -> None:
        """A job whose tasks are still being started takes no savepoint: it is asked again."""
        deadline = time.monotonic() + _STOP_SECONDS
        while True:
            try:
                rest.stop(self._job, uri_of(self._state.savepoints), seconds_max=deadline - time.monotonic())
                return
            except Unavailable:
                if time.monotonic() > deadline - _CHECK_SECONDS or rest.job_state(self._job) in _OVER:
                    raise
            time.sleep(_CHECK_SECONDS)

    def _reason_of_end(self, rest: FlinkRest) -> str | None:
        """Why the job is over; None while it is not."""
        process = self._process
        if process is not None and not process.is_alive():
            return "its process has ended"
        try:
            state = rest.job_state(self._job)
        except Unavailable:
            if process is None:
                raise
            # The cluster inside our process goes with its job.
            return process.failure() or "it does not answer"
        return None if state not in _OVER else rest.failure(self._job) or f"it is {state}"

    def _read_up_to(self, ends: Mapping[int, int], deadline: float) -> None:
        """Waits for a checkpoint with these offsets, which the job's group shows.

        Checkpoints are asked for at most a fifth of the time, so that a long way to go is not made longer.
        """
        asked_again = 0.0

        def is_there() -> bool:
            nonlocal asked_again
            if time.monotonic() >= asked_again:
                begun = time.monotonic()
                self._checkpoint(deadline)
                took = time.monotonic() - begun
                asked_again = time.monotonic() + max(_CHECK_SECONDS, 4 * took)
            committed = self._progress.committed()
            return all(committed.get(number, 0) >= end for number, end in ends.items())

        self._wait(is_there, deadline, "read the topic to its end")

    def _checkpoint(self, deadline: float) -> int | None:
        """The number of a checkpoint that was asked for; None where the job can't take one now."""
        if self._rest is None:
            return None
        try:
            return self._rest.checkpoint(self._job, seconds_max=max(1.0, deadline - time.monotonic()))
        except Unavailable:
            return None  # its tasks are being started, or it has ended, which `_wait` looks for

    def _wait(self, is_done: Callable[[], bool], deadline: float, purpose: str) -> None:
        while not is_done():
            if time.monotonic() > deadline:
                raise Unavailable(f"cannot wait longer for Flink job {self._job} to {purpose}")
            if time.monotonic() - self._checked > _CHECK_SECONDS:
                self.check()
                self._checked = time.monotonic()
            time.sleep(_POLL_SECONDS)

    def _end_process(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
