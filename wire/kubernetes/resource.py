"""How the API serves one kind of objects: its group, its versions, its paths.

Source: kubernetes/website:content/en/docs/reference/using-api/api-concepts.md (resource URIs).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote

from fleet.errors import Refused

# A name may come from a tenant: only what can be a name becomes part of a path.
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiResource:
    """How the API serves a kind.

    Attributes:
        group: API group; empty for the core.
        versions: versions that are understood, the preferred one first.
        plural: name in the path.
        kind: as manifests name it; empty where nobody needs it.
        is_optional: a cluster may not serve it (a custom resource), and nothing is wrong then.
        metadata_only: only metadata are asked for, as the rest of the object is not needed.
    """

    group: str
    versions: tuple[str, ...]
    plural: str
    kind: str = ""
    is_namespaced: bool = True
    is_optional: bool = False
    metadata_only: bool = False

    @property
    def resource(self) -> str:
        """As roles name it: `deployments.apps`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def prefix(self, version: str) -> str:
        """Path of the group in a version."""
        return f"/apis/{self.group}/{version}" if self.group else f"/api/{version}"

    def path(self, version: str, namespace: str | None, name: str | None = None) -> str:
        """Path of a list, or of one object.

        Args:
            namespace: None for all; ignored for kinds that lie in none.
            name: None for the list.

        Raises:
            Refused: no object can have this name or namespace, so that it can't become part of a path.
        """
        parts = [self.prefix(version)]
        if self.is_namespaced and namespace is not None:
            parts += ["namespaces", self._checked(namespace, "namespace")]
        parts.append(self.plural)
        if name is not None:
            parts.append(self._checked(name, "name"))
        return "/".join(parts)

    def _checked(self, name: str, what: str) -> str:
        if not _NAME.fullmatch(name):
            raise Refused(f"cannot use {name[:64]!r} as {what} of {self.kind or self.plural}: it can't be one")
        return quote(name)
