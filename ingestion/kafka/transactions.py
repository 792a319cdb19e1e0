"""Open transactions that hold back the last stable offset, and for how long.

Records after an open transaction cannot be read, so a run finds nothing new and everything looks
normal. Kafka ends a transaction after its producer's time-out, which a broker limits to 15 minutes
(``transaction.max.timeout.ms``). One that stays open longer is either configured so, or hangs: its
coordinator no longer knows it, and only a person can end it (KIP-664).

Only Kafka's Java client can tell which: confluent-kafka has neither DescribeProducers nor
DescribeTransactions. A small JVM with that client answers within a second, and is started only when
a transaction seems to hang.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any, Final

from oncelake.ingestion.errors import DependencyError, IngestionError, SetupError
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.kafka.java import find_java, first_cause, pyspark_home
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.kafka.security import java_options, redact
from oncelake.ingestion.settings import Settings

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway

STALLED_AFTER: Final = dt.timedelta(minutes=15)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stall:
    """A partition that an open transaction has kept from being read to its end for long.

    Attributes:
        offset: Its last stable offset, where the transaction began.
        since: When the transaction began or, if it hangs, when it was last written to, by the
            producer's clock. ``None`` if unknown.
        holder: The producer's id, and its transactional id if Kafka knows it.
    """

    at: TopicPartition
    offset: int
    since: dt.datetime | None
    holder: str
    remedy: str

    def __str__(self) -> str:
        since = f" since {self.since:%Y-%m-%d %H:%M:%S} UTC" if self.since else ""
        return (
            f"{self.at} cannot be read beyond offset {self.offset}{since}: {self.holder} holds a "
            f"transaction open there. Next: {self.remedy}"
        )


def find_stalls(
    partitions: Iterable[TopicPartition], kafka: Kafka, settings: Settings
) -> tuple[Stall, ...]:
    """Find the partitions that an open transaction has held back for ``STALLED_AFTER``.

    The records' timestamps, which producers set, only give candidates. The Java client then
    requests the transaction of each (confluent-kafka cannot); one that began later, by its
    coordinator's clock, is left out.

    """
    began_before = dt.datetime.now(dt.UTC) - STALLED_AFTER
    suspected = kafka.withheld(partitions, since=began_before)
    if not suspected:
        return ()
    try:
        with java_admin(settings) as admin:
            found = [_of_java(admin, kafka, at, offset) for at, offset in suspected.items()]
    except IngestionError as error:
        unknown = f"an unknown producer ({error})"
        return tuple(_to_abort(kafka, at, offset, unknown) for at, offset in suspected.items())
    return tuple(stall for stall in found if not stall.since or stall.since <= began_before)


def _of_java(admin: JavaAdmin, kafka: Kafka, at: TopicPartition, offset: int) -> Stall:
    """Request the producer from the partition's leader, and its transaction from coordinators."""
    producer = admin.producer_at(at, offset)
    if producer is None:
        return _to_abort(kafka, at, offset, "an unknown producer")
    transaction = admin.transaction_of(producer.id)
    if transaction is None:
        holder = (
            f"producer id {producer.id} (epoch {producer.epoch}; no coordinator knows the "
            "transaction, so it hangs)"
        )
        return _to_abort(kafka, at, offset, holder, since=producer.last_written)
    return Stall(
        at=at,
        offset=offset,
        since=transaction.began,
        holder=f"producer id {producer.id} (transactional.id {transaction.id}, its coordinator "
        f"says {transaction.state}, time-out {transaction.timeout_seconds:g} s)",
        remedy=f"let that producer end its transaction, or start one with transactional.id "
        f"{transaction.id}, which aborts it",
    )


def _to_abort(
    kafka: Kafka, at: TopicPartition, offset: int, holder: str, *, since: dt.datetime | None = None
) -> Stall:
    remedy = (
        f"when its producer is gone, kafka-transactions.sh --bootstrap-server {kafka.address} "
        f"abort --topic {at.topic} --partition {at.partition} --start-offset {offset}"
    )
    return Stall(at=at, offset=offset, since=since, holder=holder, remedy=remedy)


@dataclass(frozen=True, kw_only=True, slots=True)
class Producer:
    """A producer with an open transaction in a partition, as the partition's leader knows it.

    ``last_written`` is the timestamp of its last record there, by the producer's clock.
    """

    id: int
    epoch: int
    last_written: dt.datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenTransaction:
    """An open transaction by its ``transactional.id``, as its coordinator knows it.

    It is in a ``state`` such as ``Ongoing``, and ``began`` by the coordinator's clock.
    """

    id: str
    state: str
    began: dt.datetime
    timeout_seconds: float


