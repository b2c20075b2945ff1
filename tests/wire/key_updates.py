"""A TLS 1.3 client that sends nothing but KeyUpdate messages, which Python's `ssl` can't send: libssl by ctypes.

They are made before they are sent, each under the keys that the one before it made: so it costs the peer all and the
sender nothing while they are read. Source: RFC 8446 §4.6.3; openssl/openssl:doc/man3/SSL_key_update.pod.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import socket

_NOT_REQUESTED = 0
_PIECE_BYTES = 65_536


class KeyUpdater:
    """A connection under TLS 1.3 whose records lie in memory; it checks no certificate.

    Args:
        opened: connected; the caller closes it.
    """

    def __init__(self, opened: socket.socket) -> None:
        name = ctypes.util.find_library("ssl")
        crypto = ctypes.util.find_library("crypto")
        if name is None or crypto is None:
            raise OSError("there is no libssl here")
        self._opened = opened
        self._crypto, self._ssl = ctypes.CDLL(crypto), ctypes.CDLL(name)
        for library, names in ((self._crypto, ("BIO_s_mem", "BIO_new")), (self._ssl, ("TLS_client_method",
                               "SSL_CTX_new", "SSL_new"))):  # fmt: skip
            for function in names:
                getattr(library, function).restype = ctypes.c_void_p
        pointer = ctypes.c_void_p
        self._context = pointer(self._ssl.SSL_CTX_new(pointer(self._ssl.TLS_client_method())))
        self._connection = pointer(self._ssl.SSL_new(self._context))
        kind = pointer(self._crypto.BIO_s_mem())
        self._incoming, self._outgoing = (pointer(self._crypto.BIO_new(kind)) for _ in range(2))
        self._ssl.SSL_set_bio(self._connection, self._incoming, self._outgoing)
        self._ssl.SSL_set_connect_state(self._connection)
        while self._ssl.SSL_do_handshake(self._connection) != 1:
            opened.sendall(self._written())
            came = opened.recv(_PIECE_BYTES)
            if not came:
                raise ConnectionError("the peer ended the handshake")
            self._crypto.BIO_write(self._incoming, came, len(came))
        opened.sendall(self._written())

    def updates(self, count: int) -> bytes:
        """The records of so many updates; they must be sent in the order in which they were made."""
        records = []
        for _ in range(count):
            if self._ssl.SSL_key_update(self._connection, _NOT_REQUESTED) != 1:
                raise OSError("libssl makes no KeyUpdate")
            self._ssl.SSL_do_handshake(self._connection)
            records.append(self._written())
        return b"".join(records)

    def records(self, data: bytes) -> bytes:
        """The record of some data, under the keys of now."""
        self._ssl.SSL_write(self._connection, data, len(data))
        return self._written()

    def send(self, records: bytes) -> None:
        """Send records that were made."""
        self._opened.sendall(records)

    def is_ended(self) -> bool:
        """Whether the peer has closed the connection."""
        self._opened.setblocking(False)
        try:
            return self._opened.recv(_PIECE_BYTES) == b""
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        finally:
            self._opened.settimeout(10.0)

    def close(self) -> None:
        """Free what libssl holds."""
        self._ssl.SSL_free(self._connection)
        self._ssl.SSL_CTX_free(self._context)

    def _written(self) -> bytes:
        buffer = ctypes.create_string_buffer(_PIECE_BYTES)
        pieces = []
        while (count := self._crypto.BIO_read(self._outgoing, buffer, _PIECE_BYTES)) > 0:
            pieces.append(buffer.raw[:count])
        return b"".join(pieces)
