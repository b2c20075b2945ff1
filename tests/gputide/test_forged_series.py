"""What a tenant's own pod exports changes nothing of what is known of others, by remote write and by scan."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.forged_series import OWN_POD, as_received, as_scanned, bodies, forgeries, times_ms
from bench.scanned_prometheus import ScannedFleet
from fleet.data_folder import open_data_folder
from fleet.errors import NotEnoughData
from fleet.settings.provenance import ProvenanceSettings
from fleet.settings.scan import ScanSettings
from fleet.settings.settings import Settings
from fleet.units import time_from_epoch_ms
from gputide.container.bus import intakes_of
from gputide.container.history import load_history
from gputide.scanning.scan import scan
from pipeline.remote_write.decode import Version
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.pipeline.builders import file_bus, roll_up
from tests.pipeline.history.scripted_server import ScriptedServer, serving

pytestmark = pytest.mark.long

FLEET = ScannedFleet(cards=10, days=0.1, until_ms=1_699_920_000_000)
UNTIL = time_from_epoch_ms(FLEET.until_ms)
ANYBODY = ProvenanceSettings(namespaces=("*",))
"""As it was before anybody asked who speaks."""
AIMS = ("opt-outs", "priorities", "idle services hidden", "phantom workloads", OWN_POD)


def received(folder, series, settings):
    """The history that remote-write bodies leave."""
    data = open_data_folder(folder, create=True)
    bus = file_bus(data.bus())
    intake = intakes_of(bus, settings)(None)
    for body in bodies(series, times_ms(FLEET)):
        assert intake.take(body, Version.V1).status == 204
    roll_up(bus, DuckdbWarehouse(data.warehouse))
    return load_history(data, settings, UNTIL), intake.untrusted


def scanned(folder, series, settings):
    """The history that a scan leaves of a Prometheus with these series, and who was left out."""
    times = times_ms(FLEET).tolist()
    script = ScriptedServer(
        [(one.labels, [(at, value) for at, value in zip(times, one.values.tolist(), strict=True)]) for one in series]
    )
    with serving(script):
        asked = ScanSettings(url=script.url, since_seconds=6 * 3600, attempts_max=1, step_seconds=60)
        settings = settings.model_copy(update={"scan": asked})
        data = open_data_folder(folder, create=True)
        said = scan(data, settings, now=UNTIL, tick=lambda done, total: None)
    return load_history(data, settings, UNTIL), said


def known(history):
    """All that a history says of cards, pods and what they do."""
    inventory = history.inventory
    grids = [
        {
            (key, measure): values[number].tobytes()
            for measure, values in grid.mean.items()
            for number, key in enumerate(grid.keys)
        }
        for grid in (history.slices, history.cards)
        if grid is not None
    ]
    return inventory.cards, inventory.nodes, sorted(inventory.grants, key=repr), grids


def test_exporter_is_understood_whether_its_labels_are_honoured_or_renamed(tmp_path):
    honoured, _ = received(tmp_path / "honoured", as_received(FLEET), Settings())
    renamed, left_out = received(tmp_path / "renamed", as_received(FLEET, is_honoured=False), Settings())
    assert known(renamed) == known(honoured)
    assert left_out == 0


def test_exporter_elsewhere_is_left_out_and_named(tmp_path):
    elsewhere = [replace(one, labels={**one.labels, "namespace": "default"}) for one in as_scanned(FLEET)]
    with pytest.raises(NotEnoughData, match=r"what pods of default say is left out: provenance\.namespaces"):
        scanned(tmp_path / "first", elsewhere, Settings())
    trusted = ProvenanceSettings(namespaces=("default",))
    history, said = scanned(tmp_path / "then", elsewhere, Settings(provenance=trusted))
    assert (len(history.inventory.cards), said.strangers) == (FLEET.cards, {})


@pytest.mark.parametrize("aim", AIMS)
def test_what_a_tenant_forges_by_remote_write_changes_nothing(aim, tmp_path):
    forged = forgeries(FLEET, is_scan=False)[aim]
    honest, none = received(tmp_path / "honest", as_received(FLEET), Settings())
    assert (len(honest.inventory.grants), none) == (len(FLEET.held()), 0)
    attacked, left_out = received(tmp_path / "attacked", [*as_received(FLEET), *forged], Settings())
    assert known(attacked) == known(honest)
    assert 0 < left_out <= len(forged)  # some name nobody and are not wanted at all
    fooled, _ = received(tmp_path / "fooled", [*as_received(FLEET), *forged], Settings(provenance=ANYBODY))
    assert known(fooled) != known(honest)


@pytest.mark.parametrize("aim", [*AIMS, "units"])
def test_what_a_tenant_forges_in_a_prometheus_changes_nothing(aim, tmp_path):
    forged = forgeries(FLEET, is_scan=True)[aim]
    honest, said = scanned(tmp_path / "honest", as_scanned(FLEET), Settings())
    assert (len(honest.inventory.grants), said.strangers) == (len(FLEET.held()), {})
    attacked, said = scanned(tmp_path / "attacked", [*as_scanned(FLEET), *forged], Settings())
    assert known(attacked) == known(honest)
    assert {stranger.namespace for stranger in said.strangers} == {"intruders"}
    fooled, _ = scanned(tmp_path / "fooled", [*as_scanned(FLEET), *forged], Settings(provenance=ANYBODY))
    assert known(fooled) != known(honest)
