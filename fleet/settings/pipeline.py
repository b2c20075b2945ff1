"""Settings of the flow of samples: receiver, bus, Kafka, rollup, Flink, warehouse, readers. Part of all settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from fleet.settings.kinds import Bytes, Count, Seconds, Section
from fleet.settings.listener import ListenerSettings
from fleet.units import GIB, MIB


class SenderSettings(Section):
    """One sender of the receiver: whose samples these are, and what it may cost."""

    cluster: str | None = Field(default=None, min_length=1, max_length=253)
    """Cluster of all its samples; none for the sender's own name."""
    series_max: Count | None = None
    """Distinct series of it that are remembered; none for the receiver's own bound."""
    body_bytes_max: Bytes | None = None
    """Largest compressed body of one request of it; none for the receiver's own bound."""
    samples_per_second: Count | None = None
    """Samples that it may send, with bursts of as much as ten seconds; none for any number."""
    requests_per_second: Count | None = None
    """Requests that it may send, with bursts of as much as ten seconds; none for any number."""


class ReceiverSettings(ListenerSettings):
    """Limits of the remote-write receiver: what a sender may cost us."""

    body_bytes_max: Bytes = 16 * MIB
    """Largest compressed body of one request."""
    decoded_bytes_max: Bytes = 32 * MIB
    """Largest body after decompression; checked before memory is taken."""
    body_samples_max: Count = 200_000
    """Most samples, and most series, of one request; Prometheus sends 2,000 to 10,000."""
    series_max: Count = 1_000_000
    """How many distinct series that gputide wants are remembered; samples of new ones beyond it are refused with 400
    and counted. With those that nobody asked for they take 768 bytes each at most."""
    forget_seconds: Seconds = 7200
    """How long a series may be silent until it is forgotten; where there is no room, sooner."""
    labels_max: Count = 64
    """Most labels of one series; a series with more is dropped and counted."""
    label_bytes_max: Bytes = 2048
    """Longest name or value of a label; a series with a longer one is dropped and counted."""
    pending_requests_max: Count = 64
    """How many requests may wait at once; further senders are asked to try again later."""
    pending_bytes_max: Bytes = 64 * MIB
    """Most bytes of all bodies under way, compressed; further senders are asked to try again later. Bodies beyond 1 MiB
    leave a quarter of it to smaller ones."""
    connections_max: Count = 512
    """Open connections; a further one takes the place of the one that has been silent for longest."""
    request_seconds: Seconds = 30
    """How long a request may take to arrive."""
    idle_seconds: Seconds = 300
    """How long a connection may be silent between two requests."""
    stop_seconds: Seconds = 10
    """How long requests under way may take to be answered once the receiver is asked to stop."""
    processes: Annotated[int, Field(ge=1, le=64)] = 1
    """Processes that serve the one port; all other limits are those of each process."""
    insecure_listen: bool = False
    """Listen beyond loopback although senders don't say who they are."""
    scrape_tokens_file: Path | None = None
    """Who may read `/metrics`, a line `TOKEN NAME` each; none for everybody, or for who shows a certificate of
    `client_ca_file`. Read again when changed."""
    tokens_file: Path | None = None
    """File with a line `TOKEN SENDER` per sender; TOKEN may be `sha256:` and its digest. Read again when changed."""
    senders: Mapping[str, SenderSettings] = {}
    """Clusters and limits of senders by name; where it is empty, every sender with a token or certificate may send."""

    @model_validator(mode="after")
    def _decoded_holds_a_body(self) -> Self:
        if self.decoded_bytes_max < self.body_bytes_max:
            raise ValueError(
                f"decoded_bytes_max={self.decoded_bytes_max} is below body_bytes_max={self.body_bytes_max}"
            )
        return self

    @model_validator(mode="after")
    def _pending_bytes_hold_a_body(self) -> Self:
        needed = 2 * self.body_bytes_max
        if self.pending_bytes_max < needed:
            raise ValueError(f"pending_bytes_max={self.pending_bytes_max} is below two of body_bytes_max: {needed}")
        return self

    @model_validator(mode="after")
    def _senders_are_known(self) -> Self:
        if self.senders and self.tokens_file is None and self.client_ca_file is None:
            raise ValueError("senders needs tokens_file or client_ca_file: somebody must say who sends")
        return self


