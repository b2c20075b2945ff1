"""The driver's library is found where it lies, and an old one is not asked for more than it has."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.nvml.library import NvmlFault, error_word, instance_or_none, number_or_none, sample_value
from fleet.errors import Unavailable
from tests.exporter.nvml.drivers import started_library
from tests.exporter.nvml.standin import A100, DATA_VARIABLE, FIELDS, GIB, StandInWorld, library_file

# A process has one library for life, so what depends on how it is loaded runs in a process of its own.
READ_ONCE = """
import sys
from exporter.nvml.cards import NvmlCards
from exporter.nvml.figures import Activity
cards = NvmlCards(library_path=sys.argv[1] or None)
card, = cards.read(20.0).cards
figures = card.figures
print(card.identity.card_model, card.state, sorted(figures.activities), sep="|")
print(figures.framebuffer.used_bytes, figures.framebuffer.reserved_bytes, len(figures.processes), sep="|")
print(figures.held_back is not None, figures.counters != {}, sep="|")
cards.close()
"""

# Loaded into this process, a file would be the library of every later test: the loader knows libraries by their soname.
HAS_FUNCTION = "import ctypes, sys; print(hasattr(ctypes.CDLL(sys.argv[1]), sys.argv[2]))"


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandInWorld:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "world.txt"))
    world = StandInWorld(tmp_path / "world.txt").card(**A100, util=50, fields=FIELDS)
    return world.line("proc", dev=0, pid=7, mem=GIB).write()


def read_once(repository: Path, path: str = "", search: Path | None = None) -> list[list[str]]:
    environ = {**os.environ, "PYTHONPATH": str(repository)}
    if search is not None:
        environ["LD_LIBRARY_PATH"] = str(search)
    command = [sys.executable, "-c", READ_ONCE, path]
    run = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    return [line.split("|") for line in run.stdout.splitlines()]


def test_library_is_found_by_its_name(world: StandInWorld, repository: Path) -> None:
    told = read_once(repository, search=library_file().parent)
    assert told[0][:2] == ["NVIDIA A100-SXM4-40GB", "ok"]


def test_old_driver_without_newer_functions_tells_what_it_has(world: StandInWorld, repository: Path) -> None:
    old = library_file(is_old=True)
    question = [sys.executable, "-c", HAS_FUNCTION, str(old), "nvmlDeviceGetMemoryInfo_v2"]
    assert subprocess.run(question, capture_output=True, text=True, timeout=60, check=True).stdout == "False\n"
    model, memory, others = read_once(repository, path=str(old))
    assert model[:2] == ["NVIDIA A100-SXM4-40GB", "ok"]
    assert "duty_cycle_ratio" in model[2]
    assert not {"sm_active", "jpeg", "optical_flow"} & set(model[2].replace("_ratio", "").split("'"))
    # The first version of the call counts what the driver reserves as used, and the second list is the newest there.
    assert memory == [str(7 * GIB), "None", "1"]
    assert others == ["True", "True"]


def test_structure_of_another_version_is_refused(world: StandInWorld) -> None:
    with started_library() as library:
        handle = library.call("nvmlDeviceGetHandleByIndex", 0)
        with pytest.raises(NvmlFault, match="argument_version_mismatch"):
            library.call("nvmlDeviceGetMemoryInfo", handle, 0x03000028)


def test_function_that_pynvml_lacks_is_not_found(world: StandInWorld) -> None:
    with started_library() as library, pytest.raises(NvmlFault) as caught:
        library.call("nvmlDeviceGetSomethingNew")
    assert caught.value.code == 13


def test_library_is_not_started_anew_while_a_call_is_under_way(world: StandInWorld) -> None:
    with started_library() as library:
        with library.calling():
            assert not library.start_anew(0.05)
        generation = library.generation
        assert library.start_anew(0.05)
        assert library.generation == generation + 1


def test_driver_that_cannot_be_started_says_why(world: StandInWorld) -> None:
    world.system(init=999).write()
    with pytest.raises(Unavailable, match="unknown"), started_library():
        pass


def test_every_code_has_a_word() -> None:
    assert error_word(15) == "gpu_is_lost"
    assert error_word(12345) == "error_12345"


@given(st.integers(min_value=-(2**64), max_value=2**65))
def test_number_is_itself_or_absent(value: int) -> None:
    found = number_or_none(value)
    assert found in (value, None)
    assert found is None or (0 <= found < 2**63 and found != 2**32 - 1)


@given(st.integers(min_value=0, max_value=2**32 - 1))
def test_instance_is_small_or_absent(value: int) -> None:
    assert instance_or_none(value) == (value if value < 65536 else None)


class Value(ctypes.Union):
    """`nvmlValue_t`, with members of the names that pynvml gives them."""

    _fields_ = (
        ("dVal", ctypes.c_double),
        ("uiVal", ctypes.c_uint),
        ("ulVal", ctypes.c_ulong),
        ("ullVal", ctypes.c_ulonglong),
        ("sllVal", ctypes.c_longlong),
        ("siVal", ctypes.c_int),
        ("usVal", ctypes.c_ushort),
    )


@given(st.integers(min_value=-5, max_value=300), st.binary(min_size=8, max_size=8))
def test_value_of_any_type_and_bits_is_a_number_or_absent(value_type: int, bits: bytes) -> None:
    found = sample_value(value_type, Value.from_buffer_copy(bits))
    assert found is None or abs(found) < 2**63
    assert found is None or 0 <= value_type < 7


def test_values_are_read_by_their_type() -> None:
    value = Value(ullVal=7)
    assert [sample_value(kind, value) for kind in (1, 2, 3, 4, 5, 6)] == [7] * 6
    assert sample_value(0, Value(dVal=2.5)) == 2.5
    assert sample_value(3, Value(ullVal=2**64 - 1)) is None
