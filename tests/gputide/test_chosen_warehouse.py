"""The settings choose the warehouse; reading needs no driver, writing to Hive says which one is missing."""

from __future__ import annotations

import sys

import pytest

from fleet.data_folder import open_data_folder
from fleet.errors import Misconfigured
from fleet.settings.settings import load_settings
from gputide.container.warehouse import open_warehouse, warehouse, warehouse_folder
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.contracts.warehouse import NOON, name_of, node_part


@pytest.fixture
def folder(tmp_path):
    return open_data_folder(tmp_path / "data", create=True)


def settings_of(**flat: str):
    return load_settings(None, {name.replace("__", "."): value for name, value in flat.items()}, {})


def test_embedded_warehouse_lies_in_the_data_folder(folder):
    settings = settings_of()
    with open_warehouse(folder, settings) as opened:
        assert isinstance(opened, DuckdbWarehouse)
        opened.append(name_of(0, 1), (node_part("a", NOON),))
    assert warehouse(folder, settings).clusters() == ("c1",)
    assert list(folder.warehouse.rglob("*.parquet"))


def test_files_of_hives_warehouse_lie_where_the_settings_say_and_are_read_without_a_driver(
    folder, tmp_path, monkeypatch
):
    shared = tmp_path / "mount"
    settings = settings_of(warehouse__kind="hive", hive__folder=str(shared))
    assert warehouse_folder(folder, settings) == shared
    assert warehouse_folder(folder, settings_of(hive__folder=str(shared))) == folder.warehouse
    assert warehouse_folder(folder, settings_of(warehouse__kind="hive")) == folder.warehouse
    DuckdbWarehouse(shared).append(name_of(0, 1), (node_part("a", NOON),))
    monkeypatch.setitem(sys.modules, "pyhive", None)
    monkeypatch.delitem(sys.modules, "pipeline.warehouse.hive_session", raising=False)
    monkeypatch.delitem(sys.modules, "pipeline.warehouse.catalogue_hive", raising=False)
    monkeypatch.delitem(sys.modules, "pipeline.warehouse.warehouse_hive", raising=False)
    assert warehouse(folder, settings).clusters() == ("c1",)
    with (
        pytest.raises(Misconfigured, match=r"pyhive is not installed; install gputide\[hive\]"),
        open_warehouse(folder, settings),
    ):
        pass


def test_finest_windows_are_not_kept_longer_than_the_others():
    with pytest.raises(Misconfigured, match="retain_finest_days=40 is more than retain_days=30"):
        settings_of(warehouse__retain_days="30", warehouse__retain_finest_days="40")
    with pytest.raises(Misconfigured, match="retain_finest_days"):
        settings_of(warehouse__retain_finest_days="28")
