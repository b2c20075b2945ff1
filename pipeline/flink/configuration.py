"""How a job of ours is set up: Flink's options by their names. Pure; called by `rollup_flink`.

Names and meanings: nightlies.apache.org/flink/flink-docs-release-2.2/docs/deployment/config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.flink.state import uri_of
from wire.tls import Tls

MAX_PARALLELISM = 128
"""Groups of keys: the Java program deals identities out to as many parts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkJobOptions:
    """How a job runs.

    Attributes:
        parallelism: tasks of each kind beside each other.
        checkpoint_milliseconds: time between checkpoints, and so between finished files.
        rest: address of a JobManager, `http://HOST:PORT`; None runs the job in our own process.
        rest_tls: how an https JobManager is checked, and what it is shown; None for the usual.
        restarts: how the cluster treats a failing job: `exponential-delay`, or `none` so that we do it.
        configuration: further options of Flink, which win over ours.
    """

    parallelism: int
    checkpoint_milliseconds: int
    rest: str | None = None
    rest_tls: Tls | None = None
    restarts: str = "exponential-delay"
    configuration: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkPlaces:
    """Where a job and its state lie.

    Attributes:
        job: the id that it gets, 32 hexadecimal digits.
        address: where its JobManager answers, `http://HOST:PORT`.
        program: the Java program, a jar that a cluster is sent.
        checkpoints: folder of checkpoints.
        scratch: folder of what a job in our own process needs while it runs: its state, out of memory.
        restore: URI of the checkpoint or savepoint that it goes on from; None begins without state.
    """

    job: str
    address: str
    program: Path
    checkpoints: Path
    scratch: Path
    restore: str | None


def job_configuration(options: FlinkJobOptions, places: FlinkPlaces) -> dict[str, str]:
    """Everything that a job is started with besides what it does."""
    host, _, port = places.address.partition("://")[2].partition(":")
    found = {
        "$internal.pipeline.job-id": places.job,
        "pipeline.name": "gputide run rollup",
        "pipeline.max-parallelism": str(MAX_PARALLELISM),
        "pipeline.object-reuse": "true",
        "parallelism.default": str(options.parallelism),
        "state.backend.type": "rocksdb",
        "execution.checkpointing.incremental": "true",
        "execution.checkpointing.interval": f"{options.checkpoint_milliseconds} ms",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "execution.checkpointing.num-retained": "3",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": uri_of(places.checkpoints),
        "restart-strategy.type": options.restarts,
    }
    if options.rest is None:
        found |= {
            "execution.target": "local",
            "execution.attached": "true",
            "io.tmp.dirs": str(places.scratch),
            "rest.address": "localhost",
            "rest.bind-address": "127.0.0.1",
            "rest.bind-port": port,
            "rest.port": port,
            "taskmanager.numberOfTaskSlots": str(options.parallelism),
            "taskmanager.memory.network.min": "64mb",
            "taskmanager.memory.network.max": "64mb",
            "taskmanager.memory.managed.size": "128mb",
        }
    else:
        found |= {
            "execution.target": "remote",
            "rest.address": host,
            "rest.port": port,
            "pipeline.jars": places.program.as_uri(),
        }
    if places.restore is not None:
        found["execution.state-recovery.path"] = places.restore
    return {**found, **options.configuration}
