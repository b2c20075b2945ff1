"""How a job of ours is set up: Flink's options by their names. Pure; called by `rollup_flink`.

Names and meanings: nightlies.apache.org/flink/flink-docs-release-2.2/docs/deployment/config.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from wire.tls import Tls

_MAX_PARALLELISM = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class FlinkJobOptions:
    """How a job runs.

    Attributes:
        parallelism: tasks of each kind beside each other.
        checkpoint_milliseconds: time between checkpoints, and so between finished files.
        flush_seconds: how long sums are gathered.
        memory_seconds: how long a sample is remembered, to count once (`rollup.repeat_memory_seconds`).
        rest: address of a JobManager, `http://HOST:PORT`; None runs the job in our own process.
        rest_tls: how an https JobManager is checked, and what it is shown; None for the usual.
        restarts: how the cluster treats a failing job: `exponential-delay`, or `none` so that we do it.
        configuration: further options of Flink, which win over ours.
    """

    parallelism: int
    checkpoint_milliseconds: int
    flush_seconds: int
    memory_seconds: int
    rest: str | None = None
    rest_tls: Tls | None = None
    restarts: str = "exponential-delay"
    configuration: Mapping[str, str] = field(default_factory=dict)


def job_configuration(
    options: FlinkJobOptions, *, job: str, address: str, checkpoints: Path, restore: str | None
) -> dict[str, str]:
    """Everything that a job is started with besides its SQL.

    Args:
        job: the id that it gets, 32 hexadecimal digits.
        address: where its JobManager answers, `http://HOST:PORT`.
        restore: URI of the checkpoint or savepoint that it goes on from; None begins without state.
    """
    host, _, port = address.partition("://")[2].partition(":")
    found = {
        "$internal.pipeline.job-id": job,
        "pipeline.name": "gputide run rollup",
        "pipeline.max-parallelism": str(_MAX_PARALLELISM),
        "pipeline.object-reuse": "true",
        "parallelism.default": str(options.parallelism),
        "table.local-time-zone": "UTC",
        "table.exec.state.ttl": f"{options.memory_seconds} s",
        "execution.checkpointing.interval": f"{options.checkpoint_milliseconds} ms",
        "execution.checkpointing.mode": "EXACTLY_ONCE",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "execution.checkpointing.num-retained": "3",
        "execution.checkpointing.storage": "filesystem",
        "execution.checkpointing.dir": checkpoints.as_uri(),
        "restart-strategy.type": options.restarts,
    }
    if options.rest is None:
        found |= {
            "rest.address": "localhost",
            "rest.bind-address": "127.0.0.1",
            "rest.bind-port": port,
            "rest.port": port,
            "taskmanager.numberOfTaskSlots": str(options.parallelism),
            "taskmanager.memory.network.min": "64mb",
            "taskmanager.memory.network.max": "64mb",
            "taskmanager.memory.managed.size": "64mb",
        }
    else:
        found |= {"execution.target": "remote", "rest.address": host, "rest.port": port}
    if restore is not None:
        found["execution.state-recovery.path"] = restore
    return {**found, **options.configuration}