class BusKind(StrEnum):
    """What carries records from the receiver to the rollup."""

    FILE = "file"
    """Segment files in the data folder."""
    KAFKA = "kafka"
    """The topic of the section `kafka`."""


class BusSettings(Section):
    """The bus between receiver and rollup."""

    kind: BusKind = BusKind.FILE
    """What carries records: file or kafka."""
    segment_bytes: Bytes = 64 * MIB
    """Size at which a segment file is closed and the next one begun."""
    bytes_max: Bytes = 20 * GIB
    """Most bytes kept for readers that lag; when they are used up, senders are asked to try again later."""

    @model_validator(mode="after")
    def _bus_holds_segments(self) -> Self:
        if self.bytes_max < 2 * self.segment_bytes:
            raise ValueError(
                f"bytes_max={self.bytes_max} holds fewer than two segments of segment_bytes={self.segment_bytes}"
            )
        return self


class KafkaSecurity(StrEnum):
    """How brokers are spoken to."""

    PLAINTEXT = "plaintext"
    SSL = "ssl"
    SASL_PLAINTEXT = "sasl_plaintext"
    SASL_SSL = "sasl_ssl"


class KafkaMechanism(StrEnum):
    """How a client says who it is."""

    PLAIN = "PLAIN"
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


class KafkaCompression(StrEnum):
    """What records are compressed with on their way and on the brokers."""

    OFF = "off"
    GZIP = "gzip"
    LZ4 = "lz4"
    ZSTD = "zstd"


class KafkaSettings(Section):
    """The Kafka topic between receiver and rollup."""

    servers: tuple[str, ...] = ("127.0.0.1:9092",)
    """Brokers to begin with, HOST:PORT each."""
    topic: str = Field(default="gputide-samples", pattern=r"^[A-Za-z0-9._-]{1,240}$")
    """Topic of the records; those that can't be read go to the topic of this name with `.dead` at its end."""
    group: str = Field(default="gputide-rollup", min_length=1, max_length=255)
    """Consumer group whose offsets say how far the warehouse is."""
    create_topic: bool = True
    """Make topics that are missing."""
    partitions: Annotated[int, Field(ge=1, le=10_000)] = 8
    """Partitions of a topic that is made; a card's rows stay in one of them."""
    replication_factor: Annotated[int, Field(ge=1, le=32)] | None = None
    """Copies of a topic that is made; none for three, or as many as there are brokers."""
    retention_seconds: Seconds = 7 * 86400
    """How long records are kept at least, whether the rollup has them or not."""
    record_bytes_max: Bytes = 16 * MIB
    """Largest record; the topic must take it."""
    pending_bytes_max: Bytes = 64 * MIB
    """Most bytes under way to the brokers; when they are used up, senders are asked to try again later."""
    lag_bytes_max: Bytes = 64 * GIB
    """Most bytes that may wait for the rollup, estimated; beyond them senders are asked to try again later."""
    linger_milliseconds: Annotated[int, Field(ge=0, le=1000)] = 100
    """How long a small body waits for others that go into one record with it; 0 where senders send one after the
    other."""
    delivery_seconds: Seconds = 20
    """How long brokers may take to make a record durable before its sender is asked to try again."""
    request_seconds: Seconds = 10
    """How long brokers may take to answer one request."""
    compression: KafkaCompression = KafkaCompression.OFF
    """What records are compressed with."""
    security: KafkaSecurity = KafkaSecurity.PLAINTEXT
    """How brokers are spoken to."""
    ca_file: Path | None = None
    """Authorities (PEM) that brokers' certificates are checked with; none for those of the machine."""
    certificate_file: Path | None = None
    """Our certificate (PEM), where brokers ask for one."""
    key_file: Path | None = None
    """Key of our certificate (PEM)."""
    mechanism: KafkaMechanism = KafkaMechanism.SCRAM_SHA_512
    """How we say who we are, with `security` sasl_plaintext or sasl_ssl."""
    username: str | None = None
    """Who we are, with `security` sasl_plaintext or sasl_ssl."""
    password_file: Path | None = None
    """File whose first line is our password; it is in no setting, so that no log or process list shows it."""

    @model_validator(mode="after")
    def _security_is_whole(self) -> Self:
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file go together")
        if self.security in (KafkaSecurity.SASL_PLAINTEXT, KafkaSecurity.SASL_SSL):
            if self.username is None or self.password_file is None:
                raise ValueError(f"security={self.security.value} needs username and password_file")
        elif self.username is not None or self.password_file is not None:
            raise ValueError("username and password_file need security=sasl_ssl or sasl_plaintext")
        return self

    @model_validator(mode="after")
    def _pending_bytes_hold_a_record(self) -> Self:
        if self.pending_bytes_max < self.record_bytes_max:
            raise ValueError(f"pending_bytes_max={self.pending_bytes_max} holds no record of {self.record_bytes_max}")
        return self


