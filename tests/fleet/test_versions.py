"""Versions of backends: how tags are read and compared, and which record holds for one."""

import pytest

from fleet.capabilities.register import CAPABILITIES, OLDER, capabilities_of, records_of
from fleet.capabilities.version import parse_version, version_note


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("v2.8.1", "v2.10.0"),
        ("v1.16.0-alpha.1", "v1.16.0"),
        ("v1.15.1", "v1.16.0-alpha.0"),
        ("v0.17.0-ubi9", "v0.17.1"),
        ("1.9", "1.9.1"),
    ],
)
def test_versions_are_ordered_as_they_are_released(older: str, newer: str) -> None:
    first, second = parse_version(older), parse_version(newer)
    assert first is not None
    assert second is not None
    assert first < second


def test_suffix_of_an_image_is_no_pre_release() -> None:
    assert parse_version("v0.17.0-ubi9") == parse_version("0.17.0")


@pytest.mark.parametrize("tag", ["latest", "", "main", "v2", "sha-12ab", "9" * 30 + ".1"])
def test_tag_without_a_version_names_none(tag: str) -> None:
    assert parse_version(tag) is None


def test_records_of_a_backend_follow_one_another() -> None:
    for backend in {record.backend for record in OLDER}:
        since = [parse_version(record.since or "") for record in records_of(backend)]
        assert None not in since
        assert since == sorted(version for version in since if version is not None)
        assert records_of(backend)[-1] in CAPABILITIES


def test_unknown_version_counts_as_the_newest_that_is_known() -> None:
    for record in CAPABILITIES:
        assert capabilities_of(record.backend) is record
        assert capabilities_of(record.backend, "v999.0.0") is record
        note = version_note(records_of(record.backend), "v999.0.0")
        assert (note is None) is (record.known_to is None)
        assert version_note(records_of(record.backend), record.known_to) is None
