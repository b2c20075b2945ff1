"""Who may send, and as which cluster: tokens, names with passwords, certificates, limits of each sender."""

from __future__ import annotations

import base64
import http.client
import ssl
import time
from collections import Counter
from hashlib import sha256
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from fleet.errors import Misconfigured
from fleet.listener_files import ListenerFiles
from fleet.schema import Measure
from pipeline.receiver.counts import OWN_METRICS, SharedCounts
from pipeline.receiver.intake import Intake
from pipeline.receiver.record_writer import RecordWriter
from pipeline.receiver.repeats import Repeats
from pipeline.receiver.senders import ANYONE, BURST_SECONDS, RateLimit, Sender, Senders
from pipeline.receiver.turns import Turns
from pipeline.records.rows import unpack
from pipeline.remote_write.claims import Claims
from pipeline.remote_write.label_sets import LabelLimits
from pipeline.remote_write.series_table import SeriesTable
from tests.pipeline.builders import START_MS, Sample, body_limits, body_of, file_bus, read_all
from tests.pipeline.receiving import V2, post, served
from wire.http_head import Refusal
from wire.listener_tls import ListenerContexts

CERTIFICATES = Path(__file__).with_name("certificates")
TOKEN, OTHER = "a-token-of-edge-1-0123", "a-token-of-edge-2-4567"
BODY = body_of([Sample(0, Measure.DUTY_CYCLE, START_MS, 0.5)])


def senders_of(folder, text, known=None, clock=None, **options):
    path = folder / "tokens"
    path.write_text(text)
    return Senders(
        {name: Sender(name=name, **limits) for name, limits in (known or {}).items()},
        tokens_file=path,
        **{"takes_certificates": False, "now_seconds": (lambda: clock[0]) if clock else time.monotonic, **options},
    )


def bearer(token):
    return f"Bearer {token}"


def basic(name, token):
    return "Basic " + base64.b64encode(f"{name}:{token}".encode()).decode()


def intakes(bus):
    def intake_of(sender):
        table = SeriesTable(
            default_cluster="home",
            series_max=1000,
            limits=LabelLimits(labels_max=64, label_bytes_max=2048),
            seed=7,
            claims=Claims(sender.cluster),
        )
        return Intake(RecordWriter(bus), table, turns=Turns(body_limits()), repeats=Repeats(3600, time.monotonic))

    return intake_of


def clusters(bus):
    """How many rows of which cluster are on the bus."""
    found: Counter[str] = Counter()
    for record in read_all(bus).records:
        for section in unpack(record):
            found.update(section.identities.column("cluster").to_pylist())
    return found


def connect(receiver):
    host, port = receiver.address
    return http.client.HTTPConnection(host, port, timeout=10)


def ask(receiver, authorization=None, body=BODY):
    connection = connect(receiver)
    answer, text = post(connection, body, {**V2, **({"Authorization": authorization} if authorization else {})})
    connection.close()
    return answer, text


def metric(receiver, name):
    connection = connect(receiver)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return next((float(line.split()[-1]) for line in lines if line.startswith(f"gputide_receiver_{name} ")), 0.0)


def test_without_tokens_everybody_is_anyone_and_labels_are_believed(tmp_path):
    bus = file_bus(tmp_path)
    assert (
        Senders({}, tokens_file=None, takes_certificates=False, now_seconds=time.monotonic).sender_of(None, None)
        is ANYONE
    )
    with served(intakes(bus)) as receiver:
        assert ask(receiver)[0].status == 204
    assert clusters(bus) == {"c1": 1}


@pytest.mark.parametrize("written", [TOKEN, f"sha256:{sha256(TOKEN.encode()).hexdigest()}"], ids=["plain", "digest"])
@pytest.mark.parametrize("shown", [bearer(TOKEN), f"bearer  {TOKEN} ", basic("edge-1", TOKEN)])
def test_token_names_its_sender(tmp_path, written, shown):
    senders = senders_of(tmp_path, f"# tokens\n\n{written}  edge-1\n{OTHER} edge-2\n", {"edge-1": {"cluster": "east"}})
    assert senders.sender_of(shown, None).cluster == "east"


