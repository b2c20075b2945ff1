"""What stands on the API server at a moment, in few words: what `look FILE` in a scenario's `run.sh` writes.

It stands for `kubectl get deployments,jobs,pods,events`. Which pod holds which card is read as the backend's scheduler
wrote it; of gputide it knows only what its annotations and events say to the owners of Jobs.
"""

from __future__ import annotations

import json
import pickle
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.recorded_fleet import RecordedFleet, administrator
from tests.cluster.api import Api, Manifest
from tests.cluster.played_backends import PlayedBackend


def stands(api: Api, played: PlayedBackend) -> dict[str, Any]:
    """Services with their replicas, and Jobs with their cards: `runs_seconds` are left until the moment announced.

    `notice_seconds` passed from when the owner of a Job was last asked to save until it was suspended.
    """
    asked = {
        one["involvedObject"]["name"]: _moment(one["lastTimestamp"])
        for one in api.ask("GET", "/api/v1/events")["items"]
        if one["reason"] == "GputideTide"
    }
    services = [
        {"name": one["metadata"]["name"], "replicas": one["spec"]["replicas"], "ready": _ready(one)}
        for one in api.ask("GET", "/apis/apps/v1/deployments")["items"]
    ]
    jobs = [
        {
            "name": one["metadata"]["name"],
            "is_let_in": not one["spec"]["suspend"],
            "cards": _cards(one["metadata"], api, played),
            "runs_seconds": _since(datetime.now(UTC), one["metadata"].get("annotations", {}).get(_UNTIL)),
            "notice_seconds": _since(asked.get(one["metadata"]["name"]), _suspended(one)),
        }
        for one in api.ask("GET", "/apis/batch/v1/jobs")["items"]
    ]
    return {"services": services, "jobs": jobs}


def _ready(owner: Manifest) -> int:
    return int(owner["status"].get("readyReplicas", 0))  # left out where none is


_UNTIL = "gputide.io/runs-until"


def _cards(metadata: Manifest, api: Api, played: PlayedBackend) -> int:
    pods = played.grants(api, metadata["namespace"])
    return sum(len(cards) for pod, cards in pods.items() if pod.startswith(f"{metadata['name']}-"))


def _suspended(job: Manifest) -> str | None:
    """Since when a Job is suspended, as its controller says."""
    for one in job.get("status", {}).get("conditions", ()):
        if one["type"] == "Suspended" and one["status"] == "True":
            return str(one["lastTransitionTime"])
    return None


def _since(start: datetime | None, end: str | None) -> float | None:
    return None if start is None or end is None else round((_moment(end) - start).total_seconds(), 1)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


if __name__ == "__main__":
    fleet: RecordedFleet = pickle.loads(Path(sys.argv[1]).read_bytes())  # noqa: S301 - we wrote it
    found = stands(administrator(fleet.kubeconfig), fleet.played)
    Path(sys.argv[2]).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
