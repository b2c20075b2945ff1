"""Settings of the forge that keeps the manifests of a cluster. A section of `fleet.settings.settings`.

The token comes from a file, as every secret does. It needs the right to write branches and to open requests, no more.
"""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator, model_validator

from fleet.settings.kinds import Section


class ForgeKind(StrEnum):
    """Whose API a forge speaks."""

    GITHUB = "github"
    GITLAB = "gitlab"
    GITEA = "gitea"
    """Forgejo's is the same."""


_PART = re.compile(r"[A-Za-z0-9_.\-]{1,100}")
_API = {ForgeKind.GITHUB: "https://api.github.com", ForgeKind.GITLAB: "https://gitlab.com/api/v4"}


class ForgeSettings(Section):
    """Where approved stages become pull requests (merge requests in GitLab)."""

    kind: ForgeKind | None = None
    """Whose API it speaks: github, gitlab, or gitea (Forgejo too); none: no forge."""
    url: str | None = None
    """Address of its API, such as https://git.example.org/api/v1; none for that of github.com or gitlab.com."""
    repository: str | None = Field(default=None, max_length=300)
    """OWNER/NAME of the repository; in GitLab with all groups above it."""
    base_branch: str = Field(default="main", pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.\-/]{0,99}$")
    """Branch that requests are against; it is never written to."""
    path: str = Field(default="", max_length=300)
    """Folder of the cluster's manifests; only below it is anything read or written. Empty: the whole repository."""
    token_file: Path | None = None
    """File with a token that may write branches and open requests."""
    ca_file: Path | None = None
    """File with certificates (PEM) that are trusted instead of the system's."""

    @field_validator("repository", "path", "base_branch")
    @classmethod
    def _is_plain(cls, value: str | None) -> str | None:
        for part in value.split("/") if value else ():
            if not _PART.fullmatch(part) or part in (".", "..") or part.lower() == ".git" or part.endswith(".lock"):
                raise ValueError(
                    f"{value!r} has the part {part!r}: expected letters, digits, and . _ - between slashes"
                )
        return value

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.kind is None:
            return self
        if self.repository is None or "/" not in self.repository or self.token_file is None:
            raise ValueError(f"a forge of kind {self.kind} needs repository (OWNER/NAME) and token_file")
        if self.kind is not ForgeKind.GITLAB and self.repository.count("/") != 1:
            raise ValueError(f"{self.repository!r} is no repository of {self.kind}: expected OWNER/NAME")
        if self.kind not in _API and self.url is None:
            raise ValueError(f"a forge of kind {self.kind} needs url, such as https://git.example.org/api/v1")
        return self

    @property
    def address(self) -> str:
        """Address of the API; empty where there is no forge."""
        return self.url or (_API.get(self.kind, "") if self.kind is not None else "")
