"""Two requests that only Kafka's Java client supports, made by a small, short-lived JVM.

confluent-kafka has neither DescribeProducers nor DescribeTransactions (KIP-664). A JVM with only
the client in it answers within a second, and is started only when a transaction seems to hang.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from subprocess import Popen
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from py4j.protocol import Py4JError

from ingestion.errors import DependencyError, SetupError
from ingestion.kafka.java import find_java
from ingestion.kafka.offsets import TopicPartition
from ingestion.kafka.security import java_options, redact
from ingestion.settings import Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Producer:
    """A producer with an open transaction in a partition, as the partition's leader knows it.

    ``last_written`` is the timestamp of its last record there, by the producer's clock.
    """

    id: int
    epoch: int
    last_written: dt.datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Transaction:
    """An open transaction, as its coordinator knows it.

    Attributes:
        id: The ``transactional.id``.
        state: The coordinator's name for its state, such as ``Ongoing``.
        began: When it began, by the coordinator's clock.
        timeout_seconds: The coordinator aborts it after this time.
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
            **{
                name.removeprefix("kafka."): value for name, value in java_options(settings).items()
            },
        }
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

    def transaction_of(self, producer_id: int) -> Transaction | None:
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
                return Transaction(
                    id=name,
                    state=told.state().toString(),
                    began=_moment(told.transactionStartTimeMs().getAsLong()),
                    timeout_seconds=told.transactionTimeoutMs() / 1000,
                )
        return None

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
    gateway, process = _launched(settings)
    try:
        with closing(JavaAdmin(gateway, settings)) as admin:
            yield admin
    except Py4JError as error:
        said = redact(" ".join(str(error).splitlines()[:2]), settings)
        raise DependencyError(
            f"Kafka at {settings.bootstrap_servers()} did not answer its Java client: {said}"
        ) from error
    finally:
        gateway.shutdown()
        assert process.stdin is not None, "py4j ends its JVM with its standard input"
        process.stdin.close()
        process.wait(10)


def _launched(settings: Settings) -> tuple[JavaGateway, Popen[bytes]]:
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    of_spark = Path(found.origin).parent / "jars"
    client = _one_of(settings.jars / "spark", "kafka-clients-*.jar")
    try:
        port, token, process = launch_gateway(
            java_path=find_java(),
            jarpath=str(_one_of(of_spark, "py4j-*.jar")),
            classpath=f"{client}:{_one_of(of_spark, 'slf4j-api-*.jar')}",
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
        raise SetupError(f"no {pattern} in {folder}. Next: make setup")
    return found[-1]


def _moment(milliseconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
