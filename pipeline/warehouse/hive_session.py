"""A session with HiveServer2: statements go, rows come. The only place of the pipeline that knows PyHive and Thrift.

Called by `catalogue_hive`. Whatever is sent here can be sent twice, so a statement that a dead session has cut off
(server restarted, session expired) is sent again over a new one, once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import thrift_sasl
from pyhive import hive
from pyhive.exc import Error
from thrift.Thrift import TException
from thrift.transport.TSocket import TSocket
from thrift.transport.TSSLSocket import TSSLSocket
from thrift.transport.TTransport import TBufferedTransport

from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.settings.pipeline import HiveAuth, HiveSettings
from pipeline.password_file import read_password
from wire.tls import Tls, TlsContexts

_BROKEN = (TException, OSError, EOFError)
"""What a connection ends with; Thrift lets the errors of sockets and of short reads through."""
_FORGOTTEN = ("Invalid SessionHandle", "Session does not exist", "Invalid OperationHandle")
_NO_METASTORE = (
    "TTransportException", "ConnectException", "Connection refused", "Connection reset", "Broken pipe",
    "Could not connect to meta store", "SocketTimeoutException", "Unable to instantiate",
)  # fmt: skip
"""What HiveServer2 says while its metastore is away; every sentence goes with the one error code of all failures."""
_NOT_THERE = ("does not exist", "not found")
"""What the first statement after the metastore's end gets to hear as well: HiveServer2 takes no answer for a no."""
_REFUSED_SIGN_ON = "Bad status: 3 "
"""What the driver makes of a sign-on that the server does not take (`NegotiationStatus.BAD` of Thrift's SASL)."""
_NOT_ALLOWED = ("HiveAccessControlException", "AccessControlException", "Permission denied", "privileges")


class HiveSession:
    """Opened by its first statement."""

    def __init__(self, settings: HiveSettings) -> None:
        self._settings = settings
        self._connection: Any = None

    def execute(self, statement: str) -> None:
        """Sends a statement that has no rows for an answer.

        Raises:
            Unavailable: the server or its metastore does not answer; it may have done what was asked for.
            Misconfigured: the server does not let us in, or not do this.
            Corrupt: the server can't do what the statement says.
        """
        self._ask(statement, with_rows=False)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """Sends a statement, and returns its rows; raises as `execute`."""
        return self._ask(statement, with_rows=True)

    def close(self) -> None:
        """Ends the session; the next statement opens another."""
        if self._connection is not None:
            with suppress(Error, *_BROKEN):
                self._connection.close()
            self._connection = None

    def _ask(self, statement: str, *, with_rows: bool) -> list[tuple[Any, ...]]:
        if self._connection is not None:
            try:
                return self._answer(statement, with_rows=with_rows)
            except _BROKEN:
                self.close()
            except Error as exc:
                if not any(words in _reason_of(exc) for words in _FORGOTTEN):
                    raise self._error_of(statement, exc) from exc
                self.close()
        with self._silence():
            try:
                self._connection = self._connected()
                return self._answer(statement, with_rows=with_rows)
            except _BROKEN as exc:
                self.close()
                if _REFUSED_SIGN_ON in _reason_of(exc):
                    raise Misconfigured(
                        f"Hive at {self._address} does not let hive.username={self._settings.username} in: "
                        f"{_reason_of(exc)}; see hive.auth and hive.password_file"
                    ) from exc
                raise Unavailable(f"cannot talk to HiveServer2 at {self._address}: {_reason_of(exc)}") from exc
            except Error as exc:
                raise self._error_of(statement, exc) from exc

    def _answer(self, statement: str, *, with_rows: bool) -> list[tuple[Any, ...]]:
        cursor = self._connection.cursor()
        try:
            cursor.execute(statement)
            # After a statement without rows the driver has no description, and fetching would be an error.
            return list(cursor.fetchall()) if with_rows and cursor.description is not None else []
        finally:
            with suppress(Error, *_BROKEN):
                cursor.close()

    def _connected(self) -> Any:
        settings = self._settings
        socket = self._socket()
        socket.setTimeout(settings.request_seconds * 1000)
        if settings.auth is HiveAuth.NOSASL:
            transport = TBufferedTransport(socket)
        else:
            mechanism = "GSSAPI" if settings.auth is HiveAuth.KERBEROS else "PLAIN"
            transport = thrift_sasl.TSaslClientTransport(self._sign_on(mechanism), mechanism, socket)
        return hive.connect(thrift_transport=transport, username=settings.username, database="default")

    def _socket(self) -> Any:
        settings = self._settings
        if not settings.tls:
            return TSocket(settings.host, settings.port)
        try:
            context = TlsContexts(
                Tls(
                    authority_file=settings.ca_file,
                    certificate_file=settings.certificate_file,
                    key_file=settings.key_file,
                )
            ).context()
        except Misconfigured as exc:
            raise Misconfigured(f"cannot use hive.ca_file={settings.ca_file}: {exc}") from exc
        return _TlsSocket(settings.host, settings.port, ssl_context=context, server_hostname=settings.host)

    def _sign_on(self, mechanism: str) -> Callable[[], Any]:
        settings = self._settings
        # Without a password of its own the mechanism wants some text all the same.
        path = settings.password_file
        password = "x" if path is None else read_password(path, setting="hive.password_file")
        return lambda: hive.get_installed_sasl(
            host=settings.host,
            sasl_auth=mechanism,
            service=settings.kerberos_service if mechanism == "GSSAPI" else None,
            username=settings.username,
            password=password,
        )

    @property
    def _address(self) -> str:
        return f"{self._settings.host}:{self._settings.port}"

    def _error_of(self, statement: str, error: Error) -> Exception:
        reason, doing = _reason_of(error), " ".join(statement.split())[:200]
        is_away = any(words in reason for words in _NO_METASTORE)
        if is_away or (any(words in reason for words in _NOT_THERE) and not self._has_metastore()):
            return Unavailable(f"cannot use Hive at {self._address}: its metastore does not answer: {reason}")
        if any(words in reason for words in _NOT_ALLOWED):
            return Misconfigured(
                f"Hive at {self._address} does not let hive.username={self._settings.username} do `{doing}`: {reason}"
            )
        return Corrupt(f"Hive at {self._address} cannot do `{doing}`: {reason}")

    def _has_metastore(self) -> bool:
        if self._connection is None:  # not even the database `default` was found
            return False
        try:
            return bool(self._answer("SHOW DATABASES", with_rows=True))
        except (Error, *_BROKEN):
            return False

    @contextmanager
    def _silence(self) -> Iterator[None]:
        """Keeps the driver from logging a refused connection that an error reports anyway."""
        loggers = [logging.getLogger(name) for name in ("thrift", "pyhive")]
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


class _TlsSocket(TSSLSocket):  # type: ignore[misc]  # the driver has no types
    """A socket that can be closed before it was opened, as the driver does after a handshake that failed."""

    def close(self) -> None:
        if self.handle is not None:
            super().close()


def _reason_of(error: BaseException) -> str:
    """An error in one line; Hive's own sentence where the driver has wrapped it."""
    status = getattr(error.args[0], "status", None) if error.args else None
    text = getattr(status, "errorMessage", None) or str(error) or type(error).__name__
    return " ".join(text.split())[:500]
