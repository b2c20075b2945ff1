"""Prometheus itself scrapes what the exporters show: every family, in OpenMetrics and gzip, with the oddest labels."""

from __future__ import annotations

import json
import os
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from docs.metrics_catalogue import CATALOGUE
from exporter.collector import Collector
from exporter.compat.translation import Compat
from exporter.exposition.rendering import OWN_FAMILIES
from exporter.families import Family, FamilyKind
from exporter.reader import Reading
from exporter.server import MetricsServer
from fleet.inventory import CardId, CardModelName
from fleet.schema import CARD_MEASURES
from fleet.usage import CardKey
from gputide.operate.engine_process import kill_process, start_process, wait_until
from gputide.operate.engines import free_port
from tests.engines.go_peers import GoPeers

pytestmark = pytest.mark.engines

ODD = 'x"\\\n\u2028é{}=,'
KEY = CardKey(cluster="c1", node="node-a", card=CardId("GPU-a"), card_model=CardModelName(ODD))
CONFIGURATION = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: gputide
    honor_labels: true
    static_configs: [{{targets: ["{exporter}"]}}]
"""


class EveryFamily:
    """A reader that gives each family of the catalogue, whose values move with every reading."""

    def __init__(self) -> None:
        own = {family.name for family in OWN_FAMILIES} | {f"gputide_card_{one.measure.value}" for one in CARD_MEASURES}
        self._catalogued = {family.name: family for section in CATALOGUE for family in section.families}
        for name in own:
            del self._catalogued[name]
        self.readings = 0

    def read(self, deadline_seconds: float) -> Reading | None:
        self.readings += 1
        return Reading(
            at=datetime.now(UTC),
            cards=(KEY,),
            card_values={one.measure: np.array([0.1 + 0.001 * self.readings]) for one in CARD_MEASURES},
            families=tuple(self.families()),
        )

    def families(self) -> Iterator[Family]:
        for family in self._catalogued.values():
            value = 1.0 if family.kind is FamilyKind.INFO else 0.1 + self.readings
            yield family.of(((ODD,) * len(family.label_names),), np.array([value]))

    def close(self) -> None:
        pass


@contextmanager
def served(reader: EveryFamily) -> Iterator[str]:
    collector = Collector(reader, interval_seconds=0.5, deadline_seconds=1.0)
    collector.collect()
    collector.start()
    server = MetricsServer(collector, host="127.0.0.1", port=0, age_seconds_max=60.0, compat=Compat)
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield "{}:{}".format(*server.address)
    finally:
        server.stop()
        collector.stop()
        thread.join()


def query(address: str, expression: str) -> list[dict[str, Any]]:
    asked = urllib.parse.urlencode({"query": expression})
    try:
        with urllib.request.urlopen(f"http://{address}/api/v1/query?{asked}", timeout=5) as answer:
            result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
            return result
    except OSError:
        return []


def test_prometheus_takes_every_family(go_peers: GoPeers, tmp_path: Path) -> None:
    reader = EveryFamily()
    address = f"127.0.0.1:{free_port()}"
    with served(reader) as exporter:
        (tmp_path / "prometheus.yml").write_text(CONFIGURATION.format(exporter=exporter), encoding="utf-8")
        command = [
            str(go_peers.prometheus),
            f"--config.file={tmp_path / 'prometheus.yml'}",
            f"--storage.tsdb.path={tmp_path / 'tsdb'}",
            f"--web.listen-address={address}",
        ]
        process = start_process(
            "prometheus", command, folder=tmp_path, log=tmp_path / "prometheus.log", environ=dict(os.environ)
        )
        try:
            wait_until(lambda: bool(query(address, "scrape_samples_scraped > 0")), process, seconds_max=60)
            scraped = query(address, "scrape_samples_scraped")[0]["value"][1]
            (odd,) = query(address, "gputide_card_xid_events_total")
            names = {one["metric"]["__name__"] for one in query(address, '{job="gputide"}')}
        finally:
            kill_process(process)
    expected = {family.name for section in CATALOGUE for family in section.families}
    assert expected <= names
    assert odd["metric"]["card"] == ODD
    assert {"DCGM_FI_DEV_GPU_UTIL", "hami_host_gpu_utilization_ratio", "HostCoreUtilization"} <= names
    assert int(scraped) >= len(expected)
