"""The kinds of failure that every room shares, and the exit status that each one ends the program with.

Rooms raise these four (and `NotEnoughData`, an answer rather than a fault); the command line alone turns them into
an exit status. Anything else that escapes is a bug and ends with status 70.

Message conventions: say what could not be done, with the value, the limit and the knob, in one line without a full
stop: `cannot decode remote-write body of 33554433 bytes: larger than receiver.body_bytes_max=33554432`. Name the
setting by its dotted name, the file by its path, the place in it by row or key. Chain the cause: `raise
Unavailable(...) from exc`.

What pages show is raised as a `Sentence`: they say it in the reader's language, and it prints in English.

This module imports next to nothing, so that any process can afford it.
"""

from __future__ import annotations

from typing import ClassVar

from fleet.sentences import Sentence

EXIT_FINE = 0
"""The work was done."""

EXIT_FINDINGS = 1
"""The work was done, and there are findings or savings over the threshold that was asked for."""

EXIT_BUG = 70
"""An error of ours that no kind below describes (`EX_SOFTWARE` of sysexits.h)."""


class GputideError(Exception):
    """What every foreseen failure derives from; never raised itself.

    Attributes:
        exit_status: the process's exit status when the command line sees the failure.
        said: what could not be done; a text where only the command line and logs show it.
    """

    exit_status: ClassVar[int] = EXIT_BUG

    def __init__(self, said: Sentence | str) -> None:
        super().__init__(said)
        self.said = said


class Misconfigured(GputideError):
    """The user must change an option, a setting or an environment variable: trying again as it stands can't help."""

    exit_status: ClassVar[int] = 2


class NotEnoughData(GputideError):
    """What was asked for can't be answered honestly from the history at hand; the message says what is missing."""

    exit_status: ClassVar[int] = 3


class Refused(GputideError):
    """A guard said no: nothing was changed, and the message says which guard and how to satisfy it."""

    exit_status: ClassVar[int] = 4


class Unavailable(GputideError):
    """A service or device could not be reached or is busy; trying again later, with back-off, may help."""

    exit_status: ClassVar[int] = 5


class Corrupt(GputideError):
    """Given or stored data can't be read, or storage can't take more; on a stream: count, log once, drop, go on."""

    exit_status: ClassVar[int] = 6
