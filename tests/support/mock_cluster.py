"""librdkafka's own mock of a cluster, which makes topics that are asked for, and moves leaders."""

from __future__ import annotations

import ctypes
import time
from collections import Counter

from confluent_kafka import Producer, cimpl
from confluent_kafka.admin import AdminClient


class MockCluster:
    """Brokers in this process, which speak Kafka's protocol; they end with this object."""

    def __init__(self) -> None:
        """Start three; topics have four partitions."""
        options = {"bootstrap.servers": "mock", "test.mock.num.brokers": 3, "log_level": 0}
        self._library = ctypes.CDLL(cimpl.__file__)
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
        set_leader = self._library.rd_kafka_mock_partition_set_leader
        failed = set_leader(self._handle(), topic.encode(), 0, number)
        assert failed == 0, failed

    def requests_within(self, seconds: float) -> Counter[int]:
        """Wait, and count what all clients have asked for meanwhile, by Kafka's API keys."""
        library, of, count = self._library, self._handle(), ctypes.c_size_t()
        library.rd_kafka_mock_get_requests.restype = ctypes.POINTER(ctypes.c_void_p)
        library.rd_kafka_mock_start_request_tracking(of)
        time.sleep(seconds)
        found = library.rd_kafka_mock_get_requests(of, ctypes.byref(count))
        library.rd_kafka_mock_stop_request_tracking(of)
        each = (ctypes.c_void_p(found[at]) for at in range(count.value))
        counted = Counter(map(library.rd_kafka_mock_request_api_key, each))
        library.rd_kafka_mock_request_destroy_array(found, count)
        return counted

    def _handle(self) -> ctypes.c_void_p:
        # confluent-kafka has no call for it; a client begins with the handle of the library's.
        self._library.rd_kafka_handle_mock_cluster.restype = ctypes.c_void_p
        handle = ctypes.c_void_p.from_address(id(self._owner) + object.__basicsize__)
        return ctypes.c_void_p(self._library.rd_kafka_handle_mock_cluster(handle))
