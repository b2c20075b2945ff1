"""What leaves the house: one POST of a chat service or webhook, before anybody sends it.

Each `format_…` module makes one from a message; `delivery_http` sends it, a dry run writes it to a file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """Where a service takes messages, as its owner gave it; both are secrets.

    Attributes:
        url: address.
        secret: signing key; None where the service or its owner wants none.
    """

    url: str = field(repr=False)
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One POST.

    Attributes:
        url: address, with what the service wants signed in it.
        body: JSON.
        headers: beside the content's type.
        refusal_of: reads the service's answer (its body) and says why the message was not taken; None where it was.
    """

    url: str = field(repr=False)
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    refusal_of: Callable[[bytes], Refusal | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a service that answered 200 did not take a message.

    Attributes:
        reason: its words, cut.
        is_passing: True where the same message may be taken later: too many at once.
    """

    reason: str
    is_passing: bool


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """Compact JSON in UTF-8."""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def takes_all(_: bytes) -> Refusal | None:
    """For services that say everything with the status."""
    return None


def code_in(*names: str, passing: frozenset[int]) -> Callable[[bytes], Refusal | None]:
    """A reader of answers that carry a number, 0 for taken.

    Args:
        *names: fields that may hold it; the first that is there counts.
        passing: numbers that say: too many at once.
    """

    def refusal_of(body: bytes) -> Refusal | None:
        try:
            content = json.loads(body)
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict):
            return Refusal(reason="the answer is no JSON object: is this the address of the hook?", is_passing=False)
        found = next((content[name] for name in names if name in content), None)
        if found == 0:
            return None
        words = next((str(content[name]) for name in ("errmsg", "msg", "StatusMessage") if name in content), "")
        return Refusal(
            reason=f"{str(found)[:20]}: {words[:200]}", is_passing=isinstance(found, int) and found in passing
        )

    return refusal_of
