"""Each kind of failure ends the program with its own exit status."""

import pytest

from fleet import errors


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (errors.Misconfigured, 2),
        (errors.NotEnoughData, 3),
        (errors.Refused, 4),
        (errors.Unavailable, 5),
        (errors.Corrupt, 6),
    ],
)
def test_exit_statuses_are_those_of_the_command_line(kind: type[errors.GputideError], status: int) -> None:
    assert kind("x").exit_status == status
