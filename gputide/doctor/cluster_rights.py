"""What a role may do in a cluster, right by right, asked of the API server itself; nothing is tried out.

A review is a question that is posted: the server answers, and keeps nothing. Called by `cluster`.

Source: kubernetes/api:authorization/v1 (SelfSubjectAccessReview, SubjectAccessReview, ResourceAttributes).
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cache
from importlib import resources

from fleet.errors import Misconfigured
from fleet.sentences import sentence
from gputide.doctor.finding import Diagnosis, finding, otherwise, some, unchecked
from wire.kubernetes.read import KubernetesApi

ROLES = ("reader", "node", "writer", "relief", "agent")
"""Roles of docs/rbac-*.yaml and docs/agent.yaml."""
_OWN = "own"
_BUILT_IN = frozenset({"", "apps", "batch", "policy", "autoscaling", "coordination.k8s.io"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a role must be allowed to do.

    Attributes:
        group: API group; empty for the core.
        resources: `pods`, `pods/eviction`.
        namespace: where; empty for the whole cluster, `own` for that of the enforcer.
        names: objects that it is about; empty for all.
        backends: backends with which it matters; empty for all.
        disables: what is lost without it, `doctor.right.*`.
    """

    role: str
    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    namespace: str
    names: tuple[str, ...]
    backends: tuple[str, ...]
    disables: str


@cache
def rules() -> tuple[Rule, ...]:
    """The rules of all roles."""
    text = resources.files("gputide.doctor").joinpath("rights.toml").read_text(encoding="utf-8")
    return tuple(
        Rule(
            role=entry["role"],
            group=entry["group"],
            resources=tuple(entry["resources"]),
            verbs=tuple(entry["verbs"]),
            namespace=entry.get("namespace", ""),
            names=tuple(entry.get("names", ())),
            backends=tuple(entry.get("backends", ())),
            disables=entry["disables"],
        )
        for entry in tomllib.loads(text)["rule"]
    )


def checked_roles(wanted: tuple[str, ...], account: str | None) -> tuple[str, ...]:
    """The roles that are meant: those named, else that of the account's name, else the writer's.

    Raises:
        Misconfigured: there is no such role.
    """
    for role in wanted:
        if role not in ROLES:
            raise Misconfigured(f"cannot look at the rights of role {role!r}: there are {', '.join(ROLES)}")
    if wanted:
        return wanted
    last = (account or "").rpartition("-")[2]
    return (last,) if last in ROLES else ("writer",)


def rights_of(
    client: KubernetesApi, role: str, *, account: str | None, namespace: str, backend: str, served: Set[str]
) -> Iterator[Diagnosis]:
    """Which rights of a role are missing.

    Args:
        account: whose rights; None for the caller.
        served: API groups that the cluster serves.

    Raises:
        Misconfigured: we may not ask about others.
        Unavailable: the cluster can't be reached.
    """
    asked = 0
    for rule in rules():
        if rule.role != role or (rule.backends and backend not in rule.backends):
            continue
        if rule.group not in _BUILT_IN and rule.group not in served:
            continue
        where = namespace if rule.namespace == _OWN else rule.namespace
        missing: dict[str, list[str]] = {}
        for resource in rule.resources:
            for verb in rule.verbs:
                asked += 1
                # Names of configurations are many, and a cluster has one of them.
                if not any(
                    _is_allowed(client, account, rule.group, resource, verb, where, name)
                    for name in rule.names or ("",)
                ):
                    missing.setdefault(verb, []).append(resource)
        if missing:
            yield _missing(rule, missing, role=role, account=account, where=where)
    if not asked:
        yield unchecked(sentence("doctor.found.no_rule"))
    yield otherwise(sentence("doctor.found.rights", rights=asked))


def _missing(rule: Rule, missing: dict[str, list[str]], *, role: str, account: str | None, where: str) -> Diagnosis:
    full = [f"{resource}.{rule.group}" if rule.group else resource for one in missing.values() for resource in one]
    names = some(full, 10)
    place = sentence("doctor.found.in_namespace", namespace=where) if where else sentence("doctor.found.in_cluster")
    subject = "--user=USER"
    if account is not None and account.startswith("system:serviceaccount:"):
        subject = f"--serviceaccount={account.removeprefix('system:serviceaccount:')}"
    text = sentence("doctor.found.right", verbs=", ".join(missing), names=names, place=place, disables=rule.disables)
    resources = ",".join(sorted(set(full)))
    return finding(
        "right-missing", text, subject=role, role=f"gputide-{role}-more", verbs=",".join(missing), resources=resources,
        account=subject,
    )  # fmt: skip


def _is_allowed(
    client: KubernetesApi, account: str | None, group: str, resource: str, verb: str, namespace: str, name: str
) -> bool:
    plural, _, sub = resource.partition("/")
    attributes = {
        "group": group, "resource": plural, "subresource": sub, "verb": verb, "namespace": namespace, "name": name,
    }  # fmt: skip
    return client.is_allowed(attributes, user=account, groups=() if account is None else _groups(account))


def _groups(account: str) -> list[str]:
    """Groups that every account of its kind is in (kubernetes/apiserver:pkg/authentication/serviceaccount)."""
    parts = account.split(":")
    if account.startswith("system:serviceaccount:") and len(parts) == 4:
        return ["system:serviceaccounts", f"system:serviceaccounts:{parts[2]}", "system:authenticated"]
    return ["system:authenticated"]