class RollupSettings(Section):
    """The aggregation of samples into windows."""

    window_seconds: Seconds = Field(default=60, le=900)
    """Length of the finest window; a divisor of 900 (coarser tables are merges of finer ones)."""
    chunk_bytes: Bytes = 256 * MIB
    """How much of the bus one step of the rollup takes in at most."""
    pause_seconds: Annotated[int, Field(ge=0, le=900)] = 15
    """Shortest time between the begins of two steps over all lanes that take in little, so that they make few files."""
    late_days: Annotated[int, Field(ge=1, le=28)] = 2
    """Whole days after which a day is closed: samples of it that come later are refused and counted as late."""
    repeat_memory_seconds: Seconds = 3600
    """How long the hash of a request's body is remembered, so that one that is sent again counts once."""

    @field_validator("window_seconds")
    @classmethod
    def _window_divides_a_quarter(cls, value: int) -> int:
        if 900 % value:
            raise ValueError("must divide 900, so that quarters of an hour are merges of whole windows")
        return value


class WarehouseKind(StrEnum):
    """What makes the warehouse's files known."""

    DUCKDB = "duckdb"
    """Nothing but gputide reads them."""
    HIVE = "hive"
    """They are also the tables of the section `hive`."""


class WarehouseSettings(Section):
    """The warehouse of windows and sightings."""

    kind: WarehouseKind = WarehouseKind.DUCKDB
    """What makes the warehouse's files known: duckdb or hive."""
    files_max: Count = 2
    """Files of one partition (table, day, cluster); one with more is merged."""
    keep_replaced_seconds: Seconds = 3600
    """How long files that were merged are kept for those who still read them; longer than the longest query."""
    retain_days: Annotated[int, Field(ge=1)] | None = None
    """Days that are kept, counted back from today; none for all."""
    retain_finest_days: Annotated[int, Field(ge=29)] | None = None
    """Days whose finest windows are kept, the four weeks of a profile at least; none for as long as the others."""
    upkeep_seconds: Seconds | None = 6 * 3600
    """How often a running roll-up merges and drops while its bus is empty; none: `gputide admin warehouse` does."""

    @model_validator(mode="after")
    def _finest_windows_go_first(self) -> Self:
        finest, days = self.retain_finest_days, self.retain_days
        if finest is not None and days is not None and finest > days:
            raise ValueError(f"retain_finest_days={finest} is more than retain_days={days}")
        return self


_WITH_PASSWORD = re.compile(r"^[\w+]+://[^:/]*:[^@]*@|[?&]\w*(?:password|passwd|pwd)=", re.IGNORECASE)
"""An address of a database that holds a password, as SQLAlchemy takes addresses apart, or its driver does."""


class IcebergSettings(Section):
    """The warehouse as Apache Iceberg tables, for Spark, Trino, Flink, Hive and others to read."""

    database: str | None = Field(default=None, min_length=1)
    """Database of the tables' catalogue, `sqlite:////PATH` or `postgresql+pg8000://USER@HOST/DATABASE`; none: there are
    no tables."""
    password_file: Path | None = None
    """File whose first line is the password for the database."""
    catalogue: str = Field(default="gputide", pattern=r"^[A-Za-z][A-Za-z0-9_]{0,127}$")
    """What readers call the catalogue."""
    namespace: str = Field(default="gputide", pattern=r"^[a-z][a-z0-9_]{0,127}$")
    """Namespace of the tables; made where it is missing."""
    location: str | None = None
    """What readers call the folder of the warehouse, such as `file:///mnt/gputide`; none for its path, or for
    `hive.location`."""
    publish_seconds: Seconds = 60
    """How often a running roll-up makes the tables say what the warehouse has."""

    @field_validator("database")
    @classmethod
    def _holds_no_password(cls, database: str | None) -> str | None:
        if database is not None and _WITH_PASSWORD.search(database):
            raise ValueError("database holds a password; name a file with it in iceberg.password_file")
        return database


