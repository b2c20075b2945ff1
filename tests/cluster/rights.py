"""What an account may do, as the API server's own authorizer says."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from tests.cluster.api import Api, Manifest

DOCS = Path(__file__).resolve().parents[2] / "docs"
VERBS = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
# Kinds that a program which may write to workloads could do worse with than with those.
DANGEROUS = (
    ("", "secrets"), ("", "serviceaccounts"), ("", "serviceaccounts/token"), ("", "pods/exec"), ("", "pods/attach"),
    ("", "nodes/proxy"), ("", "persistentvolumes"), ("rbac.authorization.k8s.io", "roles"),
    ("rbac.authorization.k8s.io", "rolebindings"), ("rbac.authorization.k8s.io", "clusterroles"),
    ("rbac.authorization.k8s.io", "clusterrolebindings"), ("certificates.k8s.io", "certificatesigningrequests"),
    ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One verb on one kind of thing.

    Attributes:
        verb: what is done.
        group: API group, empty for the core's.
        resource: plural, with its subresource after a slash.
        namespace: where; empty for everywhere.
        name: of the one object that it is about; empty for all.
    """

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""


class Authorizer:
    """Asks for many rights over one connection, by SubjectAccessReview.

    Args:
        url: of the API server.
        ca: what its certificate is checked by.
        kubeconfig: of an administrator.
    """

    def __init__(self, url: str, ca: Path, kubeconfig: Path) -> None:
        parts = urlsplit(url)
        context = ssl.create_default_context(cafile=str(ca))
        self._connection = http.client.HTTPSConnection(str(parts.hostname), parts.port, timeout=30, context=context)
        token = json.loads(kubeconfig.read_text(encoding="utf-8"))["users"][0]["user"]["token"]
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def may(self, namespace: str, account: str, right: Right) -> bool:
        """Whether a service account has a right."""
        resource, _, part = right.resource.partition("/")
        asked = {
            "verb": right.verb, "group": right.group, "resource": resource, "subresource": part,
            "namespace": right.namespace, "name": right.name,
        }  # fmt: skip
        user = f"system:serviceaccount:{namespace}:{account}"
        groups = ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{namespace}"]
        review = {"spec": {"user": user, "groups": groups, "resourceAttributes": asked}}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        self._connection.request("POST", path, json.dumps(review), self._headers)
        return bool(json.load(self._connection.getresponse())["status"]["allowed"])

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def rules_of(api: Api, token: str, namespace: str) -> Iterator[Right]:
    """Every right that whoever holds a token has in a namespace, by the server's own account of it.

    What every authenticated account may is left out: to ask who it is, and what it may.
    """
    review = {"spec": {"namespace": namespace}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    status: Manifest = api.ask("POST", path, review, token=token)["status"]
    assert not status["incomplete"], status
    for rule in status["resourceRules"]:
        for group in rule.get("apiGroups", ()):
            for resource in rule.get("resources", ()):
                for verb in rule["verbs"]:
                    if not resource.startswith("selfsubject"):
                        yield Right(verb=verb, group=group, resource=resource, namespace=namespace)


def granted(manifests: list[Manifest], account: str, *, namespaces: dict[str, str]) -> set[Right]:
    """The rights that roles and bindings of a page grant an account; roles are named as their bindings are.

    Args:
        manifests: of the page.
        account: name of the service account.
        namespaces: the page's namespaces by what they are called here.
    """
    bound = {
        (one["roleRef"]["kind"], one["roleRef"]["name"], one["metadata"].get("namespace", ""))
        for one in manifests
        if one["kind"].endswith("Binding") and any(subject["name"] == account for subject in one["subjects"])
    }
    found = set()
    for manifest in manifests:
        namespace = manifest["metadata"].get("namespace", "")
        if (manifest["kind"], manifest["metadata"]["name"], namespace) not in bound:
            continue
        for rule in manifest["rules"]:
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for verb in rule["verbs"]:
                        for name in rule.get("resourceNames", [""]):
                            where = namespaces.get(namespace, namespace)
                            found.add(Right(verb=verb, group=group, resource=resource, namespace=where, name=name))
    return found


def more_than_reading(api: Api, namespace: str, account: str, *, look_at: tuple[str, ...]) -> set[Right]:
    """The rights of an account that are more than to get, list and watch, or that show secrets.

    Args:
        api: an administrator.
        namespace: of the account.
        account: its name.
        look_at: namespaces that are there; rights to the whole cluster count in each.
    """
    token = api.token(namespace, account)
    rights = {right for where in look_at for right in rules_of(api, token, where)}
    return {right for right in rights if right.verb not in ("get", "list", "watch") or right.resource == "secrets"}


def documented(namespace: str) -> set[Right]:
    """What the pages say that the writer of a release in a namespace may, relief's part too."""
    manifests: list[Manifest] = []
    for page in ("rbac-writer.yaml", "rbac-relief.yaml"):
        text = (DOCS / page).read_text(encoding="utf-8")
        manifests += [manifest for manifest in yaml.safe_load_all(text) if manifest]
    return granted(manifests, "gputide-writer", namespaces={"gputide": namespace})


def others(page: set[Right], namespace: str) -> list[Right]:
    """Every other verb on what the page names, and every verb on what would be worse: everywhere and in a namespace."""
    everywhere = {(right.group, right.resource, right.verb) for right in page if not right.namespace and not right.name}
    resources = {(right.group, right.resource) for right in page} | set(DANGEROUS)
    within = {(right.group, right.resource, right.verb, right.namespace) for right in page if not right.name}
    return [
        Right(verb=verb, group=group, resource=resource, namespace=where)
        for group, resource in sorted(resources)
        for verb in (*VERBS, *(("escalate", "bind", "impersonate") if (group, resource) in DANGEROUS else ()))
        for where in ("", namespace)
        if (group, resource, verb) not in everywhere and (group, resource, verb, where) not in within
    ]
