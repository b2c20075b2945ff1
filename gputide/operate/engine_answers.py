"""Whether an engine answers: not an open port, but a call that goes all the way through and back.

The only place of the engines' verb that knows drivers. Called by the engines' own modules, through the parts that they
describe.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from importlib import import_module

from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.settings.pipeline import HiveSettings
from gputide.operate.engine_parts import Engine
from wire.http_answer import read_body
from wire.http_client import Endpoint, HttpClient, Request

_CALL_SECONDS = 3
_ANSWER_BYTES_MAX = 1 << 20
_QUERY_SECONDS = 20
"""A first query on a machine that does much else takes long, and one that is given up is work done for nothing."""


def kafka_answers(port: int) -> bool:
    """Whether a broker on loopback takes part in its cluster and lists its topics.

    Raises:
        Misconfigured: the driver is not installed.
    """
    with _driver_of("kafka"):
        from kafka import KafkaAdminClient
        from kafka.errors import KafkaError

        from pipeline.bus.kafka_client import open_client
    options = {
        "bootstrap_servers": f"127.0.0.1:{port}", "bootstrap_timeout_ms": _CALL_SECONDS * 1000,
        "request_timeout_ms": _CALL_SECONDS * 1000, "client_id": "gputide-engines",
    }  # fmt: skip
    with _silent("kafka"):
        try:
            admin = open_client(KafkaAdminClient, options)
        except KafkaError:
            return False
        with closing(admin):
            try:
                # A broker that was killed and came back is listed only when the controller has let it in again.
                admin.list_topics()
                return bool(admin.describe_cluster()["brokers"])
            except KafkaError:
                return False


def check_drivers(engines: Sequence[Engine]) -> None:
    """Looks whether engines that are started could be asked whether they answer.

    Raises:
        Misconfigured: a driver is not installed.
    """
    for engine, drivers in ((Engine.KAFKA, ("kafka",)), (Engine.HIVE, ("thrift", "pyhive"))):
        if engine in engines:
            with _driver_of(engine.value):
                for driver in drivers:
                    import_module(driver)


def metastore_answers(port: int) -> bool:
    """Whether a Hive metastore on loopback reports its databases (`get_all_databases` of its Thrift interface).

    Raises:
        Misconfigured: the driver is not installed.
    """
    with _driver_of("hive"):
        from thrift.protocol.TBinaryProtocol import TBinaryProtocol
        from thrift.Thrift import TException, TMessageType
        from thrift.transport.TSocket import TSocket
        from thrift.transport.TTransport import TBufferedTransport
    socket = TSocket("127.0.0.1", port)
    socket.setTimeout(_CALL_SECONDS * 1000)
    with _silent("thrift"), closing(TBufferedTransport(socket)) as transport:
        protocol = TBinaryProtocol(transport)
        try:
            transport.open()
            protocol.writeMessageBegin("get_all_databases", TMessageType.CALL, 1)
            protocol.writeStructBegin("arguments")
            protocol.writeFieldStop()
            protocol.writeStructEnd()
            protocol.writeMessageEnd()
            transport.flush()
            _, kind, _ = protocol.readMessageBegin()
        except (TException, OSError, EOFError):
            return False
    return bool(kind == TMessageType.REPLY)


def hive_answers(port: int) -> bool:
    """Whether a HiveServer2 on loopback computes `select 1`.

    Raises:
        Misconfigured: the driver is not installed.
    """
    with _driver_of("hive"):
        from pipeline.warehouse.hive_session import HiveSession
    with closing(HiveSession(HiveSettings(port=port, request_seconds=_QUERY_SECONDS))) as session:
        try:
            return session.rows("select 1") == [(1,)]
        except (Unavailable, Misconfigured, Corrupt):
            return False


def flink_answers(port: int, *, taskmanagers_min: int) -> bool:
    """Whether a JobManager on loopback knows that many TaskManagers (`/overview` of its REST interface)."""
    http = HttpClient(Endpoint(host="127.0.0.1", port=port), "gputide-engines", is_kept=False)
    try:
        with http.ask(Request(path="/overview", seconds_max=_CALL_SECONDS)) as answer:
            body = read_body(answer, _ANSWER_BYTES_MAX)
        return int(json.loads(body)["taskmanagers"]) >= taskmanagers_min
    except (Unavailable, Corrupt, ValueError, RecursionError, KeyError, TypeError):
        return False


@contextmanager
def _driver_of(extra: str) -> Iterator[None]:
    try:
        yield
    except ImportError as exc:
        raise Misconfigured(f"cannot talk to {extra}: {exc.name} is not installed; install gputide[{extra}]") from exc


@contextmanager
def _silent(name: str) -> Iterator[None]:
    """Keep a driver from logging every refused connection while its server is starting."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)
