"""`gputide admin probe`: measured in a container, signed, kept, and planned with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from enforcer.probe.stored_results import keep_result, kept_results, measured_capability, read_key, read_result
from fleet.capabilities.capability import ComputeIsolation
from fleet.capabilities.register import HAMI
from fleet.data_folder import open_data_folder
from fleet.errors import Misconfigured, Refused
from fleet.probe_results import probe_text
from fleet.settings.settings import load_settings
from gputide.cli import app
from gputide.container.cluster import backend, probe_results
from tests.enforcer.probe.conftest import cuda_library
from tests.fleet.test_probe_results import LENT

__all__ = ("cuda_library",)

Probe = Callable[..., Result]


@pytest.fixture
def settings(tmp_path: Path, cuda_library: Path) -> dict[str, str]:
    """Return the settings of a node whose container is limited by HAMi."""
    (tmp_path / "key").write_bytes(b"k" * 40)
    return {
        "probe.key_file": str(tmp_path / "key"),
        "probe.cuda_library": str(cuda_library),
        "probe.seconds": "1",
        "exporter.node": "node-1",
    }


@pytest.fixture
def probe(tmp_path: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Probe:
    """Return the program."""
    for name, value in (("CUDA_DEVICE_MEMORY_LIMIT_0", "4096m"), ("CUDA_DEVICE_SM_LIMIT", "30")):
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PROBE_LIMIT_MIB", "4096")

    def invoke(*words: str, **more: str) -> Result:
        options = [word for name, value in {**settings, **more}.items() for word in ("--set", f"{name}={value}")]
        return CliRunner().invoke(
            app, ["--data-dir", str(tmp_path / "data"), *options, "admin", "probe", *words], catch_exceptions=False
        )

    return invoke


def test_limit_that_does_not_hold_is_found_kept_and_planned_with(
    probe: Probe, tmp_path: Path, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE_CORE_PERCENT", "100")
    result = tmp_path / "result.json"
    said = probe("run", "-o", str(result))
    assert said.exit_code == 1
    assert "compute isolation: reactive, measured none" in " ".join(said.stdout.split())
    assert probe("keep", str(result)).exit_code == 0
    (found,) = json.loads(probe("list", "--format", "json").stdout)
    assert found["granted_framebuffer_bytes"] == found["allocated_framebuffer_bytes"] == 4096 << 20
    assert found["granted_compute_ratio"] == 0.3
    folder = open_data_folder(tmp_path / "data", create=False)
    measured = measured_capability(folder, load_settings(None, settings, {}), datetime.now(UTC), is_own=True)
    assert measured.compute_isolation is ComputeIsolation.NONE
    # Without the key nothing is believed.
    unsigned = measured_capability(folder, load_settings(None, {}, {}), datetime.now(UTC), is_own=True)
    assert unsigned.compute_isolation is ComputeIsolation.REACTIVE


@pytest.mark.parametrize(("days", "is_own", "can_lend"), [(29, True, True), (31, True, False), (29, False, False)])
def test_lending_that_a_probe_saw_counts_for_its_cluster_and_a_time(
    tmp_path: Path, settings: dict[str, str], days: int, is_own: bool, can_lend: bool
) -> None:
    folder, chosen = open_data_folder(tmp_path / "data", create=True), load_settings(None, settings, {})
    keep_result(folder, LENT, read_key(chosen))
    now = LENT.measured_at + timedelta(days=days)
    assert measured_capability(folder, chosen, now, is_own=is_own).can_lend is can_lend


def test_limits_that_hold_bear_the_table_out(probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBE_CORE_PERCENT", "30")
    said = probe("run", "-o", str(tmp_path / "result.json"))
    assert said.exit_code == 0, said.output
    assert json.loads((tmp_path / "result.json").read_text())["is_refused"] is True


def test_host_that_has_little_left_is_not_filled(probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("CARD_MIB", "2048"), ("SPILL", "1"), ("LINK_MB", "20000")):
        monkeypatch.setenv(f"PROBE_{name}", value)
    (tmp_path / "meminfo").write_text(f"MemAvailable: {800 * 1024} kB\n")
    result = tmp_path / "result.json"
    said = probe("run", "-o", str(result), "--card-mib", "2048", **{"exporter.proc_folder": str(tmp_path)})
    assert "at most 400MiB beyond the card instead of probe.spill_bytes_max=" in " ".join(said.stdout.split())
    found = json.loads(result.read_text())
    assert (found["spilled_bytes"], found["kept_bytes"]) == (400 << 20, None)


def test_result_that_was_changed_is_refused_and_not_kept(
    probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE_CORE_PERCENT", "100")
    result = tmp_path / "result.json"
    probe("run", "-o", str(result))
    result.write_text(result.read_text().replace('"is_refused": true', '"is_refused": false'))
    with pytest.raises(Refused, match="signature"):
        probe("keep", str(result))
    assert not (tmp_path / "data" / "probes").exists()


def test_older_result_does_not_take_the_place_of_a_newer_one(
    probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROBE_CORE_PERCENT", "100")
    newer = tmp_path / "newer.json"
    probe("run", "-o", str(newer))
    key = b"k" * 40
    result = read_result(newer, key)
    older = tmp_path / "older.json"
    older.write_text(probe_text(replace(result, measured_at=result.measured_at - timedelta(hours=1)), key))
    assert probe("keep", str(older)).exit_code == 0
    assert probe("keep", str(newer)).exit_code == 0
    with pytest.raises(Refused, match=r"cannot keep the result of node node-1 of .* is kept; remove"):
        probe("keep", str(older))
    (kept,) = kept_results(open_data_folder(tmp_path / "data", create=False), key)
    assert kept == result


def test_results_that_cannot_be_read_keep_no_way_back_closed(
    probe: Probe, settings: dict[str, str], tmp_path: Path
) -> None:
    probe("run", "-o", str(tmp_path / "result.json"))
    assert probe("keep", str(tmp_path / "result.json")).exit_code == 0
    folder, chosen = open_data_folder(tmp_path / "data", create=False), load_settings(None, settings, {})
    assert len(probe_results(folder, chosen)) == 1
    (tmp_path / "key").write_bytes(b"another" * 8)
    assert backend(chosen, datetime.now(UTC), folder=folder).capabilities == HAMI
    with pytest.raises(Refused, match="signature"):
        probe_results(folder, chosen)
    (tmp_path / "key").unlink()
    assert backend(chosen, datetime.now(UTC), folder=folder).capabilities == HAMI


def test_wrong_use_names_what_is_missing(probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Misconfigured, match=r"probe\.key_file=none"):
        probe("run", "-o", "x", **{"probe.key_file": "none"})
    with pytest.raises(Misconfigured, match=r"probe\.key_file=.*No such file"):
        probe("list", **{"probe.key_file": str(tmp_path / "absent")})
    with pytest.raises(Misconfigured, match=r"absent\.json: No such file"):
        probe("keep", str(tmp_path / "absent.json"))
    monkeypatch.setenv("CUDA_DEVICE_SM_LIMIT", "much")
    with pytest.raises(Misconfigured, match="CUDA_DEVICE_SM_LIMIT='much'"):
        probe("run", "-o", str(tmp_path / "x"))
