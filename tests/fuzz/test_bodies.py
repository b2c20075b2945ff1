"""Ten thousand hostile bodies in the quick tier; `make fuzz` takes a million."""

from __future__ import annotations

import pytest

from fleet.schema import Measure
from pipeline.remote_write.decode import Version
from tests.fuzz.hostile_bodies import HostileBodies
from tests.fuzz.judged_intake import JudgedIntake
from tests.fuzz.reference_decoder import BrokenBody, samples_of
from tests.pipeline.builders import START_MS, Sample, body_of, labels_of

pytestmark = pytest.mark.long

SEEDS = range(5)
BODIES_PER_SEED = 2000


@pytest.mark.parametrize("seed", SEEDS)
def test_no_hostile_body_is_acknowledged_without_being_written_or_does_worse(seed: int) -> None:
    bodies, intake = HostileBodies(seed), JudgedIntake()
    for number in range(BODIES_PER_SEED):
        body, version = bodies.next()
        fault = intake.fault_of(body, version)
        assert fault is None, f"seed {seed}, body {number} ({body.hex()}) as version {version}: {fault}"
    assert min(intake.answers[204], intake.answers[400]) > BODIES_PER_SEED // 5


@pytest.mark.parametrize("version", [1, 2])
def test_reference_reads_what_was_sent(version: int) -> None:
    sent = [Sample(pod, Measure.DUTY_CYCLE, START_MS + pod, pod / 8) for pod in range(8)]
    found = samples_of(body_of(sent, Version(version)), version)
    assert [(sample.ts_ms, sample.value) for sample in found] == [(sample.ts_ms, sample.value) for sample in sent]
    labels = {name.encode(): value.encode() for name, value in labels_of(sent[3]).items()}
    assert dict(found[3].labels) == labels


@pytest.mark.parametrize("body", [b"", b"\x05", b"\x05\x10abc", b"\x03\x08abcd", b"\x05\x01\x00"])
def test_reference_refuses_what_is_no_snappy_block(body: bytes) -> None:
    with pytest.raises(BrokenBody):
        samples_of(body, 1)
