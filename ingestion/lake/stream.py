"""One stream at work: its declaration, its places on disk, and the Kafka that it reads.

Each operation makes one at its door and hands it on, so that no function takes these apart.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.kafka.admin import Kafka
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A stream as operations take it: declaration, settings, paths, Kafka.

    Attributes:
        spec: The declaration; once ``resolve_topics`` has been asked, with its topics by name.
        shared: The client of several streams, whose answers may be seconds old.
    """

    spec: StreamSpec
    settings: Settings
    shared: Kafka | None = None

    @property
    def name(self) -> str:
        """The stream's name, which is its table's as well."""
        return self.spec.name

    @cached_property
    def unshared(self) -> Stream:
        """The same with a client of its own."""
        return replace(self, shared=None) if self.shared else self

    @cached_property
    def paths(self) -> StreamPaths:
        """Where its tables, lock and checkpoints lie."""
        return StreamPaths.of(self.name, self.settings, self.spec.sink)

    @cached_property
    def kafka(self) -> Kafka:
        """The client of its cluster: the shared one, or its own, made when it is first needed.

        Raises:
            DependencyError: no Kafka is configured and the embedded one is not up.
        """
        return self.shared or Kafka(self.settings)
