"""A controller shares its pod's data folder with the console, and holds the lease under a name of its own."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from enforcer.simulated.cluster import SimulatedCluster
from fleet.data_folder import open_data_folder
from fleet.settings.settings import Settings
from gputide.container.enforcer import open_enforcer
from tests.enforcer.builders import NOW, an_inventory, standard_grants


def test_controller_and_console_of_one_folder_never_hold_the_lease_together(tmp_path: Path) -> None:
    folder = open_data_folder(tmp_path / "data", create=True)
    with closing(SimulatedCluster.open(folder.cluster)) as cluster:
        cluster.sync(an_inventory(standard_grants()), NOW)
    settings = Settings()
    with (
        open_enforcer(folder, settings, NOW, on_progress=lambda _: None) as console,
        open_enforcer(folder, settings, NOW, on_progress=lambda _: None, ledger=tmp_path / "own.jsonl") as controller,
    ):
        controller.tools.take_lease()
        assert not console.tools.lease.acquire(console.tools.holder, 30.0)
        console.tools.let_go()
        assert not console.tools.lease.acquire(console.tools.holder, 30.0)
        controller.tools.let_go()
        assert console.tools.lease.acquire(console.tools.holder, 30.0)
