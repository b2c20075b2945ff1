"""An intake whose every answer is checked against the plain reading of the same body."""

from __future__ import annotations

import math
from collections.abc import Mapping

from fleet.schema import POD_USAGE
from pipeline.receiver.intake import Intake
from pipeline.records.rows import unpack
from pipeline.remote_write.decode import Version
from tests.fuzz.hostile_bodies import START_MS
from tests.fuzz.reference_decoder import BrokenBody, ReferenceSample, samples_of
from tests.pipeline.builders import intake_of, series_table

DAY_MS = 86_400_000
_SURE = {b"__name__": b"gputide_slice_duty_cycle_ratio", b"cluster": b"c1", b"container": b"server",
         b"namespace": b"team", b"node": b"n1"}  # fmt: skip


class JudgedIntake:
    """Takes bodies and says what is wrong with the answers."""

    lanes = 1

    def __init__(self) -> None:
        self._carried: list[bytes] = []
        self._intake: Intake = intake_of(self, series_table(series_max=5000))
        self.answers: dict[int, int] = {}

    def append_all(self, payloads: Mapping[int, bytes]) -> None:
        """The bus's side: keeps what it is given."""
        self._carried += payloads.values()

    def fault_of(self, body: bytes, version: int) -> str | None:
        """What is wrong with what the intake makes of a body; None where nothing is."""
        if self._intake.series > 4000:
            self._intake = intake_of(self, series_table(series_max=5000))
        self._carried.clear()
        repeats = self._intake.counts["repeats"]
        answer = self._intake.take(body, Version(version))
        self.answers[answer.status] = self.answers.get(answer.status, 0) + 1
        if answer.status not in (204, 400, 413):
            return f"an answer of {answer.status}: {answer.text}"
        if answer.status != 204:
            return None if answer.text and "\n" not in answer.text else "a refusal without one readable line"
        if self._intake.counts["repeats"] > repeats:
            return None
        try:
            expected = samples_of(body, version)
        except BrokenBody as exc:
            return f"204 for a body that can't be read: {exc}"
        if answer.samples != len(expected):
            return f"204 for {answer.samples} samples of {len(expected)}"
        return self._missing(expected)

    def _missing(self, expected: list[ReferenceSample]) -> str | None:
        # Broken labels make rows of other identities for the same pod and time, so that a place may hold several.
        written: dict[tuple[str, int], set[float]] = {}
        for record in self._carried:
            for section in unpack(record):
                if section.table is not POD_USAGE:
                    continue
                pods = section.identities.column("pod").to_pylist()
                rows = zip(section.identity.tolist(), section.ts_ms.tolist(), section.values[0].tolist(), strict=True)
                for place, ts_ms, value in rows:
                    written.setdefault((pods[place], ts_ms), set()).add(value)
        # Several series of a body may speak of one pod and time (a card's own names its tenant, in percent or not).
        sent: dict[int, set[float]] = {}
        for sample in expected:
            sent.setdefault(sample.ts_ms, set()).update((sample.value, sample.value * 0.01))
        for sample in filter(is_sure, expected):
            where = (dict(sample.labels)[b"pod"].decode(), sample.ts_ms)
            if where not in written:
                return f"204, and nothing of {where} is on the bus"
            if not written[where] & sent[sample.ts_ms]:
                return f"204, and {where} is {written[where]} on the bus, which nobody sent"
        return None


def is_sure(sample: ReferenceSample) -> bool:
    """True for a sample that must be written as it is."""
    labels = dict(sample.labels)
    return (
        len(sample.labels) == len(labels) == 7
        and all(labels.get(name) == value for name, value in _SURE.items())
        and labels.get(b"pod", b"").isascii()
        and labels.get(b"pod", b"").startswith(b"pod-")
        and labels.get(b"card", b"").startswith(b"GPU-")
        and math.isfinite(sample.value)
        and 0 <= sample.value <= 1
        and START_MS <= sample.ts_ms < START_MS + DAY_MS
    )
