"""How fast a broker takes and gives records: MB/s, records/s and our own CPU time per record.

    python bench/bus_kafka.py HOST:PORT

Record sizes: 20 kB is a lane's share of a body of some thousand samples, 100 kB a whole body. Threads are the
receiver's requests under way at once. Each line is the median of seven rounds on a topic of its own; the broker's CPU
time is not in it.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator

from fleet.settings.pipeline import KafkaSettings
from pipeline.bus.bus_kafka import KafkaLane, KafkaWriter

ROUNDS = 7
PARTITIONS = 4
CASES = ((20_000, 1, 150), (20_000, 8, 100), (20_000, 32, 40), (100_000, 8, 50))
"""Bytes of a record, threads, records per thread and round."""


def main(server: str) -> None:
    print(f"{'record':>8} {'threads':>7} {'':>6} {'records/s':>10} {'MB/s':>7} {'CPU µs/record':>14}")
    for record_bytes, threads, count in CASES:
        writes, reads = zip(*(measured_round(server, record_bytes, threads, count) for _ in range(ROUNDS)), strict=True)
        for name, rounds in (("write", writes), ("read", reads)):
            per_second, cpu_seconds = (statistics.median(column) for column in zip(*rounds, strict=True))
            print(
                f"{record_bytes:>8} {threads:>7} {name:>6} {per_second:>10.0f} {per_second * record_bytes / 1e6:>7.1f} "
                f"{cpu_seconds * 1e6:>14.0f}"
            )


def measured_round(
    server: str, record_bytes: int, threads: int, count: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Records per second and CPU seconds per record, of writing and of reading."""
    name = f"bench-{uuid.uuid4().hex}"
    settings = KafkaSettings(servers=(server,), topic=name, group=name, partitions=PARTITIONS)
    writer = KafkaWriter(settings)
    payload = os.urandom(record_bytes)

    def send(place: int) -> None:
        for number in range(count):
            writer.append_all({(place + number) % PARTITIONS: payload})

    def write() -> int:
        workers = [threading.Thread(target=send, args=(place,)) for place in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return threads * count

    def read() -> int:
        return sum(
            len(records) for partition in range(PARTITIONS) for records in chunks_of(settings, writer, partition)
        )

    written, found = timed(write), timed(read)
    writer.close()
    return written, found


def chunks_of(settings: KafkaSettings, writer: KafkaWriter, partition: int) -> Iterator[tuple[bytes, ...]]:
    lane = KafkaLane(settings, writer.topic, partition)
    at = 0
    while (chunk := lane.read(at, bytes_max=32 << 20)) is not None:
        yield chunk.records
        at = chunk.end
    lane.close()


def timed(work: Callable[[], int]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    records = work()
    return records / (time.perf_counter() - wall), (time.process_time() - cpu) / records


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python bench/bus_kafka.py HOST:PORT")
    main(sys.argv[1])
