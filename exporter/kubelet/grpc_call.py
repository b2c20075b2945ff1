"""One gRPC call at a time over a unix socket: what is needed to ask the kubelet, and nothing else.

A gRPC library would do it too, at a price that the node exporter's 60 MiB can't pay. Measured with one channel, one
List of 80 containers (6.8 kB), Python 3.11: grpcio + 25 MiB of resident memory, 0.23 ms of CPU per call; grpclib
+ 14 MiB, 0.53 ms; this over h2 + 6 MiB, 0.36 ms. h2 keeps HTTP/2's rules (frames, header compression, windows);
what gRPC adds is here: five bytes before a message, and a status in the trailers.

Called by `exporter.kubelet.client`.

Sources: grpc/grpc:doc/PROTOCOL-HTTP2.md, doc/statuscodes.md.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes

from fleet.errors import Corrupt, Unavailable

STATUS_OK = 0
STATUS_UNKNOWN = 2
STATUS_DEADLINE_EXCEEDED = 4
STATUS_UNIMPLEMENTED = 12

_PREFIX_BYTES = 5
_WINDOW_BYTES = 1 << 20
_RECEIVE_BYTES = 1 << 16
_STATUS_MESSAGE_LENGTH_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the other side answered.

    Attributes:
        status: gRPC status; 0 means that the message is the answer.
        message: the answer; empty with a status other than 0.
    """

    status: int
    status_message: str
    message: bytes


