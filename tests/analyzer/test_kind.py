"""What a workload is for."""

import pytest

from fleet.inventory import Priority
from fleet.profiles import WorkloadClass
from fleet.schema import Measure
from tests.analyzer.build import Slice, history, noise, profile, work


@pytest.mark.parametrize(
    ("kind", "server", "priority", "wanted"),
    [
        ("Deployment", "vllm", Priority.HIGH, WorkloadClass.INFERENCE),
        ("Deployment", "triton", Priority.LOW, WorkloadClass.NEAR_LINE),
        ("Notebook", "jupyter", Priority.NORMAL, WorkloadClass.NOTEBOOK),
        ("StatefulSet", "jupyter", Priority.NORMAL, WorkloadClass.NOTEBOOK),
        ("Job", "pytorch", Priority.LOW, WorkloadClass.TRAINING),
        ("PyTorchJob", None, Priority.LOW, WorkloadClass.TRAINING),
        ("Job", "vllm", Priority.LOW, WorkloadClass.NEAR_LINE),
        ("CronJob", None, Priority.LOW, WorkloadClass.NEAR_LINE),
        ("Deployment", "ffmpeg", Priority.NORMAL, WorkloadClass.TRANSCODING),
    ],
)
def test_kind_and_server_tell_the_class(
    kind: str, server: str | None, priority: Priority, wanted: WorkloadClass
) -> None:
    given = history([Slice(kind=kind, server=server, priority=priority, usage=work(noise(2, low=0.1, high=0.9)))])
    assert profile(given).workload_class is wanted


def test_busy_video_engines_tell_a_transcoder_whose_labels_are_silent() -> None:
    usage = {**work(noise(2, low=0.0, high=0.01)), Measure.ENCODER: noise(2, low=0.3, high=0.6)}
    said = profile(history([Slice(server=None, usage=usage)]))
    assert said.workload_class is WorkloadClass.TRANSCODING
    assert said.engines is not None
    assert said.engines.encoder_max == pytest.approx(0.6, abs=0.01)
    assert said.engines.decoder_max is None


def test_steady_high_load_tells_training_and_silence_tells_nothing() -> None:
    steady = history([Slice(server=None, usage=work(noise(2, low=0.7, high=0.95)))])
    spiky = history([Slice(server=None, usage=work(noise(2, low=0.0, high=0.3)))])
    assert profile(steady).workload_class is WorkloadClass.TRAINING
    assert profile(spiky).workload_class is WorkloadClass.UNKNOWN


def test_requests_tell_a_service_and_are_summed_over_replicas() -> None:
    usage = {**work(noise(2, low=0.1, high=0.9)), Measure.REQUEST_RATE: 5.0}
    said = profile(history([Slice(server=None, usage=usage), Slice(server=None, usage=usage)]))
    assert said.workload_class is WorkloadClass.INFERENCE
    assert said.request_rate is not None
    assert said.request_rate.p95 == pytest.approx(10.0)
