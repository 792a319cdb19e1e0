"""The client of many streams that read one cluster: the same question costs one request for all.

Its answers are seconds old, so they prove one thing alone: that a table which stands exactly where
they end has nothing to read. Whoever reads on, or is refused, requests its own.
"""

from __future__ import annotations

import datetime as dt
import re
import threading
import time
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Final, TypeVar, cast

from confluent_kafka import IsolationLevel
from confluent_kafka.admin import OffsetSpec

from oncelake.ingestion.errors import DependencyError
from oncelake.ingestion.kafka.admin import Kafka, Topics
from oncelake.ingestion.kafka.offsets import Offsets, TopicPartition
from oncelake.ingestion.settings import Settings

# So long an answer is taken to be as it was, and one that did not come is not requested again.
_FRESH_SECONDS: Final = 30.0
# Of other places, such as those of a time, each stream has its own.
_ENDS: Final = (OffsetSpec.earliest(), OffsetSpec.latest())
Answer = TypeVar("Answer")
Key = TypeVar("Key", bound=Hashable)


class SharedKafka(Kafka):
    """Requests for all topics of some streams; of others, Kafka is requested each time.

    Raises:
        DependencyError: as ``Kafka``.
    """

    def __init__(
        self, settings: Settings, topics: Iterable[str], patterns: Collection[str] = ()
    ) -> None:
        super().__init__(settings)
        self._topics, self._patterns = frozenset(topics), frozenset(patterns)
        self._answers: dict[object, tuple[float, Any]] = {}
        self._lock = threading.RLock()

    def cluster_id(self, topic: str | None = None) -> str:
        """Return Kafka's own id of the cluster."""
        return self._once("cluster", partial(super().cluster_id, topic))

    def partitions(self) -> tuple[TopicPartition, ...]:
        """Return the partitions of all topics, except Kafka's internal ones."""
        return self._once("partitions", super().partitions)

    def withheld(self, partitions: Iterable[TopicPartition], *, since: dt.datetime) -> Offsets:
        """Return what is held back, once more by fresh answers where anything is."""
        suspected = super().withheld(partitions, since=since)
        return Kafka(self._settings).withheld(suspected, since=since) if suspected else suspected

    def _describe(self, names: Iterable[str]) -> Iterable[tuple[str, Future[Any]]]:
        wanted, known = {*names}, self._once("topics", self._describe_all)
        return [
            *((name, known[name]) for name in wanted & known.keys()),
            *super()._describe(wanted - known.keys()),
        ]

    def _asked(
        self, partitions: Iterable[TopicPartition], spec: OffsetSpec, isolation: IsolationLevel
    ) -> dict[TopicPartition, Future[Any]]:
        wanted, request = {*partitions}, super()._asked
        if not wanted or spec not in _ENDS:
            return request(wanted, spec, isolation)

        def request_all() -> dict[TopicPartition, Future[Any]]:
            described = {
                name: each.result()
                for name, each in self._once("topics", self._describe_all).items()
            }
            everywhere = Topics.of("", described).partitions
            return self._answered(request(everywhere, spec, isolation))

        known = self._once((spec, isolation), request_all)
        own = request(wanted - known.keys(), spec, isolation)
        return {at: known.get(at) or own[at] for at in wanted}

    def _describe_all(self) -> dict[str, Future[Any]]:
        existing = self.names() if self._patterns else ()
        matching = {name for name in existing for it in self._patterns if re.fullmatch(it, name)}
        return self._answered(dict(super()._describe(self._topics | matching)))

    def _answered(self, requests: Mapping[Key, Future[Any]]) -> dict[Key, Future[Any]]:
        """Wait for answers; who needs what was refused requests it again, and says why."""
        done = wait(requests.values(), self._timeout + 1).done
        return {of: it for of, it in requests.items() if it in done and not it.exception()}

    def _once(self, question: object, request: Callable[[], Answer]) -> Answer:
        """Return an answer that is not too old, or request it while the others wait for it."""
        with self._lock:
            until, answer = self._answers.get(question, (0.0, None))
            if time.monotonic() >= until:
                began = time.monotonic()
                try:
                    answer = request()
                except DependencyError as error:
                    # Others need not wait for as long to learn that nobody answers.
                    began, answer = time.monotonic(), error
                self._answers[question] = began + _FRESH_SECONDS, answer
            if isinstance(answer, DependencyError):
                raise answer
            return cast("Answer", answer)
