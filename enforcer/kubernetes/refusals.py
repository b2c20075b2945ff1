"""What an API server's refusal means to the enforcer: wait, ask somebody for a right, or leave the change be.

Called by the client for every answer that is neither a success nor an absence.

Sources: kubernetes/apimachinery:pkg/apis/meta/v1/types.go (Status, StatusReason),
kubernetes/apiserver:pkg/endpoints/handlers/responsewriters/errors.go (the words of a missing right),
kubernetes/kubernetes:pkg/registry/core/pod/storage/eviction.go (the causes of a refused eviction).
"""

from __future__ import annotations

import http.client
from collections.abc import Mapping
from dataclasses import dataclass

from fleet.errors import GputideError, Misconfigured, Refused, Unavailable
from wire.http_answer import Busy

RULES_FILE = "docs/rbac-writer.yaml"

_SAID_BEGIN_MAX = 100
_SAID_END_MAX = 300
_BUDGET_CAUSE = "DisruptionBudget"
_MANY_BUDGETS = "more than one PodDisruptionBudget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """What was asked of the server, in the words of roles.

    Attributes:
        verb: get, list, create, update or patch.
        resource: `deployments.apps`, `pods/eviction`.
        namespace: empty for none, or all.
        name: empty for a list.
        word: what messages call it; None for the verb.
    """

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""
    word: str | None = None

    def __str__(self) -> str:
        place = "/".join(part for part in (self.namespace, self.name) if part)
        return f"{self.word or self.verb} {self.resource}{' ' if place else ''}{place}"


class Conflict(Refused):
    """The object is there in another version than the one that the write depends on."""


class BudgetForbids(Unavailable):
    """A disruption budget forbids an eviction now; the message names it."""


class Expired(Unavailable):
    """The token of the next page is too old: the list must be read anew."""


def refusal(deed: Deed, status: int, told: Mapping[str, object], retry_after: str | None) -> GputideError:
    """The error of an answer.

    Args:
        deed: what was asked.
        status: HTTP status, 300 or more.
        told: the `Status` object, or empty.
        retry_after: header of that name.

    Returns:
        Misconfigured for what a person must set right, Refused for what the server will not do however often it is
        asked, Unavailable (`Busy` where it says for how long) for what may work later.
    """
    said = _shortened(str(told.get("message", "")))
    what = f"cannot {deed}"
    match status:
        case http.client.UNAUTHORIZED:
            return Misconfigured(
                f"{what}: the API server does not know who asks ({said}); check enforcer.kubeconfig and its token"
            )
        case http.client.FORBIDDEN if f" cannot {deed.verb} resource" in str(told.get("message", "")):
            where = f"in namespace {deed.namespace}" if deed.namespace else "in the whole cluster"
            return Misconfigured(
                f"{what}: RBAC lacks verb {deed.verb} on resource {deed.resource} {where} ({said}); see {RULES_FILE}"
            )
        case http.client.CONFLICT:
            return Conflict(f"{what}: {said}")
        case http.client.GONE:
            return Expired(f"{what}: {said}")
        case http.client.TOO_MANY_REQUESTS if _budget(told) is not None:
            return BudgetForbids(f"{what}: a disruption budget forbids it now: {_budget(told)}")
        case http.client.INTERNAL_SERVER_ERROR if _MANY_BUDGETS in said:
            return Refused(f"{what}: {said}")
    return _any_other(f"{what}: status {status}: {said}", status, retry_after)


def _any_other(message: str, status: int, retry_after: str | None) -> GputideError:
    is_for_now = status in (http.client.REQUEST_TIMEOUT, http.client.TOO_MANY_REQUESTS)
    if not is_for_now and status < http.client.INTERNAL_SERVER_ERROR:
        return Refused(message)
    if retry_after is not None and retry_after.isascii() and retry_after.isdigit():
        return Busy(message, retry_after_seconds=float(retry_after[:9]))
    return Unavailable(message)


def _budget(told: Mapping[str, object]) -> str | None:
    """What a refused eviction says of the budget in its way, its name among it."""
    details = told.get("details")
    causes = details.get("causes") if isinstance(details, Mapping) else None
    for cause in causes if isinstance(causes, list) else ():
        if isinstance(cause, Mapping) and cause.get("reason") == _BUDGET_CAUSE:
            return _shortened(str(cause.get("message", "")))
    return None


def _shortened(said: str) -> str:
    """Beginning and end: of what it takes for wrong, the server quotes the whole object in between."""
    if len(said) <= _SAID_BEGIN_MAX + _SAID_END_MAX:
        return said
    return f"{said[:_SAID_BEGIN_MAX]} … {said[-_SAID_END_MAX:]}"
