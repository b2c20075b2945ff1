"""The OpenAPI 3.1 document of the API, made from its operations.

Source of the format: spec.openapis.org/oas/v3.1.0.
"""

from __future__ import annotations

from typing import Any

from dashboards.api.operations import OPERATIONS, Operation

BASE = "/api/v1"
ERRORS = {
    400: "The request is not what the operation takes; `error` names the value and what was expected.",
    401: "You are not known, or your session has ended.",
    403: "You may not do this; `error` says who may.",
    404: "There is nothing of this name, or you may not see it.",
    405: "Another method is expected.",
    409: "A guard says no; `error` says why.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    503: "A service that this needs can't be reached, or data can't be read.",
}


def openapi() -> dict[str, Any]:
    """The document."""
    paths: dict[str, dict[str, Any]] = {
        "/me": {"get": _described("me", "Who you are, and what a browser must send to change anything.",
                                  ("name", "role", "page_token"), 200)},
    }  # fmt: skip
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gputide",
            "version": "1",
            "description": "Where GPUs idle, what to do about it, and what came of it.",
        },
        "servers": [{"url": BASE}],
        "security": [{"token": []}, {"session": [], "page": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer", "description": "A token of dashboard.rights_file."},
                "session": {"type": "apiKey", "in": "cookie", "name": "gputide"},
                "page": {
                    "type": "apiKey", "in": "header", "name": "X-Gputide-Token",
                    "description": "`page_token` of /me; whatever changes something needs it beside a session.",
                },
            },
            "schemas": {
                "Error": {
                    "type": "object",
                    "properties": {"error": {"type": "string", "minLength": 1}},
                    "required": ["error"],
                    "additionalProperties": False,
                },
                "Stages": _stages_schema(),
            },
        },
    }  # fmt: skip


def _operation(operation: Operation) -> dict[str, Any]:
    found = _described(operation.name, operation.says, operation.required, operation.status)
    found["parameters"] = [
        {"name": name, "in": "path", "required": True, "schema": dict(schema)}
        for name, schema in operation.parameters.items()
    ] + [
        {"name": name, "in": "query", "required": False, "schema": dict(schema)}
        | ({"style": "form", "explode": False} if schema["type"] == "array" else {})
        for name, schema in operation.query.items()
    ]
    if operation.takes_stages:
        content = {"application/json": {"schema": {"$ref": "#/components/schemas/Stages"}}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _described(name: str, says: str, required: tuple[str, ...], status: int) -> dict[str, Any]:
    schema = {"type": "object", "required": list(required)}
    return {
        "operationId": name,
        "summary": says,
        "responses": {
            str(status): {"description": "The answer.", "content": {"application/json": {"schema": schema}}},
            **{
                str(code): {
                    "description": words,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
                }
                for code, words in ERRORS.items()
            },
        },
    }


def _stages_schema() -> dict[str, Any]:
    described = next(operation for operation in OPERATIONS if operation.name == "preview").query["stages"]
    return {
        "type": "object",
        "properties": {"stages": dict(described)},
        "required": ["stages"],
        "additionalProperties": False,
    }
