"""Opens the receiver in front of the bus, with its TLS, senders and limits, as the settings say."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext

from fleet.addresses import is_loopback
from fleet.data_folder import DataFolder
from fleet.errors import Misconfigured
from fleet.settings.settings import Settings
from gputide.container.bus import intakes_of, open_awaited_bus
from gputide.container.telemetry import open_telemetry
from pipeline.receiver.counts import SharedCounts
from pipeline.receiver.receiver import Receiver
from pipeline.receiver.senders import Sender, Senders
from wire.http_server import listen
from wire.listener_tls import ListenerContexts
from wire.port_guard import PortGuard
from wire.telemetry import show

AHEAD_SECONDS = 86_400
"""How far a sender's clock may be ahead of ours: one that took local time for UTC is fourteen hours ahead at most. A
sample of a later time, once the newest, would hide all others."""


@contextmanager
def open_receiver(
    folder: DataFolder,
    settings: Settings,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    lane: int = 0,
    listener: socket.socket | None = None,
    counts: SharedCounts | None = None,
) -> Iterator[tuple[str, int]]:
    """The receiver, serving in the background; yields the address that it listens on.

    Args:
        port: port to listen on; 0 lets the system choose.
        lane: lane of the file bus, and number of this process among those that receive.
        listener: a socket that listens already, instead of host and port; closed by its opener.
        counts: where several processes count together.

    Raises:
        Unavailable: the address can't be listened on, or another process receives into the folder.
        Misconfigured: certificates or tokens can't be used, or the address asks for them.
    """
    tls = receiver_tls(settings)
    senders = receiver_senders(settings)
    counts = SharedCounts(senders.names) if counts is None else counts
    with (
        open_telemetry(settings, "receiver"),
        open_awaited_bus(folder, settings, lane=lane) as (bus, is_open),
        closing(open_listener(settings, host, port)) if listener is None else nullcontext(listener) as opened,
    ):
        intake_of = intakes_of(bus, settings, is_lingering=True, ts_max_ms=_ts_max_ms)
        server = Receiver(
            lambda sender: intake_of(sender.cluster),
            listener=opened,
            limits=settings.receiver,
            senders=senders,
            tls=None if tls is None else tls.context,
            guard=receiver_guard(settings),
            is_ready=is_open,
            counts=counts.of_process(lane),
        )
        if lane == 0:
            show(counts)  # those of all processes
        server.start()
        try:
            yield server.address
        finally:
            server.stop()


def _ts_max_ms() -> int:
    return int((time.time() + AHEAD_SECONDS) * 1000)


def open_listener(settings: Settings, host: str, port: int) -> socket.socket:
    """The socket that the receiver listens on.

    Raises:
        Misconfigured: it would take samples of everybody from beyond this machine, or the address can't be used.
        Unavailable: another process listens there.
    """
    limits = settings.receiver
    is_asked = limits.tokens_file is not None or limits.client_ca_file is not None
    if not (is_asked or limits.insecure_listen or is_loopback(host)):
        raise Misconfigured(
            f"cannot listen on {host}:{port}: everybody could send as any cluster; set receiver.tokens_file or "
            "receiver.client_ca_file, or say receiver.insecure_listen=true"
        )
    return listen(host, port, setting="--listen")


def receiver_tls(settings: Settings) -> ListenerContexts | None:
    """TLS of the receiver; None where it speaks plain HTTP.

    Raises:
        Misconfigured: a file of it can't be used.
    """
    limits = settings.receiver
    if limits.tls_certificate_file is None or limits.tls_key_file is None:
        return None
    files = limits.files("receiver", limits.scrape_tokens_file)
    # A sender with a token needs no certificate, and neither does a probe of /healthz; a wrong one is refused by the
    # handshake, and `Senders` refuses who shows neither.
    return ListenerContexts(files, needs_client=False, now_seconds=time.monotonic)


def receiver_guard(settings: Settings) -> PortGuard | None:
    """Who may read the receiver's metrics, by a token or a certificate; None for everybody.

    Raises:
        Misconfigured: the file of tokens can't be used.
    """
    limits = settings.receiver
    files = limits.files("receiver", limits.scrape_tokens_file)
    if not files.are_clients_asked:
        return None
    return PortGuard(files, tokens_setting="scrape_tokens_file", now_seconds=time.monotonic)


def receiver_senders(settings: Settings) -> Senders:
    """Who may send.

    Raises:
        Misconfigured: the file of tokens can't be used.
    """
    limits = settings.receiver
    return Senders(
        {
            name: Sender(
                name=name,
                cluster=sender.cluster or name,
                series_max=sender.series_max,
                body_bytes_max=sender.body_bytes_max,
                samples_per_second=sender.samples_per_second,
                requests_per_second=sender.requests_per_second,
            )
            for name, sender in limits.senders.items()
        },
        tokens_file=limits.tokens_file,
        takes_certificates=limits.client_ca_file is not None,
        now_seconds=time.monotonic,
    )
