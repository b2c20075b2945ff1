"""Answers the API's requests: checks what was sent, asks the ports, words every error as JSON.

The ports are those of the person who asks (`access/scoped`), so nothing here decides on rights.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from flask import Flask, Response, request

from dashboards.access.people import NotAllowed
from dashboards.access.sign_in import Access
from dashboards.api.operations import BASE, OPERATIONS, STAGES_BODY, Asked, Operation, fits, openapi, wanted
from dashboards.queries import Views
from fleet.errors import GputideError, Misconfigured, NotEnoughData, Refused

BODY_BYTES_MAX = 65_536
TOKEN_HEADER = "X-Gputide-Token"
_DIGITS = re.compile(r"[0-9]{1,9}", re.ASCII)


class _BadRequestError(Exception):
    """The request is not what the operation takes; the message says what was expected."""


def register(server: Flask, views: Views, access: Access) -> None:
    """Add the API to the app."""
    described = openapi()
    server.add_url_rule(f"{BASE}/openapi.json", "api_openapi", lambda: _json(described), methods=["GET"])
    server.add_url_rule(f"{BASE}/me", "api_me", lambda: _me(access), methods=["GET"])
    for operation in OPERATIONS:
        rule = BASE + re.sub(r"\{(\w+)\}", r"<string:\1>", operation.path)
        server.add_url_rule(
            rule, f"api_{operation.name}", _answering(operation, views, access), methods=[operation.method]
        )
    # Dash answers every other path with its page; below the API that would be a lie.
    server.add_url_rule(f"{BASE}/", "api_root", _nothing, methods=["GET", "POST"], strict_slashes=False)
    server.add_url_rule(
        f"{BASE}/<path:path>", "api_nothing", _nothing, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]
    )


def _answering(operation: Operation, views: Views, access: Access) -> Callable[..., Response]:
    def answer(**path: str) -> Response:
        try:
            if operation.method == "POST" and not access.is_own_request(request.headers.get(TOKEN_HEADER)):
                raise NotAllowed(f"cannot change anything without {TOKEN_HEADER}: `page_token` of {BASE}/me")
            asked = Asked(
                path=_checked_path(operation, path),
                query=_checked_query(operation),
                stages=_checked_body(operation),
                by=access.who().name,
            )
            return _json(operation.answer(views, asked), operation.status)
        except _BadRequestError as exc:
            return _json({"error": str(exc)}, 400)
        except GputideError as exc:
            return _json({"error": str(exc)}, _status(exc))

    return answer


def _me(access: Access) -> Response:
    person = access.who()
    role = person.highest_role
    return _json(
        {
            "name": person.name,
            "role": None if role is None else role.value,
            "rights": [
                {
                    "role": right.role.value,
                    "clusters": None if right.clusters is None else sorted(right.clusters),
                    "namespaces": None if right.namespaces is None else sorted(right.namespaces),
                }
                for right in person.rights
            ],
            "page_token": access.page_token(),
        }
    )


def _nothing(path: str = "") -> Response:
    known = any(re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", item.path), f"/{path}") for item in OPERATIONS)
    if known or path in ("me", "openapi.json"):
        return _json({"error": f"cannot {request.method} {BASE}/{path[:200]}: another method is expected"}, 405)
    return _json({"error": f"there is nothing at {BASE}/{path[:200]}; see {BASE}/openapi.json"}, 404)


def _checked_path(operation: Operation, path: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in path.items():
        if not fits(value, operation.parameters[name]):
            # As for a name that there is not: it can't be one.
            raise NotEnoughData(f"there is no {name} {value[:100]!r}")
    return path


def _checked_query(operation: Operation) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for name, values in request.args.lists():
        if name not in operation.query:
            expected = ", ".join(operation.query) or "none"
            raise _BadRequestError(f"unknown parameter {name[:100]!r}: expected {expected}")
        if len(values) > 1:
            raise _BadRequestError(f"{name} is given {len(values)} times: expected one")
        schema = operation.query[name]
        is_list = schema["type"] == "array"
        value = [_number(part) for part in values[0].split(",")] if is_list else _number(values[0])
        if not fits(value, schema):
            raise _BadRequestError(f"{name}={values[0][:50]!r}: expected {wanted(schema)}")
        found[name] = value
    return found


def _number(text: str) -> int | str:
    return int(text) if _DIGITS.fullmatch(text) else text


def _checked_body(operation: Operation) -> tuple[int, ...]:
    if not operation.takes_stages:
        return ()
    body = request.get_data(cache=False)
    if len(body) > BODY_BYTES_MAX:
        raise _BadRequestError(f"body of {len(body)} bytes: at most {BODY_BYTES_MAX}")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as exc:
        raise _BadRequestError(f"body is not JSON: {exc}") from exc
    if not fits(content, STAGES_BODY):
        raise _BadRequestError(f"body: expected {wanted(STAGES_BODY)}")
    return tuple(sorted(int(stage) for stage in content["stages"]))


def _status(exc: GputideError) -> int:
    if isinstance(exc, NotAllowed):
        return 403
    if isinstance(exc, NotEnoughData | Misconfigured):
        return 404
    return 409 if isinstance(exc, Refused) else 503


def _json(content: Mapping[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(content, allow_nan=False) + "\n", status=status, mimetype="application/json")
