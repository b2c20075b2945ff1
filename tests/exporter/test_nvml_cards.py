"""Cards of a node: one that hangs or is lost leaves the others fresh, and is itself reported."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from exporter.nvml.cards import NvmlCards
from exporter.nvml.figures import Activity, CardReading, CardsReading, CardState
from fleet.errors import Unavailable
from tests.exporter.nvml.standin import A100, DATA_VARIABLE, SOURCES, T4, StandInWorld, library_file, uuid

DEADLINE_SECONDS = 5.0
HANG_SECONDS = 0.3
ANSWER_SECONDS = 0.5
WORLDS = SOURCES / "worlds"
MISMATCH = 18

Opener = Callable[..., NvmlCards]


@pytest.fixture
def opened(world: StandInWorld) -> Iterator[Opener]:
    """Opens the world's cards; in the end the world is healed, and no thread may be left."""
    with ExitStack() as stack:

        def open_cards(**options: object) -> NvmlCards:
            settings = {
                "library_path": str(library_file()),
                "sample_seconds": None,
                "hang_seconds": HANG_SECONDS,
                "answer_seconds": ANSWER_SECONDS,
                "look_seconds": 0.1,
            }
            cards = NvmlCards(**{**settings, **options})  # type: ignore[arg-type]
            stack.callback(cards.close)
            return cards

        yield open_cards
        world.without("hang").without("err").write()
    eventually(lambda: not nvml_threads())


def read_without_a_wait(cards: NvmlCards) -> CardsReading:
    """The first of three readings that waited for no card; a busy machine may make one of them late."""
    for _ in range(3):
        began = time.monotonic()
        reading = cards.read(DEADLINE_SECONDS)
        if time.monotonic() - began < ANSWER_SECONDS:
            return reading
    raise AssertionError("every reading waited for the card that hangs")


def nvml_threads() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("nvml"))


def lasting_threads() -> list[str]:
    """Those that are there between two looks, at each of which every card is asked who it is."""
    return [name for name in nvml_threads() if not name.startswith("nvml probe")]


def eventually(claim: Callable[[], bool], seconds: float = 8.0) -> None:
    until = time.monotonic() + seconds
    while not claim():
        assert time.monotonic() < until
        time.sleep(0.02)


def states(reading: CardsReading) -> list[str]:
    return [card.state.value for card in reading.cards]


def power(card: CardReading) -> float:
    assert card.figures is not None
    return card.figures.activities[Activity.POWER].mean


def test_every_card_is_read_with_its_identity(world: StandInWorld, opened: Opener) -> None:
    world.system(driver="550.54.15", cuda=12040).card(**T4).card(**A100, power=200_000).write()
    reading = opened().read(DEADLINE_SECONDS)
    assert [(card.identity.card, card.identity.card_model) for card in reading.cards] == [
        (uuid(0), "Tesla T4"),
        (uuid(1), "NVIDIA A100-SXM4-40GB"),
    ]
    assert reading.cards[1].identity.pci_bus_id == "00000000:02:00.0"
    assert reading.cards[1].identity.serial == "0000000001001"
    assert (reading.versions.driver, reading.versions.cuda) == ("550.54.15", "12.4")
    assert [power(card) for card in reading.cards] == [100.0, 200.0]
    assert all(card.is_new for card in reading.cards)


