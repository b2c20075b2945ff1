"""A receiver whose brokers are down when it starts listens, is not ready, and asks senders to come again."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request

from fleet.data_folder import open_data_folder
from fleet.settings.settings import load_settings
from gputide.container.receiver import open_receiver
from gputide.operate.engines import free_port
from pipeline.remote_write.decode import Version
from tests.pipeline.builders import body_of, small_fleet


def status_of(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_a_receiver_without_its_brokers_is_alive_but_not_ready_and_loses_nothing(tmp_path):
    settings = load_settings(
        None,
        {"bus.kind": "kafka", "kafka.servers": f"127.0.0.1:{free_port()}", "kafka.request_seconds": "1"},
        {},
    )
    folder = open_data_folder(tmp_path / "data", create=True)
    with open_receiver(folder, settings) as (host, port):
        assert status_of(f"http://{host}:{port}/healthz") == 200
        assert status_of(f"http://{host}:{port}/-/ready") == 503
        connection = http.client.HTTPConnection(host, port, timeout=10)
        headers = {"Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request"}
        connection.request("POST", "/api/v1/write", body_of(small_fleet(pods=1, hours=1), Version.V2), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
    assert (answer.status, answer.getheader("Retry-After")) == (503, "5")
    assert "the bus is not there since this receiver started" in text