class JavaAdmin:
    """Kafka's Java AdminClient, called through py4j."""

    def __init__(self, gateway: JavaGateway, settings: Settings) -> None:
        self._gateway = gateway
        self._java = gateway.jvm.java
        self._kafka = gateway.jvm.org.apache.kafka
        self._milliseconds = int(settings.kafka_timeout_seconds * 1000)
        options = {
            "bootstrap.servers": settings.bootstrap_servers(),
            "request.timeout.ms": str(self._milliseconds),
            "default.api.timeout.ms": str(self._milliseconds),
        }
        for name, value in java_options(settings).items():
            options[name.removeprefix("kafka.")] = value
        self._admin = self._kafka.clients.admin.Admin.create(options)

    def producer_at(self, at: TopicPartition, offset: int) -> Producer | None:
        """Return the producer whose open transaction began at an offset, unless it has ended."""
        place = self._kafka.common.TopicPartition(at.topic, at.partition)
        answer = self._answer(self._admin.describeProducers([place]).partitionResult(place))
        for each in answer.activeProducers():
            if each.currentTransactionStartOffset().orElse(-1) == offset:
                return Producer(
                    id=each.producerId(),
                    epoch=each.producerEpoch(),
                    last_written=_moment(each.lastTimestamp()),
                )
        return None

    def transaction_of(self, producer_id: int) -> OpenTransaction | None:
        """Return a producer's open transaction, if a coordinator knows it."""
        # From a Python list py4j would make Integers, on which the client fails silently.
        ids = self._gateway.new_array(self._gateway.jvm.long, 1)
        ids[0] = producer_id
        boxed = self._java.util.stream.LongStream.of(ids).boxed().toList()
        asked = self._kafka.clients.admin.ListTransactionsOptions().filterProducerIds(boxed)
        for listed in self._answer(self._admin.listTransactions(asked).all()):
            name = listed.transactionalId()
            told = self._answer(self._admin.describeTransactions([name]).description(name))
            if told.producerId() == producer_id and told.transactionStartTimeMs().isPresent():
                return OpenTransaction(
                    id=name,
                    state=told.state().toString(),
                    began=_moment(told.transactionStartTimeMs().getAsLong()),
                    timeout_seconds=told.transactionTimeoutMs() / 1000,
                )
        return None

    def log_sizes(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the bytes of partitions' logs: of the largest replica that a broker reports."""
        places = {
            at: self._kafka.common.TopicPartition(at.topic, at.partition) for at in partitions
        }
        nodes = self._answer(self._admin.describeCluster().nodes())
        ids = [node.id() for node in nodes.toArray()]
        brokers = self._answer(self._admin.describeLogDirs(ids).allDescriptions())
        sizes: dict[TopicPartition, int] = {}
        folders = (each for broker in ids for each in brokers[broker].values())
        for replicas in (folder.replicaInfos() for folder in folders):
            for at, place in places.items():
                replica = replicas.get(place)
                if replica is not None:
                    sizes[at] = max(sizes.get(at, 0), replica.size())
        return sizes

    def close(self) -> None:
        """Close the client."""
        self._admin.close(self._java.time.Duration.ZERO)

    def _answer(self, asked: Any) -> Any:
        # The client limits each request itself; this limit is for a client that fails to.
        unit = self._java.util.concurrent.TimeUnit.MILLISECONDS
        return asked.get(self._milliseconds + 1000, unit)


@contextmanager
def java_admin(settings: Settings) -> Iterator[JavaAdmin]:
    """Start a JVM with the client, and end it after the block.

    Raises:
        SetupError: there is no Java, or the jars are not there.
        DependencyError: Kafka did not answer, or refused.
    """
    from py4j.protocol import Py4JError

    gateway, process = _launched(settings)
    try:
        with closing(JavaAdmin(gateway, settings)) as admin:
            yield admin
    except Py4JError as error:
        cause = first_cause(trace := str(error))
        said = f"Caused by: {cause}" if cause else " ".join(trace.splitlines()[:2])
        raise DependencyError(
            f"Kafka at {settings.bootstrap_servers()} did not answer its Java client: "
            f"{redact(said, settings)}"
        ) from error
    finally:
        gateway.shutdown()
        assert process.stdin is not None, "py4j ends its JVM with its standard input"
        process.stdin.close()
        process.wait(10)


def _launched(settings: Settings) -> tuple[JavaGateway, Popen[bytes]]:
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

    of_spark = pyspark_home() / "jars"
    # Its login by OAUTHBEARER reads JSON.
    needed = ("slf4j-api-*", "jackson-annotations-*", "jackson-core-2*", "jackson-databind-*")
    jars = [_one_of(settings.jars / "spark", "kafka-clients-*.jar")]
    jars += [_one_of(of_spark, f"{name}.jar") for name in needed]
    try:
        port, token, process = launch_gateway(
            java_path=find_java(),
            jarpath=str(_one_of(of_spark, "py4j-*.jar")),
            classpath=":".join(map(str, jars)),
            javaopts=["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"],
            die_on_exit=True,
            enable_auth=True,
            return_proc=True,
        )
    except (OSError, ValueError) as error:
        raise SetupError(f"a JVM for Kafka's Java client did not start: {error}") from error
    parameters = GatewayParameters(port=port, auth_token=token, auto_convert=True)
    return JavaGateway(gateway_parameters=parameters), process


def _one_of(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if not found:
        raise SetupError(f"no {pattern} in {folder}. Next: oncelake jars")
    return found[-1]


def _moment(milliseconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
