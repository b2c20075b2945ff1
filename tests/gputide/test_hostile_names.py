"""No name that a tenant can write makes a verb end as if what is stored could not be read."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from bench.forged_series import Series, as_received, as_scanned, bodies, times_ms
from bench.scanned_prometheus import ScannedFleet
from fleet.data_folder import open_data_folder
from fleet.settings.scan import ScanSettings
from fleet.settings.settings import Settings
from fleet.units import format_time, time_from_epoch_ms
from gputide.container.bus import intakes_of
from gputide.scanning.scan import scan
from pipeline.remote_write.decode import Version
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.gputide.conftest import Program
from tests.pipeline.builders import file_bus, roll_up
from tests.pipeline.history.scripted_server import ScriptedServer, serving

pytestmark = pytest.mark.long

FLEET = ScannedFleet(cards=16, days=1.5, until_ms=1_699_920_000_000)
UNTIL = time_from_epoch_ms(FLEET.until_ms)
VERBS = (
    ("plan", "make"),
    ("workloads",),
    ("status",),
    ("plan", "show", "--all"),
    ("apply",),
    ("report", "--format", "md"),
    ("cost",),
)
_LETTERS = "ab/.-_%:\\\"'<>&;|$`{}[]()*?!#@~^= \t\n\r\0é漢\u202e\U0001f4a9A9"
_KNOWN = ("a/b", "../..", "", "/", "a//b", "None", "Pod", "<none>", "team/Deployment/x", "x" * 2000, "-", "{}", "=1+1")


def hostile(chance: random.Random) -> str:
    """A name that Kubernetes has for no object, or one that looks odd."""
    if chance.random() < 0.4:
        return chance.choice(_KNOWN)
    return "".join(chance.choice(_LETTERS) for _ in range(chance.randrange(1, 40)))


def renamed(series: list[Series], chance: random.Random, names: tuple[str, ...], share: float) -> list[Series]:
    """Series some of whose labels are hostile, the same in every series of a pod."""
    said: dict[tuple[str, str], str] = {}
    found = []
    for one in series:
        labels = dict(one.labels)
        for name in names:
            if name in labels:
                key = (name, labels[name] + labels.get("pod", ""))
                if key not in said:
                    said[key] = hostile(chance) if chance.random() < share else labels[name]
                labels[name] = said[key]
        found.append(replace(one, labels={name: text for name, text in labels.items() if text}))
    return found


def ends_well(folder: Path, program: Program) -> None:
    """Whether every verb ends in an answer or a refusal, and none as if stored data were unreadable, or by a bug."""
    for verb in VERBS:
        said = program(folder, *verb, "--now", format_time(UNTIL))
        assert said.status not in (6, 70), (verb, said.status, said.err)


@pytest.mark.parametrize("seed", range(3))
def test_names_of_remote_write_end_no_verb(seed: int, tmp_path: Path, program: Program) -> None:
    chance = random.Random(seed)
    names = (
        ("workload", "workload_kind") if seed % 2 else ("pod", "namespace", "container", "workload", "workload_kind")
    )
    series = renamed(as_received(FLEET), chance, names, 0.5)
    data = open_data_folder(tmp_path / "data", create=True)
    bus = file_bus(data.bus())
    intake = intakes_of(bus, Settings())(None)
    for body in bodies(series, times_ms(FLEET)):
        assert intake.take(body, Version.V1).status in (204, 400)
    roll_up(bus, DuckdbWarehouse(data.warehouse))
    ends_well(tmp_path / "data", program)


@pytest.mark.parametrize("seed", range(2))
def test_names_of_a_prometheus_end_no_verb(seed: int, tmp_path: Path, program: Program) -> None:
    owner = ("owner_name", "owner_kind")
    names = owner if seed % 2 else ("pod", "exported_pod", "container", *owner)
    times = times_ms(FLEET).tolist()
    script = ScriptedServer(
        [
            (one.labels, [(at, value) for at, value in zip(times, one.values.tolist(), strict=True)])
            for one in renamed(as_scanned(FLEET), random.Random(seed), names, 0.5)
        ]
    )
    with serving(script):
        asked = ScanSettings(url=script.url, since_seconds=36 * 3600, attempts_max=1, step_seconds=60)
        data = open_data_folder(tmp_path / "data", create=True)
        scan(data, Settings().model_copy(update={"scan": asked}), now=UNTIL, tick=lambda done, total: None)
    ends_well(tmp_path / "data", program)
