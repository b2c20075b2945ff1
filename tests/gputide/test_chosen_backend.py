"""Which backends changes can be rendered for, and what is said of the others."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pydantic import ValidationError

from enforcer.backends.hami_dialect import HamiDialect
from fleet.capabilities.register import CAPABILITIES, Capabilities
from fleet.errors import Misconfigured
from fleet.settings.settings import Settings
from gputide.container.cluster import backend
from gputide.demo import run_demo
from tests.gputide.conftest import CUT, Program

NOW = datetime(2026, 3, 9, tzinfo=UTC)


def chosen(name: str) -> Settings:
    return Settings.model_validate({"enforcer": {"backend": name}})


@pytest.mark.parametrize("record", CAPABILITIES, ids=lambda record: record.backend)
def test_every_backend_of_the_table_is_rendered(record: Capabilities) -> None:
    assert backend(chosen(record.backend), NOW).capabilities == record


def test_an_unknown_backend_names_those_that_can_be_applied() -> None:
    with pytest.raises(Misconfigured, match="'hamy': expected one of whole_cards, hami"):
        backend(chosen("hamy"), NOW)


def test_names_of_an_installation_come_from_the_settings() -> None:
    installed = {
        "hami_device_config": "gpu/devices",
        "hami_node_config": "gpu/nodes",
        "effectivegpu_model_resources": {"A100": "sf.example/egpu-a100"},
    }
    hami = backend(Settings.model_validate({"enforcer": {"backend": "hami"}, "backends": installed}), NOW)
    assert hami.dialect.config_objects == (("ConfigMap", "gpu", "devices"), ("ConfigMap", "gpu", "nodes"))
    egpu = backend(Settings.model_validate({"enforcer": {"backend": "effectivegpu"}, "backends": installed}), NOW)
    assert isinstance(egpu.dialect, HamiDialect)
    assert egpu.dialect.words.count_of_model("NVIDIA A100-SXM4-80GB") == "sf.example/egpu-a100"


@pytest.mark.parametrize(
    ("name", "value"),
    [("hami_device_config", "devices"), ("hami_node_config", "Kube/x"), ("effectivegpu_model_resources", {"A10": "x"})],
)
def test_names_that_cannot_be_are_refused(name: str, value: object) -> None:
    with pytest.raises(ValidationError, match=name):
        Settings.model_validate({"backends": {name: value}})


def test_replayed_folder_speaks_the_backend_of_its_first_replay_and_no_other(
    small_fleet: Path, program: Program, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    volcano = ("--set", "enforcer.backend=volcano", "--set", "enforcer.experimental=true")
    assert program(data, *volcano, "admin", "replay", str(small_fleet), "--until", CUT).status == 0
    # A plan for another backend can be made from what was replayed; only its own can change the cluster.
    for words, settings in (("mig", ("--set", "enforcer.backend=mig")), ("volcano", volcano)):
        made = program(data, *settings, "plan", "make")
        assert made.status == 0, (words, made.err)
    assert program(data, *volcano, "plan", "approve").status == 0
    said = program(data, "apply", "--yes")
    assert said.status == 2
    assert "enforcer.backend=hami: it plays volcano; set enforcer.backend=volcano" in said.err
    assert program(data, *volcano, "apply", "--yes", "--stage", "1").status == 0
    assert program(data, *volcano, "undo", "--yes").status == 0


def test_demo_of_a_backend_that_no_simulated_cluster_plays_says_which_it_plays(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"cannot play enforcer\.backend=mig .*: it plays whole_cards, hami, "):
        run_demo(tmp_path / "demo", chosen("mig"), started=lambda _: None, tick=lambda _done, _all: None)
    assert not (tmp_path / "demo").exists()
