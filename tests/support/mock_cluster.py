"""librdkafka's own mock of a cluster, which makes topics that are asked for, and moves leaders."""

from __future__ import annotations

import ctypes

from confluent_kafka import Producer, cimpl
from confluent_kafka.admin import AdminClient


class MockCluster:
    """Brokers in this process, which speak Kafka's protocol; they end with this object."""

    def __init__(self) -> None:
        """Start three; topics have four partitions."""
        options = {"bootstrap.servers": "mock", "test.mock.num.brokers": 3, "log_level": 0}
        self._owner = AdminClient(options)
        brokers = self._owner.list_topics(timeout=10).brokers.values()
        self.address = ",".join(f"{each.host}:{each.port}" for each in brokers)
        self._producer = Producer({"bootstrap.servers": self.address, "log_level": 0})

    def topics(self) -> frozenset[str]:
        """Return the names of all topics."""
        return frozenset(self._owner.list_topics(timeout=10).topics)

    def send(self, topic: str, *values: bytes) -> None:
        """Append records to partition 0 of a topic, which the first makes."""
        for value in values:
            self._producer.produce(topic, value, partition=0)
        assert self._producer.flush(10) == 0

    def lead(self, topic: str, number: int) -> None:
        """Let a broker lead partition 0, in a new epoch."""
        # confluent-kafka has no call for it; a client begins with the handle of the library's.
        library = ctypes.CDLL(cimpl.__file__)
        library.rd_kafka_handle_mock_cluster.restype = ctypes.c_void_p
        handle = ctypes.c_void_p.from_address(id(self._owner) + object.__basicsize__)
        cluster = ctypes.c_void_p(library.rd_kafka_handle_mock_cluster(handle))
        failed = library.rd_kafka_mock_partition_set_leader(cluster, topic.encode(), 0, number)
        assert failed == 0, failed