@pytest.mark.parametrize(
    "shown",
    [
        None,
        "",
        "Bearer",
        bearer("wrong-token-0123456789"),
        bearer(TOKEN + "x"),
        bearer(f"sha256:{sha256(TOKEN.encode()).hexdigest()}"),
        f"Token {TOKEN}",
        "Basic !!!",
        basic("edge-2", TOKEN),
        basic("", TOKEN),
        basic("edge-1", ""),
        "Bearer \xff\xfe",
    ],
)
def test_unknown_sender_is_401_and_told_how_to_say_who_it_is(tmp_path, shown):
    with pytest.raises(Refusal, match="unknown sender") as refusal:
        senders_of(tmp_path, f"{TOKEN} edge-1\n").sender_of(shown, None)
    assert refusal.value.status == 401
    assert "WWW-Authenticate" in dict(refusal.value.fields)


def test_sender_that_the_settings_do_not_name_is_403_where_they_name_others(tmp_path):
    with pytest.raises(Refusal, match=r"receiver\.senders") as refusal:
        senders_of(tmp_path, f"{TOKEN} edge-1\n", {"edge-2": {"cluster": "west"}}).sender_of(bearer(TOKEN), None)
    assert refusal.value.status == 403


@pytest.mark.parametrize(
    "text", ["short edge-1", TOKEN, f"{TOKEN} edge-1 more", "sha256:abc edge-1", f"{TOKEN} a\n{TOKEN} b"]
)
def test_bad_line_of_the_tokens_file_is_named(tmp_path, text):
    with pytest.raises(Misconfigured, match=r"line \d of receiver\.tokens_file"):
        senders_of(tmp_path, text)


def test_missing_tokens_file_is_named(tmp_path):
    with pytest.raises(Misconfigured, match=r"receiver\.tokens_file=.*nowhere"):
        Senders({}, tokens_file=tmp_path / "nowhere", takes_certificates=False, now_seconds=time.monotonic)


def test_changed_tokens_are_read_again_and_a_broken_file_changes_nothing(tmp_path):
    clock = [0.0]
    senders = senders_of(tmp_path, f"{TOKEN} edge-1\n", clock=clock)
    (tmp_path / "tokens").write_text(f"{OTHER} edge-two\n")
    clock[0] += 10
    assert senders.sender_of(bearer(OTHER), None).name == "edge-two"
    with pytest.raises(Refusal):
        senders.sender_of(bearer(TOKEN), None)
    (tmp_path / "tokens").write_text("half a li")
    clock[0] += 10
    assert senders.sender_of(bearer(OTHER), None).name == "edge-two"


def test_cluster_is_the_senders_and_never_what_a_label_claims(tmp_path):
    bus = file_bus(tmp_path / "bus")
    senders = senders_of(tmp_path, f"{TOKEN} edge-1\n{OTHER} edge-2\n")
    with served(intakes(bus), senders=senders, counts=SharedCounts(senders.names).of_process(0)) as receiver:
        assert ask(receiver)[0].status == 401
        assert ask(receiver, bearer(TOKEN))[0].status == 204
        assert ask(receiver, bearer(OTHER))[0].status == 204
        assert ask(receiver, bearer(OTHER))[0].status == 204
        assert metric(receiver, "cluster_claims_overridden_total") == 2
        assert metric(receiver, "repeats_total") == 1
        assert metric(receiver, 'sender_samples_total{sender="edge-2"}') == 1
        assert metric(receiver, 'requests_total{code="401"}') == 1
        assert metric(receiver, "series") == 2
    assert clusters(bus) == {"edge-1": 1, "edge-2": 1}


