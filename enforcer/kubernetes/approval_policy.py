"""Since when the cluster holds each approval to the name of who makes it.

A ValidatingAdmissionPolicy does, together with a binding that denies what it refuses. An approval from before both
stood may bear anybody's name. Called by the store of plans and by `gputide doctor`.

Source: kubernetes/website:content/en/docs/reference/access-authn-authz/validating-admission-policy.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from enforcer.manifest import Manifest
from fleet.units import parse_time
from wire.kubernetes.refusals import Deed

UNSERVED = datetime.min.replace(tzinfo=UTC)
"""Since when, in a cluster older than Kubernetes 1.30: it has no such policies, so who may approve must be trusted."""

_NARROWING = "namespaceSelector", "objectSelector", "excludeResourceRules"
_PATH = "/apis/admissionregistration.k8s.io/v1"
_EXPRESSION = "object.spec.approvedBy == request.userInfo.username"


def guarded_since(get: Callable[[Deed, str], Manifest | None]) -> datetime | None:
    """When a policy and its binding stood, the pair that stood first; None where none does.

    Args:
        get: asks the API server for what stands at a path.

    Raises:
        Misconfigured: a right is missing.
        Unavailable: the cluster can't be reached.
    """
    policies, bindings = _listed(get, "validatingadmissionpolicies"), _listed(get, "validatingadmissionpolicybindings")
    if policies is None or bindings is None:
        return UNSERVED
    made = {policy["metadata"]["name"]: _made_at(policy) for policy in policies if _guards(policy["spec"])}
    return min(
        (
            max(_made_at(binding), made[binding["spec"]["policyName"]])
            for binding in bindings
            if binding["spec"].get("policyName") in made and _denies(binding["spec"])
        ),
        default=None,
    )


def _listed(get: Callable[[Deed, str], Manifest | None], kind: str) -> Sequence[Manifest] | None:
    found = get(Deed(verb="list", resource=f"{kind}.admissionregistration.k8s.io"), f"{_PATH}/{kind}")
    return None if found is None else found.get("items") or ()


def _guards(spec: Manifest) -> bool:
    """Whether a policy refuses every approval in another's name, wherever it is bound."""
    matched = spec.get("matchConstraints") or {}
    return (
        spec.get("failurePolicy") in (None, "Fail")
        and not spec.get("matchConditions")
        and not any(matched.get(name) for name in _NARROWING)
        and any(_takes_approvals(rule) for rule in matched.get("resourceRules") or ())
        and any(one.get("expression") == _EXPRESSION for one in spec.get("validations") or ())
    )


def _takes_approvals(rule: Manifest) -> bool:
    return (
        "gpuapprovals" in (rule.get("resources") or ())
        and "CREATE" in (rule.get("operations") or ())
        and not rule.get("resourceNames")
    )


def _denies(spec: Manifest) -> bool:
    return "Deny" in (spec.get("validationActions") or ()) and not spec.get("matchResources")


def _made_at(found: Manifest) -> datetime:
    return parse_time(str(found["metadata"]["creationTimestamp"]))
