"""Engines are refused records that they can't read: passed over, they would be lost."""

from __future__ import annotations

import pytest

from fleet.data_folder import open_data_folder
from fleet.errors import Misconfigured
from fleet.settings.settings import load_settings
from gputide.container.bus import intakes_of, open_bus_writer
from gputide.container.rollup import open_rollup
from pipeline.remote_write.decode import Version
from tests.pipeline.builders import body_of, small_fleet


def test_records_of_json_are_not_passed_over_by_the_embedded_rollup(tmp_path):
    folder = open_data_folder(tmp_path / "data", create=True)
    rows = load_settings(None, {"bus.record_format": "rows"}, {})
    with open_bus_writer(folder, rows) as bus:
        assert intakes_of(bus, rows)(None).take(body_of(small_fleet(pods=1, hours=1)), Version.V2).status == 204
    with pytest.raises(Misconfigured, match=r"bus\.record_format=rows.*--engine flink"), open_rollup(folder, rows):
        pass
