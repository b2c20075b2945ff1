"""Whether gputide's admission webhook is registered for pods, and answers the API server when that asks it.

That it answers is proved from end to end without a right to make pods: the enforcer's lease is written in a dry run
with a word that nobody else has, and what comes back carries the webhook's answer to it, or does not. The
configuration's second webhook, on that lease, is the same program at the same address as its first one, on pods.

Sources: kubernetes/api:admissionregistration/v1 (MutatingWebhook),
kubernetes/website:content/en/docs/reference/using-api/api-concepts.md (dry run).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from enforcer.kubernetes.lease import LEASE_NAME, Leases
from fleet.selectors import selects_labels
from fleet.sentences import Sentence, sentence
from wire.kubernetes.refusals import Conflict, Deed
from wire.kubernetes.write import WritingApi

PODS_WEBHOOK = "pods.gputide.io"
LEASES_WEBHOOK = "leases.gputide.io"
"""Names of the two webhooks in the configuration."""

ASKED_ANNOTATION = "gputide.io/asked"
ANSWERED_ANNOTATION = "gputide.io/answered"
"""On the enforcer's lease in a dry run: a word, and the webhook's answer, which is the same word."""

_PATH = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
_RESOURCE = "mutatingwebhookconfigurations.admissionregistration.k8s.io"
_RACES_MAX = 4
_DRY_RUN = {"dryRun": "All"}


class AdmissionProbe:
    """Looks at the webhook and asks it.

    Each call raises `Misconfigured` where a right is missing, and `Unavailable` where the cluster can't be reached.
    """

    def __init__(self, api: WritingApi, namespace: str) -> None:
        self._api = api
        self._namespace = namespace
        self._leases = Leases(api, namespace, "enforcer.namespace")

    def why_unseated(self, namespaces: Sequence[str]) -> Sentence | None:
        """Why new pods of some namespaces are not given their planned seats; None where they are."""
        hooks = self._hooks()
        pods, leases = hooks.get(PODS_WEBHOOK), hooks.get(LEASES_WEBHOOK)
        if pods is None:
            return sentence("admission.missing", webhook=PODS_WEBHOOK)
        why = _why_not_registered(pods)
        if why is not None:
            return why
        if leases is None or leases.get("clientConfig") != pods.get("clientConfig"):
            return sentence("admission.no_probe", webhook=LEASES_WEBHOOK)
        for name, namespace in ((LEASES_WEBHOOK, self._namespace), *((PODS_WEBHOOK, name) for name in namespaces)):
            if not selects_labels(hooks[name].get("namespaceSelector") or {}, self._labels_of(namespace)):
                is_own = name == LEASES_WEBHOOK
                code = "admission.leaves_out_own" if is_own else "admission.leaves_out"
                return sentence(code, webhook=name, namespace=namespace)
        return None if self._is_answered() else sentence("admission.silent")

    def left_out(self, webhook: str, pods: Sequence[tuple[str, Mapping[str, str]]]) -> Sentence | None:
        """Why another program's webhook is not asked about new pods; None where it is.

        Args:
            pods: namespace and labels of each pod that is to come.
        """
        hook = self._hooks().get(webhook)
        if hook is None:
            return sentence("admission.missing", webhook=webhook)
        why = _why_not_asked(webhook, hook)
        if why is not None:
            return why
        known: dict[str, Mapping[str, str]] = {}
        for namespace, labels in pods:
            if namespace not in known:
                known[namespace] = self._labels_of(namespace)
            if not selects_labels(hook.get("namespaceSelector") or {}, known[namespace]):
                return sentence("admission.leaves_out", webhook=webhook, namespace=namespace)
            if not selects_labels(hook.get("objectSelector") or {}, labels):
                return sentence("admission.leaves_out_pods", webhook=webhook, namespace=namespace)
        return None

    def _hooks(self) -> Mapping[str, Mapping[str, Any]]:
        listed = self._api.get(Deed(verb="list", resource=_RESOURCE), _PATH) or {}
        return {
            str(hook.get("name")): hook for item in listed.get("items") or () for hook in item.get("webhooks") or ()
        }

    def _labels_of(self, namespace: str) -> Mapping[str, str]:
        deed = Deed(verb="get", resource="namespaces", name=namespace)
        found = self._api.get(deed, f"/api/v1/namespaces/{namespace}") or {"metadata": {}}
        labels: Mapping[str, str] = found["metadata"].get("labels") or {}
        return labels

    def _is_answered(self) -> bool:
        word = secrets.token_hex(8)
        for _ in range(_RACES_MAX):
            found = self._leases.get(LEASE_NAME)
            annotations = {**((found or {}).get("metadata", {}).get("annotations") or {}), ASKED_ANNOTATION: word}
            try:
                written = self._leases.put(LEASE_NAME, found, {"metadata": {"annotations": annotations}}, _DRY_RUN)
            except Conflict:
                # Its holder renewed it just now.
                continue
            return (written["metadata"].get("annotations") or {}).get(ANSWERED_ANNOTATION) == word
        return False


def _why_not_asked(name: str, hook: Mapping[str, Any]) -> Sentence | None:
    if not any(_takes_new_pods(rule) for rule in hook.get("rules") or ()):
        return sentence("admission.no_rule", webhook=name)
    if not (hook.get("clientConfig") or {}).get("caBundle"):
        return sentence("admission.no_authority", webhook=name)
    return None


def _why_not_registered(hook: Mapping[str, Any]) -> Sentence | None:
    why = _why_not_asked(PODS_WEBHOOK, hook)
    if why is not None:
        return why
    for narrowing in ("objectSelector", "matchConditions"):
        if hook.get(narrowing):
            return sentence("admission.narrowed", webhook=PODS_WEBHOOK, field=narrowing)
    if hook.get("failurePolicy") != "Ignore":
        policy = str(hook.get("failurePolicy"))
        return sentence("admission.failure_policy", webhook=PODS_WEBHOOK, policy=policy)
    return None


def _takes_new_pods(rule: Mapping[str, Any]) -> bool:
    wanted = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods", "*/*"]}
    return rule.get("scope") != "Cluster" and all(
        any(name in (rule.get(key) or ()) for name in ("*", *names)) for key, names in wanted.items()
    )
