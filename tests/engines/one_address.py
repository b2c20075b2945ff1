"""One address with several servers behind it, as a Service of Kubernetes is: whichever takes a connection gets it."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

_PIECE_BYTES = 1 << 16


@contextmanager
def one_address(backends: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Spread connections over servers in turn, past those that take none; the address.

    A connection ends on both sides as soon as it ends on one; nothing is sent twice and nothing is answered here.
    """
    turn = itertools.count()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    near, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=carry, args=(near,), daemon=True).start()

        def carry(near: socket.socket) -> None:
            first = next(turn)
            for step in range(len(backends)):
                with suppress(OSError):
                    far = socket.create_connection(backends[(first + step) % len(backends)], timeout=5.0)
                    far.settimeout(None)
                    back = threading.Thread(target=pump, args=(far, near), daemon=True)
                    back.start()
                    pump(near, far)
                    back.join()
                    far.close()
                    break
            near.close()

        threading.Thread(target=accept, daemon=True).start()
        host, port = listener.getsockname()
        yield f"{host}:{port}"
        listener.shutdown(socket.SHUT_RDWR)


def pump(source: socket.socket, target: socket.socket) -> None:
    """Carry bytes one way until either side ends, then end both."""
    with suppress(OSError):
        while piece := source.recv(_PIECE_BYTES):
            target.sendall(piece)
    for side in (source, target):
        with suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)
