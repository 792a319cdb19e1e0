"""Offsets mean something only with the cluster and the topic that they were read from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import ClusterChangedError, TopicRecreatedError
from oncelake.ingestion.recovery.topics import refuse_another_topic
from oncelake.ingestion.tables.commit_metadata import UNKNOWN, Identity
from tests.model.cluster import TOPIC, Cluster

SPEC = StreamSpec.model_validate(
    {"name": "s", "topic": TOPIC, "schema": "id INT NOT NULL", "keys": ["id"]}
)
KNOWN = Identity(cluster_id="c1", topic_ids={TOPIC: "1"}, keys=("id",), order=())


def refuse(identity: Identity) -> Any:
    """Hold an identity against a cluster that is called c1, whose topic has the id 1."""
    cluster: Any = Cluster(partitions=1)
    return refuse_another_topic(SPEC, cluster, identity)


def test_the_topic_that_was_read_is_recognised() -> None:
    """The same cluster and the same topic id are the same records."""
    assert refuse(KNOWN).ids == {TOPIC: "1"}


def test_a_topic_that_was_made_again_is_refused() -> None:
    """Another id is another topic, though the name is the same."""
    with pytest.raises(TopicRecreatedError, match="oncelake adopt-topic s"):
        refuse(replace(KNOWN, topic_ids={TOPIC: "0"}))


def test_another_cluster_is_refused() -> None:
    """A cluster that answers at the same address is named, also where it has copied the topic."""
    with pytest.raises(ClusterChangedError, match="cluster c0; model:9092 is cluster c1"):
        refuse(replace(KNOWN, cluster_id="c0"))


def test_where_nothing_is_known_nothing_is_refused() -> None:
    """Commits that knew the ids may have aged out of the log."""
    assert refuse(UNKNOWN).cluster_id == "c1"
