"""How brokers are reached and spoken to, and what their errors mean to us.

Turns `fleet.settings.settings.KafkaSettings` into the options that every client of the driver shares. Called by the
other Kafka adapters (`bus_kafka`, `kafka_topic`, `dead_letters_kafka`, `bridge_kafka`).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import zstandard
from kafka import errors
from kafka.net.compat import KafkaNetClient
from kafka.record import default_records

from fleet.errors import Misconfigured, Unavailable
from fleet.settings.pipeline import KafkaSecurity, KafkaSettings
from pipeline.bus.bus import RecordTooLarge
from pipeline.password_file import read_password

_SASL = (KafkaSecurity.SASL_PLAINTEXT, KafkaSecurity.SASL_SSL)
_SSL = (KafkaSecurity.SSL, KafkaSecurity.SASL_SSL)
_TOO_LARGE = (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError)
_NOT_ALLOWED = (errors.AuthorizationError, errors.SaslAuthenticationFailedError, errors.UnsupportedSaslMechanismError)
_NOT_POSSIBLE = (errors.KafkaConfigurationError, errors.UnsupportedCodecError, errors.UnsupportedCompressionTypeError)


ZSTD_LEVEL = 1
"""As small as the driver's level on our records, JSON or not, for two thirds of the time."""


def keep_compressors() -> None:
    """Lets the driver compress batches with one context per thread instead of a new one for each batch.

    A context takes a megabyte: with small batches, as topics of many partitions have them, making it costs more than
    what it does. The driver has no option for that, nor for the level.
    """
    default_records.zstd_encode = _zstd


def _zstd(payload: bytes) -> bytes:
    compressor = getattr(_COMPRESSORS, "zstd", None)
    if compressor is None:
        compressor = _COMPRESSORS.zstd = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
    return bytes(compressor.compress(payload))


_COMPRESSORS = threading.local()


def client_options(settings: KafkaSettings) -> dict[str, Any]:
    """Options that producers, consumers and admin clients share.

    Raises:
        Misconfigured: a file that the settings name can't be read.
    """
    _listen_to_driver()
    options: dict[str, Any] = {
        "bootstrap_servers": list(settings.servers),
        "bootstrap_timeout_ms": settings.request_seconds * 1000,
        "request_timeout_ms": settings.request_seconds * 1000,
        "client_id": "gputide",
        "security_protocol": settings.security.value.upper(),
        "reconnect_backoff_max_ms": 1000,
    }
    if settings.security in _SSL:
        options |= {
            f"ssl_{name}": str(_readable(path, f"kafka.{setting}"))
            for name, setting, path in (
                ("cafile", "ca_file", settings.ca_file),
                ("certfile", "certificate_file", settings.certificate_file),
                ("keyfile", "key_file", settings.key_file),
            )
            if path is not None
        }
    if settings.security in _SASL and settings.password_file is not None:
        options |= {
            "sasl_mechanism": settings.mechanism.value,
            "sasl_plain_username": settings.username,
            "sasl_plain_password": read_password(settings.password_file, setting="kafka.password_file"),
        }
    return options


def consumer_options(settings: KafkaSettings, group: str) -> dict[str, Any]:
    """Options of every consumer; offsets are committed by us alone, and a missing topic is not made by asking."""
    return {
        **client_options(settings),
        "metrics_enabled": False,
        "group_id": group,
        "enable_auto_commit": False,
        "allow_auto_create_topics": False,
    }


def producer_options(settings: KafkaSettings) -> dict[str, Any]:
    """Options of every producer: a record counts once all in-sync copies have it, within the time for delivery."""
    keep_compressors()
    options, delivery_ms = client_options(settings), settings.delivery_seconds * 1000
    return {
        **options,
        "request_timeout_ms": min(options["request_timeout_ms"], delivery_ms),
        "metrics_enabled": False,
        "acks": "all",
        "max_request_size": settings.record_bytes_max + 65536,
        "delivery_timeout_ms": delivery_ms,
        "max_block_ms": delivery_ms,
        "allow_auto_create_topics": False,
    }


def open_client(kind: Callable[..., Any], options: Mapping[str, Any]) -> Any:
    """Opens a producer, consumer or admin client.

    One that can't reach brokers would leave its network thread behind, and a long outage would pile them up.

    Args:
        kind: the driver's class.
    """
    networks: list[Any] = []

    def network(**config: Any) -> Any:
        networks.append(KafkaNetClient(**config))
        return networks[-1]

    try:
        return kind(**options, kafka_client=network)
    except errors.KafkaError:
        for opened in networks:
            opened.close()
        raise


@contextmanager
def broker_errors(doing: str, settings: KafkaSettings) -> Iterator[None]:
    """Turns the driver's errors into ours.

    Args:
        doing: what can't be done, such as `read topic t`.

    Raises:
        Misconfigured: brokers don't let us in, or the settings contradict each other.
        RecordTooLarge: a record is larger than the brokers take.
        Unavailable: brokers can't be reached, or not in time.
    """
    started = time.monotonic()
    try:
        yield
    except _NOT_ALLOWED as exc:
        raise Misconfigured(
            f"cannot {doing} as {settings.username or 'nobody'} at {_servers(settings)}: {reason_of(exc)}; see "
            "kafka.security and the rights of the topic and the group"
        ) from exc
    except _NOT_POSSIBLE as exc:
        raise Misconfigured(f"cannot {doing}: {reason_of(exc)}; check the settings of kafka") from exc
    except _TOO_LARGE as exc:
        raise RecordTooLarge(
            f"cannot {doing}: a record is larger than the topic's max.message.bytes; raise it there, or lower "
            f"kafka.record_bytes_max={settings.record_bytes_max}"
        ) from exc
    except errors.KafkaError as exc:
        # What a time-out is made of, such as a certificate that does not fit, only the driver's log says.
        words = f" ({_LAST_WORDS.text})" if _LAST_WORDS.said_at >= started else ""
        if settings.security in _SASL:
            words += "; brokers that don't know kafka.username or its password may end connections without a word"
        raise Unavailable(f"cannot {doing} at {_servers(settings)}: {reason_of(exc)}{words}") from exc


def reason_of(exc: Exception) -> str:
    """An error of the driver in one line."""
    return " ".join(f"{type(exc).__name__.removesuffix('Error')} {exc}".split())[:300]


class _LastWords(logging.Handler):
    """Keeps the last thing that the driver said of a connection, and prints nothing."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.text = ""
        self.said_at = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().rpartition(">: ")[2]
        if not text.startswith("Abort"):
            self.text, self.said_at = text[:300], time.monotonic()


def _listen_to_driver() -> None:
    """The driver logs every refused connection; what matters of it is in our errors."""
    log = logging.getLogger("kafka.net.connection")
    if _LAST_WORDS not in log.handlers:
        log.addHandler(_LAST_WORDS)
        log.propagate = False
        log.setLevel(logging.ERROR)
        logging.getLogger("kafka").setLevel(logging.CRITICAL)


def _servers(settings: KafkaSettings) -> str:
    return ", ".join(settings.servers)


def _readable(path: Path, setting: str) -> Path:
    try:
        with path.open("rb"):
            return path
    except OSError as exc:
        raise Misconfigured(f"cannot read {setting}={path}: {exc.strerror or exc}") from exc


_LAST_WORDS = _LastWords()
