"""A kubeconfig as a file, for whoever reads a simulated API server."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_kubeconfig(
    folder: Path, server: str, *, user: Mapping[str, Any] | None = None, cluster: Mapping[str, Any] | None = None
) -> Path:
    """Write `kubeconfig` of one context; who asks has a token unless told."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "t",
        "clusters": [{"name": "c", "cluster": {"server": server, **(cluster or {})}}],
        "users": [{"name": "u", "user": {"token": "secret"} if user is None else dict(user)}],
        "contexts": [{"name": "t", "context": {"cluster": "c", "user": "u"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(document), encoding="utf-8")
    return path
