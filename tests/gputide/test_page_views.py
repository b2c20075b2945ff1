"""The pages' ports over a data folder that holds several clusters."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fleet.data_folder import open_data_folder
from fleet.schema import Measure
from fleet.settings.settings import Settings
from gputide.container.pages import views_of
from gputide.container.warehouse import open_warehouse
from gputide.session import Session
from pipeline.remote_write.decode import Version
from tests.pipeline.builders import START_MS, Sample, body_of, file_bus, intake_of, roll_up

NOW = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(hours=30)


@pytest.mark.parametrize("named", ["a", "b", "neither"])
def test_each_cluster_is_shown_its_own_figures_whichever_the_settings_name(tmp_path: Path, named: str) -> None:
    """A right to one cluster must not show another one under its name."""
    settings = Settings.model_validate({"cluster": {"name": named}})
    folder = open_data_folder(tmp_path / "data", create=True)
    bus = file_bus(tmp_path / "bus")
    for cluster in ("a", "b"):
        samples = [
            Sample(0, Measure.DUTY_CYCLE, START_MS + step * 600_000, 0.5, of_card=of_card)
            for step in range(1, 30 * 6)
            for of_card in (False, True)
        ]
        intake_of(bus).take(body_of(samples, cluster=cluster), Version.V2)
    with open_warehouse(folder, settings) as warehouse:
        roll_up(bus, warehouse)
    fleet = views_of(Session(data_path=tmp_path / "data", settings=settings, now_override=NOW, is_quiet=True)).fleet
    assert set(fleet.clusters()) == {"a", "b"}
    shown = {cluster: fleet.profiles(cluster) for cluster in fleet.clusters()}
    assert {cluster: found.cluster for cluster, found in shown.items()} == {"a": "a", "b": "b"}