def test_each_sender_has_limits_of_its_own(tmp_path):
    known = {
        "edge-1": {"cluster": "east", "series_max": 10, "body_bytes_max": 200},
        "edge-2": {"cluster": "west"},
    }
    senders = senders_of(tmp_path, f"{TOKEN} edge-1\n{OTHER} edge-2\n", known)
    with served(intakes(file_bus(tmp_path / "bus")), senders=senders) as receiver:
        three = body_of([Sample(pod, Measure.DUTY_CYCLE, START_MS, 0.5) for pod in range(3)])
        assert len(three) > 200
        assert ask(receiver, bearer(TOKEN), three)[0].status == 413
        assert ask(receiver, bearer(OTHER), three)[0].status == 204
        answers = [
            ask(receiver, bearer(TOKEN), body_of([Sample(pod, Measure.DUTY_CYCLE, START_MS, 0.5)])) for pod in range(11)
        ]
        assert [answer.status for answer, _ in answers] == [204] * 10 + [400]


def test_all_senders_together_remember_no_more_series_than_the_receiver_may(tmp_path):
    senders = senders_of(tmp_path, f"{TOKEN} edge-1\n{OTHER} edge-2\n")
    with served(intakes(file_bus(tmp_path / "bus")), {"series_max": 14}, senders=senders) as receiver:
        eight = body_of([Sample(pod, Measure.DUTY_CYCLE, START_MS, 0.5) for pod in range(8)])
        assert ask(receiver, bearer(TOKEN), eight)[0].status == 204
        answer, text = ask(receiver, bearer(OTHER), eight)
        assert answer.status == 400
        assert "cannot take 2 samples of new series: receiver.series_max=6" in text
        assert ask(receiver, bearer(OTHER), BODY)[0].status == 204


def test_sender_beyond_its_rate_is_429_and_told_when_to_come_again(tmp_path):
    known = {"edge-1": {"cluster": "east", "requests_per_second": 1}, "edge-2": {"samples_per_second": 1}}
    senders = senders_of(tmp_path, f"{TOKEN} edge-1\n{OTHER} edge-2\n", known)
    with served(intakes(file_bus(tmp_path / "bus")), senders=senders) as receiver:
        answers = [ask(receiver, bearer(TOKEN))[0] for _ in range(12)]
        assert {answer.status for answer in answers} == {204, 429}
        many = body_of([Sample(0, Measure.DUTY_CYCLE, START_MS + step, 0.5) for step in range(30)])
        assert ask(receiver, bearer(OTHER), many)[0].status == 204
        answer, text = ask(receiver, bearer(OTHER), BODY)
        assert answer.status == 429
        assert int(answer.getheader("Retry-After")) > 10
        assert "receiver.senders.edge-2.samples_per_second=1" in text
        assert metric(receiver, "refused_rate_total") >= 2


def test_rate_fills_again_with_time():
    clock = [0.0]
    limit = RateLimit(10, lambda: clock[0])
    limit.take(int(10 * BURST_SECONDS) + 25)
    assert limit.wait_seconds() == 3
    clock[0] = 2.6
    assert limit.wait_seconds() == 0


def test_counts_of_all_processes_are_summed_and_every_metric_is_explained():
    counts = SharedCounts(("edge-1",), processes=2)
    for process in range(2):
        counts.of_process(process).add("requests_total", process + 1, label="204")
        counts.of_process(process).observe("request_seconds", 2_000_000)
        counts.of_process(process).add("sender_requests_total", label="nobody knows")
    lines = generate_latest(counts).decode().splitlines()
    assert 'gputide_receiver_requests_total{code="204"} 3.0' in lines
    assert 'gputide_receiver_request_seconds_bucket{le="0.001"} 0.0' in lines
    assert 'gputide_receiver_request_seconds_bucket{le="0.0025"} 2.0' in lines
    assert "gputide_receiver_request_seconds_count 2.0" in lines
    assert 'gputide_receiver_sender_requests_total{sender=""} 2.0' in lines
    assert {line.split()[2] for line in lines if line.startswith("# HELP")} == {
        f"gputide_receiver_{metric.name}" for metric in OWN_METRICS
    }


