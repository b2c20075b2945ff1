"""A server whose system refuses it a thread refuses that connection, and serves the next."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import resource, threading
from tests.wire.http_serving import HEALTH, exchange, served, statuses

with served() as found:
    print(statuses(exchange(found.address, HEALTH)))
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    before = threading.stack_size(1 << 30)  # one stack is more than the system still gives
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), hard))
    print(statuses(exchange(found.address, b"", then_closes=False)))
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    threading.stack_size(before)
    print(statuses(exchange(found.address, HEALTH)), found.refused)
"""


def test_connection_without_a_thread_is_refused_and_the_next_one_is_served() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines() == ["[200]", "[503]", "[200] [503]"], done.stderr