def test_worlds_beside_the_stand_in_are_read_whole(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for file in sorted(WORLDS.glob("*.txt")):
        monkeypatch.setenv(DATA_VARIABLE, str(file))
        cards = opened(answer_seconds=3.0)
        reading = cards.read(DEADLINE_SECONDS)
        cards.close()
        assert set(states(reading)) == {"ok"}
        figures = [card.figures for card in reading.cards]
        found[file.stem] = [(len(one.migs), len(one.processes or ())) if one else None for one in figures]
    assert found == {
        "a100-cut-by-mig": [(3, 1), (0, 0)],
        "transcoder-beside-hopper": [(0, 1), (0, 1)],
        "two-a100": [(0, 2), (0, 0)],
    }


def test_hung_card_leaves_the_others_fresh_and_is_reported(world: StandInWorld, opened: Opener) -> None:
    world.card(**T4).card(**T4).write()
    cards = opened()
    cards.read(DEADLINE_SECONDS)
    world.line("hang", dev=0, fn="nvmlDeviceGetPowerUsage", seconds=60).card(1, power=70_000).write()
    eventually(lambda: states(cards.read(DEADLINE_SECONDS)) == ["hung", "ok"])
    world.card(1, power=80_000).write()
    hung, healthy = read_without_a_wait(cards).cards
    assert not hung.is_new
    assert hung.age_seconds >= HANG_SECONDS
    assert healthy.is_new
    assert healthy.age_seconds < hung.age_seconds
    assert power(healthy) == 80.0


def test_card_that_hangs_takes_one_thread_however_often_it_is_read(world: StandInWorld, opened: Opener) -> None:
    world.card(**T4).card(**T4).write()
    cards = opened()
    cards.read(DEADLINE_SECONDS)
    before = lasting_threads()
    world.line("hang", dev=0, fn="nvmlDeviceGetPowerUsage", seconds=60).write()
    eventually(lambda: states(cards.read(DEADLINE_SECONDS))[0] == "hung")
    for _ in range(30):
        cards.read(DEADLINE_SECONDS)
    assert lasting_threads() == before


def test_card_whose_call_comes_back_is_read_again(world: StandInWorld, opened: Opener) -> None:
    world.card(**T4).write()
    cards = opened()
    cards.read(DEADLINE_SECONDS)
    world.line("hang", dev=0, fn="nvmlDeviceGetPowerUsage", seconds=60).write()
    eventually(lambda: states(cards.read(DEADLINE_SECONDS)) == ["hung"])
    world.without("hang").card(0, power=50_000).write()
    eventually(lambda: states(cards.read(DEADLINE_SECONDS)) == ["ok"])
    assert power(cards.read(DEADLINE_SECONDS).cards[0]) == 50.0


def test_card_that_hangs_in_a_sub_sample_is_not_waited_for(world: StandInWorld, opened: Opener) -> None:
    world.card(**T4).card(**T4).write()
    cards = opened(sample_seconds=0.02)
    cards.read(DEADLINE_SECONDS)
    world.line("hang", dev=0, fn="nvmlDeviceGetPowerUsage", seconds=60).write()
    time.sleep(2 * ANSWER_SECONDS)
    assert states(read_without_a_wait(cards)) == ["hung", "ok"]


def test_card_that_hangs_from_the_start_leaves_the_others_readable(world: StandInWorld, opened: Opener) -> None:
    world.card(**T4).card(**A100).line("hang", dev=0, fn="nvmlDeviceGetUUID", seconds=60).write()
    cards = opened()
    reading = cards.read(DEADLINE_SECONDS)
    assert [card.identity.card for card in reading.cards] == [uuid(1)]
    assert reading.unnamed == 1
    time.sleep(0.5)
    assert nvml_threads().count("nvml probe 0") == 1
    world.without("hang").write()
    eventually(lambda: states(cards.read(DEADLINE_SECONDS)) == ["ok", "ok"])
    assert cards.read(DEADLINE_SECONDS).unnamed == 0


def test_look_that_hangs_leaves_known_cards_fresh(world: StandInWorld, opened: Opener) -> None:
    world.card(**T4).write()
    cards = opened()
    cards.read(DEADLINE_SECONDS)
    world.line("hang", dev=0, fn="nvmlDeviceGetSerial", seconds=60).write()
    time.sleep(0.3)
    eventually(lambda: cards.read(DEADLINE_SECONDS).cards[0].is_new)
    assert states(cards.read(DEADLINE_SECONDS)) == ["ok"]


def test_driver_that_never_names_its_cards_is_unavailable_in_time(world: StandInWorld, opened: Opener) -> None:
    world.card(**T4).line("hang", fn="nvmlDeviceGetCount_v2", seconds=60).write()
    began = time.monotonic()
    with pytest.raises(Unavailable, match=r"not named them within 1\.0 s"):
        opened().read(1.0)
    assert time.monotonic() - began < 1.0


def test_lost_card_is_reported_and_leaves_the_others_fresh(world: StandInWorld, opened: Opener) -> None:
    world.card(**T4).card(**T4).write()
    cards = opened()
    cards.read(DEADLINE_SECONDS)
    world.card(0, lost=1).write()
    eventually(lambda: cards.read(DEADLINE_SECONDS).cards[0].state is CardState.LOST)
    lost, _ = cards.read(DEADLINE_SECONDS).cards
    assert not lost.is_new
    eventually(lambda: cards.read(DEADLINE_SECONDS).cards[1].is_new)


def test_lost_card_stays_lost_when_the_driver_no_longer_names_it(world: StandInWorld, opened: Opener) -> None:
    world.card(**T4).card(**T4).write()
    cards = opened()
    cards.read(DEADLINE_SECONDS)
    world.without_card(1).write()
    eventually(lambda: states(cards.read(DEADLINE_SECONDS)) == ["ok", "lost"])
    eventually(lambda: nvml_threads() == ["nvml " + uuid(0), "nvml events", "nvml roster"])
    assert cards.read(DEADLINE_SECONDS).cards[1].age_seconds > 0


def test_lost_card_that_comes_back_is_read_again(world: StandInWorld, opened: Opener) -> None:
    world.card(**T4).card(**T4).write()
    cards = opened()
    cards.read(DEADLINE_SECONDS)
    world.card(0, lost=1).write()
    eventually(lambda: states(cards.read(DEADLINE_SECONDS)) == ["lost", "ok"])
    time.sleep(0.3)
    assert cards.read(DEADLINE_SECONDS).unnamed == 0
    world.card(0, lost=0, power=30_000).write()
    eventually(lambda: states(cards.read(DEADLINE_SECONDS)) == ["ok", "ok"])
    assert power(cards.read(DEADLINE_SECONDS).cards[0]) == 30.0


def test_library_is_started_anew_while_a_card_is_lost(
    world: StandInWorld, opened: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace"
    monkeypatch.setenv("NVML_STANDIN_TRACE", str(trace))
    world.card(**T4).card(**T4).write()
    cards = opened(start_anew_seconds=0.2)
    cards.read(DEADLINE_SECONDS)
    time.sleep(0.5)
    assert trace.read_text().count("nvmlInitWithFlags") == 1
    world.card(0, lost=1).write()
    eventually(
        lambda: (
            states(cards.read(DEADLINE_SECONDS)) == ["lost", "ok"] and trace.read_text().count("nvmlInitWithFlags") >= 2
        )
    )
    eventually(lambda: cards.read(DEADLINE_SECONDS).cards[1].is_new)


def test_card_that_is_plugged_in_is_found(world: StandInWorld, opened: Opener) -> None:
    world.card(**T4).write()
    cards = opened()
    assert states(cards.read(DEADLINE_SECONDS)) == ["ok"]
    world.card(**A100).write()
    eventually(lambda: states(cards.read(DEADLINE_SECONDS)) == ["ok", "ok"])


def test_card_that_was_put_elsewhere_is_read_there(world: StandInWorld, opened: Opener) -> None:
    world.card(**T4).write()
    cards = opened()
    assert states(cards.read(DEADLINE_SECONDS)) == ["ok"]
    world.card(0, bus="0000:7f:00.0").system(generation=1).write()
    eventually(lambda: cards.read(DEADLINE_SECONDS).cards[0].identity.pci_bus_id == "00000000:7F:00.0")
    eventually(lambda: states(cards.read(DEADLINE_SECONDS)) == ["ok"])


def test_restarted_driver_is_used_again(world: StandInWorld, opened: Opener) -> None:
    world.card(**T4).card(**T4).write()
    cards = opened(look_seconds=60)
    cards.read(DEADLINE_SECONDS)
    world.system(generation=1, driver="999.1").write()

    def is_used_again() -> bool:
        reading = cards.read(DEADLINE_SECONDS)
        return reading.versions.driver == "999.1" and all(card.is_new for card in reading.cards)

    eventually(is_used_again)


def test_driver_replaced_by_another_version_asks_for_a_restart_of_the_exporter(
    world: StandInWorld, opened: Opener
) -> None:
    world.card(**T4).system(init=MISMATCH).write()
    with pytest.raises(Unavailable, match="start the exporter again"):
        opened().read(DEADLINE_SECONDS)


def test_driver_that_comes_up_later_is_used(world: StandInWorld, opened: Opener) -> None:
    world.card(**T4).system(init=9).write()
    cards = opened()
    with pytest.raises(Unavailable, match="driver_not_loaded"):
        cards.read(DEADLINE_SECONDS)
    world.system(init=0).write()

    def is_read() -> bool:
        try:
            return states(cards.read(DEADLINE_SECONDS)) == ["ok"]
        except Unavailable:
            return False

    eventually(is_read)


def test_library_that_is_not_there_is_unavailable_and_names_the_file(tmp_path: Path, opened: Opener) -> None:
    missing = tmp_path / "libnvidia-ml.so.1"
    with pytest.raises(Unavailable, match=str(missing)):
        opened(library_path=str(missing)).read(DEADLINE_SECONDS)


def test_one_second_burst_is_seen_by_the_sampling_thread(world: StandInWorld, opened: Opener) -> None:
    world.card(**T4, util=0).write()
    cards = opened(sample_seconds=0.02)
    cards.read(DEADLINE_SECONDS)
    world.card(0, util=100).write()
    time.sleep(0.3)
    world.card(0, util=0).write()
    time.sleep(0.3)
    figures = cards.read(DEADLINE_SECONDS).cards[0].figures
    assert figures is not None
    spread = figures.activities[Activity.DUTY_CYCLE]
    assert spread.peak == 1.0
    assert 0.0 < spread.mean < 1.0
    assert spread.samples > 5


def test_xids_of_a_card_stand_in_its_reading(world: StandInWorld, opened: Opener) -> None:
    world.card(**T4).line("xid", dev=0, code=79).line("xid", dev=0, code=79).write()
    cards = opened()
    eventually(lambda: cards.read(DEADLINE_SECONDS).cards[0].xids == {79: 2})


def test_closing_twice_does_no_harm_and_leaves_no_thread(world: StandInWorld, opened: Opener) -> None:
    world.card(**T4).card(**T4).write()
    cards = opened(sample_seconds=0.02)
    cards.read(DEADLINE_SECONDS)
    cards.close()
    cards.close()
    assert not nvml_threads()


def test_closing_does_not_wait_for_a_hung_card(world: StandInWorld, opened: Opener) -> None:
    world.card(**T4).card(**T4).write()
    cards = opened()
    cards.read(DEADLINE_SECONDS)
    world.line("hang", dev=0, fn="nvmlDeviceGetPowerUsage", seconds=60).write()
    eventually(lambda: states(cards.read(DEADLINE_SECONDS))[0] == "hung")
    began = time.monotonic()
    cards.close()
    assert time.monotonic() - began < 4.0
    assert nvml_threads() == ["nvml " + uuid(0)]


def test_events_that_could_not_be_listened_to_at_first_are_counted_later(world: StandInWorld, opened: Opener) -> None:
    world.card(**T4).line("err", fn="nvmlEventSetCreate", ret=999).write()
    cards = opened()
    assert cards.read(DEADLINE_SECONDS).cards[0].xids is None
    world.without("err").write()
    eventually(lambda: cards.read(DEADLINE_SECONDS).cards[0].xids == {})
