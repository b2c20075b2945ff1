"""What an API server's refusal means: wait, read anew, ask somebody for a right, or leave the change be.

`wire.kubernetes.read` makes an error of every answer that is neither a success nor an absence.

Sources: kubernetes/apimachinery:pkg/apis/meta/v1/types.go (Status, StatusReason),
kubernetes/apiserver:pkg/endpoints/handlers/responsewriters/errors.go (the words of a missing right),
kubernetes/kubernetes:pkg/registry/core/pod/storage/eviction.go (the causes of a refused eviction).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from fleet.errors import GputideError, Misconfigured, Refused, Unavailable
from wire.http_answer import unavailable

_SAID_BEGIN_MAX = 100
_SAID_END_MAX = 300
_BUDGET_CAUSE = "DisruptionBudget"
_MANY_BUDGETS = "more than one PodDisruptionBudget"
_READS = ("get", "list", "watch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Deed:
    """What was asked of the server, in the words of roles.

    Attributes:
        verb: get, list, watch, create, update, patch or delete.
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


class Forbidden(Misconfigured):
    """The API server does not know who asks, or that they may; one that has just started knows neither yet."""


class BudgetForbids(Unavailable):
    """A disruption budget forbids an eviction now; the message names it."""


class Expired(Unavailable):
    """The version, or the token of the next page, is too old for the API server: the list must be read anew."""


def refusal(
    deed: Deed, status: int, told: Mapping[str, object], retry_after: str | None, *, rules_file: str
) -> GputideError:
    """The error of an answer.

    Args:
        status: HTTP status, 300 or more.
        told: the `Status` object, or empty.
        rules_file: where the rights are written that this process needs.

    Returns:
        `Forbidden` for a right that a person must give, Refused for a change that the server will not make however
        often it is asked, Unavailable (`Busy` where it says for how long) for what may work later.
    """
    said = _shortened(str(told.get("message", "")))
    what = f"cannot {deed}"
    is_read = deed.verb in _READS
    match status:
        case HTTPStatus.UNAUTHORIZED:
            return Forbidden(f"{what}: the API server does not know who asks ({said}); check token and kubeconfig")
        case HTTPStatus.FORBIDDEN if is_read or f" cannot {deed.verb} resource" in str(told.get("message", "")):
            where = f"in namespace {deed.namespace}" if deed.namespace else "in the whole cluster"
            return Forbidden(
                f"{what}: RBAC lacks verb {deed.verb} on resource {deed.resource} {where} ({said}); add rule "
                f"{_rule(deed)} of {rules_file}"
            )
        case HTTPStatus.CONFLICT if not is_read:
            return Conflict(f"{what}: {said}")
        case HTTPStatus.GONE:
            return Expired(f"{what}: what was read is too old to go on from: {said}")
        case HTTPStatus.NOT_FOUND if is_read:
            return Expired(f"{what}: it is not served any more")
        case HTTPStatus.TOO_MANY_REQUESTS if _budget(told) is not None:
            return BudgetForbids(f"{what}: a disruption budget forbids it now: {_budget(told)}")
        case HTTPStatus.INTERNAL_SERVER_ERROR if not is_read and _MANY_BUDGETS in said:
            return Refused(f"{what}: {said}")
    return _any_other(f"{what}: status {status}: {said}", status, retry_after, is_read=is_read)


def _any_other(message: str, status: int, retry_after: str | None, *, is_read: bool) -> GputideError:
    is_for_now = is_read or status in (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS)
    if not is_for_now and status < HTTPStatus.INTERNAL_SERVER_ERROR:
        return Refused(message)
    return unavailable(message, retry_after)


def status_of(body: bytes | bytearray) -> dict[str, Any]:
    """The `Status` that a refusal's body holds; its beginning as the message where it holds none."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {"message": body[:_SAID_END_MAX].decode(errors="replace")}
    return found if isinstance(found, dict) else {}


def _rule(deed: Deed) -> str:
    resource, _, group = deed.resource.partition(".")
    verbs = '["list", "watch"]' if deed.verb in ("list", "watch") else f'["{deed.verb}"]'
    return f'{{apiGroups: ["{group}"], resources: ["{resource}"], verbs: {verbs}}}'


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
