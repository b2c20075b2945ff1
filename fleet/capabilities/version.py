"""Versions of a backend as its images are tagged, and which record holds for one.

A record holds from its `since` on, until the record of the backend that follows it. Imports nothing outside the
standard library.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fleet.capabilities.capability import Capabilities
from fleet.errors import Refused
from fleet.sentences import Sentence, sentence

VERSION_SETTING = "enforcer.backend_version"

_TAG = re.compile(
    r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?:-(alpha|beta|rc)[.0-9]*)?(?:[-+][0-9A-Za-z.+-]*)?", re.ASCII
)


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """One version; what comes before a release (`-alpha.0`, `-rc.1`) is older than the release."""

    major: int
    minor: int
    patch: int = 0
    is_release: bool = True

    def __str__(self) -> str:
        """As it is tagged, without the number of a pre-release."""
        return f"{self.major}.{self.minor}.{self.patch}{'' if self.is_release else '-pre'}"


def parse_version(tag: str) -> Version | None:
    """Read a tag of an image, such as `v2.10.0`, `1.16.0-alpha.1` or `v0.17.0-ubi9`.

    Returns:
        None where it names no version, such as `latest`.
    """
    found = _TAG.fullmatch(tag)
    if found is None:
        return None
    return Version(int(found[1]), int(found[2]), int(found[3] or 0), found[4] is None)


def record_for(records: Sequence[Capabilities], tag: str | None) -> Capabilities:
    """The record of a backend that holds for a version.

    Args:
        records: those of one backend, oldest first.
        tag: its version; None, or what names none, counts as the newest that is known.

    Raises:
        Refused: it is older than the oldest that is known.
    """
    version = None if tag is None else parse_version(tag)
    if version is None:
        return records[-1]
    oldest = records[0].since
    fitting = [record for record in records if record.since is None or _least(record.since) <= version]
    if not fitting:
        raise Refused(
            f"cannot use {records[0].backend} {tag}: older than {oldest}, the oldest version whose facts are known; "
            f"update it, or set {VERSION_SETTING} where its image is tagged otherwise than it is"
        )
    return fitting[-1]


def version_note(records: Sequence[Capabilities], tag: str | None) -> Sentence | None:
    """What is to be said of a version: that it is newer than what is known; None where nothing is."""
    version, known = None if tag is None else parse_version(tag), records[-1].known_to
    if version is None or known is None:
        return None
    newest = _least(known)
    if (version.major, version.minor) <= (newest.major, newest.minor):
        return None
    return sentence("doctor.found.version_newer", backend=records[-1].backend, version=str(tag), known=known)


def _least(text: str) -> Version:
    found = parse_version(text)
    if found is None:
        raise ValueError(f"{text!r} is no version")
    return found