class HiveAuth(StrEnum):
    """How HiveServer2 asks who we are (`hive.server2.authentication`)."""

    NONE = "NONE"
    NOSASL = "NOSASL"
    LDAP = "LDAP"
    CUSTOM = "CUSTOM"
    KERBEROS = "KERBEROS"


class FlinkSettings(Section):
    """The rollup on Flink (`gputide run rollup --engine flink`); it reads the topic of `kafka`."""

    parallelism: Annotated[int, Field(ge=1, le=128)] = 1
    """Tasks of each kind that run beside each other."""
    checkpoint_seconds: Seconds = 60
    """Time between checkpoints: how long samples are added up before the warehouse gets their sums; longer makes fewer
    and larger rows."""
    state_folder: Path | None = None
    """Folder for checkpoints and files, with one path on every machine of the cluster; none for the data folder."""
    rest: str | None = Field(default=None, pattern=r"^https?://[^/\s:]+:[0-9]{1,5}$")
    """Address of a JobManager, http://HOST:PORT or https://HOST:PORT; none runs the job in a process of ours."""
    ca_file: Path | None = None
    """Authorities (PEM) that an https JobManager's certificate is checked with; none for those of the machine."""
    certificate_file: Path | None = None
    """Certificate that is shown to it (`security.ssl.rest.authentication-enabled`)."""
    key_file: Path | None = None
    """Its key; none where it stands in the same file."""
    home: Path | None = None
    """Folder of a Flink, with `lib` below it; none for the one that `gputide admin engines fetch` fetches."""
    jars: Path | None = None
    """Folder with the jars of Kafka connector, Parquet and Hadoop; none for those of `gputide admin engines fetch`."""
    java_options: str = "-Xmx1g"
    """Options of the Java machine that runs the job, without a JobManager."""
    drain_seconds: Seconds = 1800
    """How long `--drain` may take."""
    configuration: Mapping[str, str] = {}
    """Further options of Flink by their names, which win over ours."""


class HiveSettings(Section):
    """The Hive that knows the warehouse's files as tables, with `warehouse.kind` hive."""

    host: str = Field(default="127.0.0.1", min_length=1)
    """Where HiveServer2 answers, in binary mode."""
    port: Annotated[int, Field(ge=1, le=65535)] = 10000
    """Port on which HiveServer2 answers."""
    database: str = Field(default="gputide", pattern=r"^[a-z][a-z0-9_]{0,127}$")
    """Database of the tables; made where it is missing."""
    folder: Path | None = None
    """Where the warehouse's files lie, such as a mount that Hive's machines share; none for the data folder, or for
    `location` where that is on another file system."""
    location: str | None = None
    """What Hive calls that place, such as `file:/mnt/gputide` or `hdfs://nameservice/gputide`; none for its path."""
    auth: HiveAuth = HiveAuth.NONE
    """How HiveServer2 asks who we are."""
    username: str = Field(default="gputide", min_length=1)
    """Who HiveServer2 knows us as."""
    password_file: Path | None = None
    """File whose first line is our password, with `auth` LDAP or CUSTOM."""
    kerberos_service: str = "hive"
    """First part of the server's principal, with `auth` KERBEROS."""
    tls: bool = False
    """Speak TLS (`hive.server2.use.SSL`)."""
    ca_file: Path | None = None
    """Authorities (PEM) that the server's certificate is checked with; none for those of the machine."""
    certificate_file: Path | None = None
    """Certificate that is shown to the server (mutual TLS), or to the proxy before it."""
    key_file: Path | None = None
    """Its key; none where it stands in the same file."""
    request_seconds: Seconds = 120
    """How long HiveServer2 may take to answer one statement."""

    @property
    def is_elsewhere(self) -> bool:
        """Whether the files of rows lie on a file system that is not this machine's."""
        return self.folder is None and self.location is not None and not self.location.startswith("file:")

    @model_validator(mode="after")
    def _sign_on_is_whole(self) -> Self:
        if (self.password_file is not None) != (self.auth in (HiveAuth.LDAP, HiveAuth.CUSTOM)):
            raise ValueError("password_file goes with auth=LDAP or auth=CUSTOM, and they with it")
        if (self.ca_file is not None or self.certificate_file is not None) and not self.tls:
            raise ValueError("ca_file and certificate_file need tls=true")
        return self
