"""Who keeps an object equal to a repository: a field that we changed there would be changed back, so we don't.

Pure. The guard refuses such owners; their change goes into the repository as a patch file.

Source: argoproj/argo-cd:docs/user-guide/resource_tracking.md, fluxcd/kustomize-controller:api/v1,
fluxcd/helm-controller:api/v2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_MARKS = (
    ("argocd.argoproj.io/tracking-id", "Argo CD"),
    ("argocd.argoproj.io/instance", "Argo CD"),
    ("kustomize.toolkit.fluxcd.io/name", "Flux"),
    ("helm.toolkit.fluxcd.io/name", "Flux"),
)


def gitops_manager(manifest: Mapping[str, Any]) -> str | None:
    """The tool that keeps an object, with the mark that says so; None where there is no such mark."""
    metadata = manifest.get("metadata", {})
    for key, tool in _MARKS:
        for part in ("annotations", "labels"):
            value = (metadata.get(part) or {}).get(key)
            if value:
                return f"{tool} ({key}={str(value)[:128]})"
    return None
