"""`gputide run receive`: the remote-write receiver that a Prometheus sends to."""

from __future__ import annotations

import gc
import signal
import socket
import sys
import threading
import traceback
from contextlib import closing
from typing import Annotated

import typer

from fleet.addresses import host_and_port
from fleet.data_folder import DataFolder
from fleet.errors import EXIT_BUG, EXIT_FINE, GputideError
from gputide.container.bus import open_bridge
from gputide.container.own_metrics import open_own_metrics
from gputide.container.receiver import open_listener, open_receiver, receiver_senders, receiver_tls
from gputide.session import Session, session_of
from pipeline.receiver.counts import SharedCounts
from wire.processes import STOP_SIGNALS, ReceiverProcesses, bound_heap, hold_stop_signals, wait_for_stop

app = typer.Typer()

SWITCH_SECONDS = 0.0005
"""How long a thread keeps the interpreter while others want it.

With Python's 5 ms a request under way waits for hundreds of threads that read bodies only to refuse them: under several
times its load a receiver took in a fifth of what it does so.
"""


GARBAGE_OBJECTS = 50_000
"""New objects after which cycles among them are looked for.

With Python's 700 that is done several times for every append to a topic of many partitions, whose records are some
thousand objects in Kafka's driver, and takes a sixth of the receiver's time. Hardly anything here is in a cycle.
"""


@app.command(epilog="Example: gputide run receive --listen 127.0.0.1:9009")
def receive(
    context: typer.Context,
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Address to listen on.")] = "127.0.0.1:9009",
    from_kafka: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="Take the JSON messages of a remote-write-to-Kafka adapter instead."),
    ] = None,
) -> None:
    """Take remote-write bodies at /api/v1/write and put them on the bus; `gputide run rollup` takes them from there."""
    session = session_of(context)
    if from_kafka is not None:
        _receive_from_kafka(session, from_kafka)
        return
    host, port = host_and_port(listen)
    folder, settings = session.folder(create=True), session.settings
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(GARBAGE_OBJECTS)
    bound_heap()
    hold_stop_signals()
    if settings.receiver.processes == 1:
        with open_receiver(folder, settings, host=host, port=port) as address:
            _say_address(session, address)
            wait_for_stop()
    else:
        status = _receive_by_many(session, folder, host, port)
        if status != EXIT_FINE:
            raise typer.Exit(status)
    typer.echo("stopped; everything acknowledged is on the bus", err=True)


def _receive_from_kafka(session: Session, topic: str) -> None:
    """Takes an adapter's messages until it is stopped; says what could not be read."""
    stopped = threading.Event()
    # Between two steps nobody waits for a signal, as `wait_for_stop` does: a handler keeps it until then.
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: stopped.set())
    from pipeline.bus.bridge_kafka import BridgeMetrics

    with (
        open_own_metrics(session.settings, "bridge", BridgeMetrics) as metrics,
        open_bridge(session.folder(create=True), session.settings, topic) as bridge,
    ):
        typer.echo(f"taking messages of topic {topic}; Ctrl-C stops", err=True)
        bridge.run(stopped.wait, metrics)
        counts = bridge.counts
    typer.echo(
        f"stopped; {counts['messages']} messages taken, {counts['messages_unreadable']} of them could not be read",
        err=True,
    )


def _receive_by_many(session: Session, folder: DataFolder, host: str, port: int) -> int:
    """Several processes on one socket; the exit status."""
    settings = session.settings
    receiver_tls(settings)  # what is wrong with files of settings is said once, before there are processes
    counts = SharedCounts(receiver_senders(settings).names, settings.receiver.processes)
    with closing(open_listener(settings, host, port)) as listener:

        def serve(process: int) -> int:
            return _serve_as(process, folder, session, listener, counts)

        name = listener.getsockname()
        _say_address(session, (str(name[0]), int(name[1])))
        return ReceiverProcesses(settings.receiver.processes, serve).run()


def _serve_as(process: int, folder: DataFolder, session: Session, listener: socket.socket, counts: SharedCounts) -> int:
    """What one of several processes does; it ends without going back through the program's own end."""
    try:
        with open_receiver(folder, session.settings, lane=process, listener=listener, counts=counts):
            wait_for_stop()
    except GputideError as exc:
        typer.echo(f"gputide: {exc}", err=True)
        return exc.exit_status
    except Exception:  # noqa: BLE001 - the outermost frame of a process: whatever comes here is a bug, and is shown
        traceback.print_exc()
        sys.stderr.flush()
        return EXIT_BUG
    return EXIT_FINE


def _say_address(session: Session, address: tuple[str, int]) -> None:
    scheme = "http" if session.settings.receiver.tls_certificate_file is None else "https"
    host = f"[{address[0]}]" if ":" in address[0] else address[0]
    typer.echo(f"listening on {scheme}://{host}:{address[1]}/api/v1/write; Ctrl-C stops", err=True)
