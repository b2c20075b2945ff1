"""A data folder is made in an empty place alone, and a fresh volume is one."""

from pathlib import Path

import pytest

from fleet.data_folder import open_data_folder
from fleet.errors import Corrupt


def test_the_root_of_a_fresh_volume_is_an_empty_place(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir(mode=0o700)
    open_data_folder(tmp_path, create=True)
    assert open_data_folder(tmp_path, create=False).path == tmp_path


def test_a_folder_with_somebody_elses_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "thesis.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(Corrupt, match="holds other files"):
        open_data_folder(tmp_path, create=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lost+found", "thesis.txt"]