def test_any_name_of_a_sender_can_be_scraped():
    name = 'edge "1"\\\n'
    counts = SharedCounts((name,))
    counts.of_process(0).add("sender_samples_total", 5, label=name)
    (family,) = (
        family
        for family in text_string_to_metric_families(generate_latest(counts).decode())
        if family.name == "gputide_receiver_sender_samples"
    )
    assert [(sample.labels, sample.value) for sample in family.samples if sample.value] == [({"sender": name}, 5)]


def tls(client_ca="authority.pem", folder=CERTIFICATES, key="receiver.key.pem", now_seconds=time.monotonic):
    files = ListenerFiles(
        section="receiver",
        certificate_file=str(folder / "receiver.pem"),
        key_file=str(folder / key),
        client_ca_file=str(folder / client_ca) if client_ca else None,
    )
    return ListenerContexts(files, needs_client=False, now_seconds=now_seconds)


def over_tls(receiver, certificate=None, authorization=None):
    context = ssl.create_default_context(cafile=CERTIFICATES / "authority.pem")
    if certificate is not None:
        context.load_cert_chain(CERTIFICATES / f"{certificate}.pem", CERTIFICATES / f"{certificate}.key.pem")
    connection = http.client.HTTPSConnection("localhost", receiver.address[1], context=context, timeout=10)
    headers = {**V2, **({"Authorization": authorization} if authorization else {})}
    try:
        return post(connection, BODY, headers)[0].status
    finally:
        connection.close()


def test_certificate_names_its_sender_and_a_strangers_is_refused_by_the_handshake(tmp_path):
    bus = file_bus(tmp_path / "bus")
    senders = senders_of(tmp_path, f"{TOKEN} edge-2\n", {"edge-1": {"cluster": "east"}, "edge-2": {"cluster": "west"}},
                         takes_certificates=True)  # fmt: skip
    with served(intakes(bus), senders=senders, tls=tls().context) as receiver:
        assert over_tls(receiver, "edge-1") == 204
        assert over_tls(receiver, authorization=bearer(TOKEN)) == 204
        assert over_tls(receiver) == 401
        assert over_tls(receiver, "receiver") == 403
        with pytest.raises((ssl.SSLError, ConnectionError)):
            over_tls(receiver, "stranger")
        connection = connect(receiver)
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            post(connection, BODY, V2)
    assert clusters(bus) == {"east": 1, "west": 1}


def test_alternative_name_of_a_certificate_names_its_sender_too(tmp_path):
    senders = Senders({"edge-1.example": Sender(name="edge-1.example", cluster="east")}, tokens_file=None,
                      takes_certificates=True, now_seconds=time.monotonic)  # fmt: skip
    with served(intakes(file_bus(tmp_path)), senders=senders, tls=tls().context) as receiver:
        assert over_tls(receiver, "edge-1") == 204


def test_renewed_certificate_is_used_without_a_restart(tmp_path):
    for name in ("receiver.pem", "receiver.key.pem"):
        (tmp_path / name).write_bytes((CERTIFICATES / name).read_bytes())
    clock = [0.0]
    contexts = tls(None, tmp_path, now_seconds=lambda: clock[0])
    first = contexts.context()
    (tmp_path / "receiver.pem").write_bytes((CERTIFICATES / "edge-1.pem").read_bytes())
    clock[0] += 60
    assert contexts.context() is first
    (tmp_path / "receiver.key.pem").write_bytes((CERTIFICATES / "edge-1.key.pem").read_bytes())
    clock[0] += 60
    assert contexts.context() is not first


def test_certificate_without_its_key_is_said_so():
    with pytest.raises(Misconfigured, match=r"receiver\.tls_key_file"):
        tls(None, key="edge-1.key.pem")
