"""What an API server wrote down of every write: who, what, on which object."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POLICY: dict[str, Any] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "None", "verbs": ["get", "list", "watch"]}, {"level": "Metadata"}],
}


OWN_KINDS = ("gpuchanges", "gpuplans", "gpuplanparts")
"""Kinds of gputide's own objects that the enforcer writes; approvals are of people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One write that the server answered.

    Attributes:
        user: whose token it was.
        verb: create, update, patch, delete.
        resource: `deployments`, `pods/eviction`.
        namespace: empty for none.
        name: empty for a list.
        status: HTTP status.
        is_dry: nothing was to be kept.
        credential: which token of the user it was, `JTI=…`; empty where the server does not say.
    """

    user: str
    verb: str
    resource: str
    namespace: str
    name: str
    status: int
    is_dry: bool
    credential: str = ""


class AuditLog:
    """The log of a running API server.

    Args:
        path: where it is written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def arguments(self, policy: Path) -> list[str]:
        """Write the policy, and return the flags that make the server keep the log."""
        policy.write_text(json.dumps(POLICY), encoding="utf-8")
        return [
            f"--audit-policy-file={policy}", f"--audit-log-path={self._path}", "--audit-log-mode=blocking-strict",
            # The server begins a new file after 100 MiB by itself, and places to read on from would be lost.
            "--audit-log-maxsize=100000",
        ]  # fmt: skip

    def size(self) -> int:
        """Bytes so far, to read on from."""
        return self._path.stat().st_size

    def writes(self, since: int = 0) -> list[Write]:
        """Every write that was answered after a place in the log."""
        with self._path.open("rb") as file:
            file.seek(since)
            entries = [json.loads(line) for line in file if line.endswith(b"\n")]
        return [_write(entry) for entry in entries if entry["stage"] == "ResponseComplete"]


def unwanted(writes: Iterable[Write], workloads: Iterable[str], *, lease_namespace: str = "gputide") -> list[Write]:
    """Writes that an approved plan of these Deployments does not ask for; what was only rehearsed is none.

    Args:
        writes: of the enforcer.
        workloads: `namespace/Deployment/name` of all that the plan changes.
        lease_namespace: where the enforcer's lease lies.
    """
    named = {(workload.split("/")[0], workload.split("/")[2]) for workload in workloads}
    return [write for write in writes if not write.is_dry and not _is_wanted(write, named, lease_namespace)]


def _is_wanted(write: Write, named: set[tuple[str, str]], lease_namespace: str) -> bool:
    match write.verb, write.resource:
        case "patch", "deployments":
            return (write.namespace, write.name) in named
        case ("patch", "pods") | ("create", "pods/eviction"):
            # A Deployment's pods are called by it, by the hash of their template, and by five letters of their own.
            return (write.namespace, write.name.rsplit("-", 2)[0]) in named
        case (("create" | "patch"), "events"):
            of_plan = write.namespace == "default" and write.name.startswith("plan-")
            return of_plan or write.namespace in {namespace for namespace, _ in named}
        case (("create" | "update" | "patch"), _) if write.resource.partition("/")[0] in OWN_KINDS:
            return True
        case (("create" | "update"), "leases"):
            return (write.namespace, write.name) in ((lease_namespace, "enforcer"), (lease_namespace, ""))
    return False


def _write(entry: dict[str, object]) -> Write:
    of, user, answered = entry.get("objectRef") or {}, entry["user"], entry.get("responseStatus") or {}
    assert isinstance(of, dict)
    assert isinstance(user, dict)
    assert isinstance(answered, dict)
    part, extra = of.get("subresource"), user.get("extra") or {}
    return Write(
        user=user["username"],
        verb=str(entry["verb"]),
        resource=f"{of.get('resource', '')}/{part}" if part else of.get("resource", ""),
        namespace=of.get("namespace", ""),
        name=of.get("name", ""),
        status=answered.get("code", 0),
        is_dry="dryRun=" in str(entry["requestURI"]),
        credential=next(iter(extra.get("authentication.kubernetes.io/credential-id", ())), ""),
    )
