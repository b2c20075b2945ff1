"""What every bus must do; adapters' tests inherit these claims."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fleet.errors import Unavailable
from pipeline.bus.bus import RecordTooLarge


class BusContract:
    """Needs fixtures `bus`, `reopened` (gives up the bus and opens it anew) and `small_bus` (holds about 4 kB)."""

    def test_empty_bus_reads_as_none(self, bus: Any) -> None:
        assert bus.read(0, bytes_max=1000) is None
        assert bus.committed() == 0

    def test_records_come_back_whole_and_in_order(self, bus: Any) -> None:
        payloads = [bytes([number]) * (number + 1) for number in range(50)]
        offsets = [bus.append(payload) for payload in payloads]
        assert offsets == sorted(set(offsets))
        chunk = bus.read(0, bytes_max=1 << 20)
        assert chunk.records == tuple(payloads)
        assert (chunk.end, chunk.ends) == (offsets[-1], tuple(offsets))

    def test_chunks_are_bounded_and_join_without_gap(self, bus: Any) -> None:
        payloads = [bytes([number]) * 100 for number in range(20)]
        for payload in payloads:
            bus.append(payload)
        found, at = [], 0
        while (chunk := bus.read(at, bytes_max=250)) is not None:
            assert chunk.start == at
            assert len(chunk.records) == 2
            found += chunk.records
            at = chunk.end
        assert found == payloads

    def test_record_larger_than_the_chunk_comes_alone(self, bus: Any) -> None:
        bus.append(b"x" * 1000)
        bus.append(b"y")
        assert bus.read(0, bytes_max=10).records == (b"x" * 1000,)

    def test_acknowledged_records_survive_reopening(self, bus: Any, reopened: Any) -> None:
        end = bus.append(b"kept")
        again = reopened()
        assert again.read(0, bytes_max=100).records == (b"kept",)
        assert again.append(b"more") > end

    def test_uncommitted_records_are_read_again_and_committed_ones_stay_committed(
        self, bus: Any, reopened: Any
    ) -> None:
        first = bus.append(b"a")
        bus.append(b"b")
        bus.commit(first)
        again = reopened()
        assert again.committed() == first
        assert again.read(again.committed(), bytes_max=100).records == (b"b",)

    def test_record_that_no_empty_bus_would_take_is_refused_for_good(self, small_bus: Any) -> None:
        with pytest.raises(RecordTooLarge, match="may ever wait"):
            small_bus.append(b"x" * 5000)
        small_bus.append(b"x" * 200)

    def test_full_bus_says_so_and_takes_records_again_after_a_commit(self, small_bus: Any) -> None:
        def fill() -> None:
            for _ in range(100):
                small_bus.append(b"x" * 200)

        with pytest.raises(Unavailable, match="full"):
            fill()
        chunk = small_bus.read(0, bytes_max=1 << 20)
        assert set(chunk.records) == {b"x" * 200}
        small_bus.commit(chunk.end)
        small_bus.append(b"y" * 200)
        assert small_bus.read(chunk.end, bytes_max=1000).records == (b"y" * 200,)

    def test_threads_that_append_at_once_lose_nothing(self, bus: Any) -> None:
        def work(name: int) -> None:
            for number in range(40):
                bus.append(b"%d-%d" % (name, number))

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        records = bus.read(0, bytes_max=1 << 20).records
        assert len(set(records)) == len(records) == 160
        for name in range(4):
            mine = [record for record in records if record.startswith(b"%d-" % name)]
            assert mine == [b"%d-%d" % (name, number) for number in range(40)]