class UnaryCaller:
    """Keeps one connection, and makes it anew when the other side has gone and come back. For one thread.

    Args:
        socket_setting: name of the setting that chooses the path, for messages.
        size_setting: name of the setting of that limit, for messages.
    """

    def __init__(self, socket_path: str, *, socket_setting: str, message_bytes_max: int, size_setting: str) -> None:
        self._path = socket_path
        self._socket_setting = socket_setting
        self._message_bytes_max = message_bytes_max
        self._size_setting = size_setting
        self._socket: socket.socket | None = None
        self._connection = _new_connection()

    def call(self, method: str, request: bytes, deadline_seconds: float) -> Reply:
        """Asks once, and once more over a new connection where the old one turns out to be dead.

        Args:
            method: path of the method, `/package.Service/Method`. Must do no harm when it is asked for twice.

        Raises:
            Unavailable: nobody there, no answer in time, or the connection broke.
            Corrupt: the answer is not gRPC, or longer than allowed.
        """
        due = time.monotonic() + deadline_seconds
        was_open = self._socket is not None
        try:
            try:
                reply = self._call(method, request, due)
            except _ConnectionLost:
                if not was_open:
                    raise
                # A connection from before a restart of the other side says nothing about whether it is there now.
                self.close()
                reply = self._call(method, request, due)
            if reply.status == STATUS_DEADLINE_EXCEEDED:
                # The server knows the deadline too, and its clock may strike before ours.
                raise TimeoutError
            return reply
        except _ConnectionLost as exc:
            self.close()
            raise Unavailable(f"cannot ask {method} on {self._path}: {exc}") from exc
        except TimeoutError as exc:
            self.close()
            raise Unavailable(f"cannot ask {method} on {self._path}: no answer in {deadline_seconds:g} s") from exc
        except BaseException:
            # Whatever half of an answer is still to come belongs to no later call.
            self.close()
            raise

    def close(self) -> None:
        """Closes the connection; the next call opens a new one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _call(self, method: str, request: bytes, due: float) -> Reply:
        channel = self._open(due)
        connection = self._connection
        answer = _Answer(self._message_bytes_max, self._size_setting, method)
        try:
            stream = connection.get_next_available_stream_id()
            connection.send_headers(stream, _headers(method, due))
            connection.send_data(stream, bytes([0]) + len(request).to_bytes(4, "big") + request, end_stream=True)
            _send(channel, connection, due)
            while not answer.is_whole:
                received = _receive(channel, due)
                answer.take(connection.receive_data(received), stream, connection)
                _send(channel, connection, due)
        except ProtocolError as exc:
            raise _ConnectionLost(f"it broke the rules of HTTP/2: {exc}") from exc
        return answer.reply()

    def _open(self, due: float) -> socket.socket:
        if self._socket is not None:
            return self._socket
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            channel.settimeout(_left(due))
            channel.connect(self._path)
        except TimeoutError:
            channel.close()
            raise
        except OSError as exc:
            channel.close()
            reason = exc.strerror or str(exc)
            raise Unavailable(
                f"cannot open the socket {self._path}: {reason}; see {self._socket_setting}, and that this process may "
                "read and write it"
            ) from exc
        self._socket = channel
        self._connection = _new_connection()
        return channel


class _ConnectionLost(Exception):
    """The connection is of no use any more."""


class _Answer:
    """What has arrived of one answer so far."""

    def __init__(self, message_bytes_max: int, size_setting: str, method: str) -> None:
        self._message_bytes_max = message_bytes_max
        self._size_setting = size_setting
        self._method = method
        self._body = bytearray()
        self._headers: dict[str, str] = {}
        self.is_whole = False

    def take(self, events: Iterable[Event], stream: int, connection: H2Connection) -> None:
        for event in events:
            if isinstance(event, ConnectionTerminated):
                raise _ConnectionLost("the other side closed the connection")
            if getattr(event, "stream_id", None) != stream:
                continue
            if isinstance(event, ResponseReceived | TrailersReceived):
                self._headers.update((_text(name), _text(value)) for name, value in event.headers or ())
            elif isinstance(event, DataReceived):
                self._body += event.data or b""
                self._check_size()
                connection.acknowledge_received_data(event.flow_controlled_length or 0, stream)
            elif isinstance(event, StreamReset):
                raise _ConnectionLost(f"the other side gave up the call (HTTP/2 error {int(event.error_code or 0)})")
            elif isinstance(event, StreamEnded):
                self.is_whole = True

    def reply(self) -> Reply:
        http_status = self._headers.get(":status")
        status = self._headers.get("grpc-status", "")
        if http_status != "200" or not (status.isascii() and status.isdigit() and len(status) <= 4):
            raise Corrupt(
                f"cannot read the answer to {self._method}: HTTP status {http_status}, gRPC status {status!r}: no gRPC"
            )
        if int(status) != STATUS_OK:
            message = unquote(self._headers.get("grpc-message", ""))[:_STATUS_MESSAGE_LENGTH_MAX]
            return Reply(status=int(status), status_message=message, message=b"")
        if len(self._body) < _PREFIX_BYTES or len(self._body) != _PREFIX_BYTES + self._length():
            raise Corrupt(f"cannot read the answer to {self._method}: {len(self._body)} bytes are not one message")
        if self._body[0] != 0:
            raise Corrupt(f"cannot read the answer to {self._method}: it is compressed, which was not asked for")
        return Reply(status=STATUS_OK, status_message="", message=bytes(memoryview(self._body)[_PREFIX_BYTES:]))

    def _check_size(self) -> None:
        length = self._length() if len(self._body) >= _PREFIX_BYTES else 0
        if max(length, len(self._body) - _PREFIX_BYTES) > self._message_bytes_max:
            raise Corrupt(
                f"cannot read the answer to {self._method} of {length} bytes: "
                f"larger than {self._size_setting}={self._message_bytes_max}"
            )

    def _length(self) -> int:
        return int.from_bytes(self._body[1:_PREFIX_BYTES], "big")


def _new_connection() -> H2Connection:
    connection = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
    connection.initiate_connection()
    connection.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: _WINDOW_BYTES})
    connection.increment_flow_control_window(_WINDOW_BYTES)
    return connection


def _headers(method: str, due: float) -> list[tuple[str, str]]:
    return [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", method),
        (":authority", "localhost"),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
        ("grpc-timeout", f"{max(1, round(_left(due) * 1000))}m"),
    ]


def _send(channel: socket.socket, connection: H2Connection, due: float) -> None:
    data = connection.data_to_send()
    if not data:
        return
    channel.settimeout(_left(due))
    try:
        channel.sendall(data)
    except TimeoutError:
        raise
    except OSError as exc:
        raise _ConnectionLost(f"the connection broke ({exc.strerror or exc})") from exc


def _receive(channel: socket.socket, due: float) -> bytes:
    channel.settimeout(_left(due))
    try:
        received = channel.recv(_RECEIVE_BYTES)
    except TimeoutError:
        raise
    except OSError as exc:
        raise _ConnectionLost(f"the connection broke ({exc.strerror or exc})") from exc
    if not received:
        raise _ConnectionLost("the other side closed the connection")
    return received


def _left(due: float) -> float:
    """Seconds until then; a socket's time-out of 0 would mean not to wait at all."""
    left = due - time.monotonic()
    if left <= 0.0:
        raise TimeoutError
    return left


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")
