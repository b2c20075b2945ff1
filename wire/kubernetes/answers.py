"""What an API server's refusal says.

Source: kubernetes/apimachinery:pkg/apis/meta/v1 (Status).
"""

from __future__ import annotations

import json
from collections.abc import Mapping

_SAID_LENGTH_MAX = 300


def said(told: bytearray | Mapping[str, object]) -> str:
    """What a refusal says, cut."""
    if isinstance(told, bytearray):
        try:
            decoded = json.loads(told)
        except (ValueError, RecursionError):
            return told[:_SAID_LENGTH_MAX].decode(errors="replace")
        told = decoded if isinstance(decoded, dict) else {}
    return str(told.get("message", ""))[:_SAID_LENGTH_MAX]
