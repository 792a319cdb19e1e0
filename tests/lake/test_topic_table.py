"""A topic takes rows and note as one transaction, and gives back what it was given."""

from __future__ import annotations

import json
import random
import secrets
import signal
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)

from oncelake.ingestion.declaration.ddl import parse_columns, parse_type, system_columns
from oncelake.ingestion.declaration.sinks import KafkaSink, SinkSpec
from oncelake.ingestion.errors import (
    CommitConflictError,
    DamagedTableError,
    ForeignTableError,
    InvalidSpecError,
    RefusedError,
    TableSettingsError,
)
from oncelake.ingestion.kafka.client import client_options
from oncelake.ingestion.kafka.offsets import TopicPartition
from oncelake.ingestion.lake.archive import refuse_kept_name
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.sinks.kafka import notes as topic_notes
from oncelake.ingestion.sinks.kafka import writer as topic_writer
from oncelake.ingestion.sinks.kafka.table import TopicTable, open_table
from oncelake.ingestion.sinks.kafka.writer import TopicWriter
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_log import UnknownOutcomeError
from oncelake.ingestion.tables.table import TableDefinition
from oncelake.testing import begin, change, commit, make, note, rows_in
from oncelake.testing.tables import with_columns
from tests.support.committed import committed_records
from tests.support.frail_broker import FrailBroker
from tests.support.long import IS_LONG, twins
from tests.support.world import changed

pytestmark = pytest.mark.kafka
Opener = Callable[[], TopicTable]
COLUMNS = (*parse_columns("id INT NOT NULL, name STRING"), *system_columns())


@pytest.fixture
def name() -> str:
    """The name of a topic of the test's own, which is not there yet."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def settings(kafka_address: str, tmp_path: Path) -> Settings:
    """Where the topic is."""
    return Settings(kafka=kafka_address, kafka_timeout_seconds=10, state=tmp_path)


@pytest.fixture
def opened(name: str, settings: Settings) -> Opener:
    """What opens the topic, as another process would."""
    return lambda: table_of(name, settings)


@pytest.fixture
def admin(kafka_address: str) -> AdminClient:
    """A client of an operator."""
    return AdminClient({"bootstrap.servers": kafka_address})


def table_of(name: str, settings: Settings, stream: str = "orders") -> TopicTable:
    """Open a topic."""
    return open_table(stream, KafkaSink(topic=name), settings, Location.of("/no"))


def begin_append(opened: Opener) -> None:
    """Make a topic without keys, and commit its first note."""
    opened().create(TableDefinition(columns=COLUMNS, keys=()))
    opened().commit_note(note(0))


def names_in(settings: Settings, name: str) -> list[str]:
    """Read the names in the values of a topic's committed records."""
    values = (message.value() for message in committed_records(settings, name))
    return sorted(json.loads(value)["name"] for value in values if value)


def produce(settings: Settings, name: str, value: str, key: str | None = None) -> None:
    """Write a record as somebody else does."""
    producer = Producer(client_options(settings))
    producer.produce(name, value, key)
    assert producer.flush(10) == 0


def set_config(admin: AdminClient, name: str, **config: str) -> None:
    """Configure a topic as an operator does."""
    entries = [
        ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
        for key, value in config.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
    admin.incremental_alter_configs([resource])[resource].result(10)


def test_what_create_makes_is_what_was_declared(
    opened: Opener, name: str, settings: Settings
) -> None:
    """With keys the topic is compacted; without any it is not; the notes always are."""
    make(opened())
    opened().create(TableDefinition(columns=COLUMNS, keys=("id",)))
    table_of(f"{name}.log", settings).create(TableDefinition(columns=COLUMNS, keys=()))

    configs = opened()._place.kafka.topic_configs([name, f"{name}.oncelake", f"{name}.log"])
    assert {topic: config["cleanup.policy"] for topic, config in configs.items()} == {
        name: "compact",
        f"{name}.oncelake": "compact",
        f"{name}.log": "delete",
    }
    assert opened().columns() == COLUMNS
    assert len(committed_records(settings, f"{name}.oncelake")) == 1
    assert opened().uri == f"kafka://{settings.kafka.address}/{name}"


def test_a_key_and_a_value_are_json(opened: Opener, name: str, settings: Settings) -> None:
    """A reader joins by the key, and sees a delete as a record without a value."""
    begin(opened)
    commit(opened(), 1, inserted={1: 'a "b"', 2: "é"})
    commit(opened(), 2, updated={1: "c"}, deleted=(2,))

    found = {(message.key(), message.value()) for message in committed_records(settings, name)}

    place = '"_topic":"t","_partition":0,"_offset":1,"_timestamp":"2020-01-02T03:04:05.678901Z"'
    value = f'{{"id":1,"name":"a \\"b\\"",{place},"_epoch":1,"_seq":1}}'
    assert (b'{"id":1}', value.encode()) in found
    assert (b'{"id":2}', None) in found
    assert len(found) == 4


def test_an_appended_topic_has_records_without_keys(
    opened: Opener, name: str, settings: Settings
) -> None:
    """Each row is there, equal ones too, and counted; a delete has nowhere to go."""
    begin_append(opened)
    commit(opened(), 1, inserted={1: "a", 2: "b"})
    commit(opened(), 2, inserted={1: "a"})

    assert names_in(settings, name) == ["a", "a", "b"]
    assert {message.key() for message in committed_records(settings, name)} == {None}
    batches = opened().scan(["id", "_seq"])
    assert sum(len(batch) for batch in batches) == opened().log().row_count() == 3
    with pytest.raises(ValueError, match="no deletes"):
        commit(opened(), 3, deleted=(1,))
    assert opened().log().last_seq("orders") == 2


def test_notes_are_found_beyond_the_first_look(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More notes than are read at once are all there, and in both directions."""
    monkeypatch.setattr(topic_notes, "_OFFSETS_READ_FIRST", 3)
    begin(opened)
    table = opened()
    for seq in range(1, 12):
        table.commit_note(note(seq))

    log = opened().log()
    assert log.read(0).metadata == note(0)
    assert [each.version for each in opened().log().newest_first()] == [*range(11, -1, -1)]
    assert [seq for seq, *_ in opened().notes(99)] == [*range(12)]
    with pytest.raises(FileNotFoundError):
        log.read(12)


WRITER = """
import sys
from contextlib import closing
from pathlib import Path
from oncelake.testing import change, note
from oncelake.ingestion.settings import Settings
from tests.lake.test_topic_table import table_of

name, address, state, how = sys.argv[1:]
settings = Settings(kafka=address, state=Path(state))
seq = table_of(name, settings).log().last_seq("orders") + 1
while True:
    given = change(seq, inserted={seq * 10_000 + at: "x" for at in range(3_000)})
    with closing(table_of(name, settings).begin(seq)) as transaction:
        if how == "open":
            with transaction._writer.transaction():
                transaction._send(transaction._writer, given)
                print("open", flush=True)
                sys.stdin.read()
        transaction.commit(given, note(seq))
    print(seq, flush=True)
    seq += 1
"""


def start_writer(name: str, settings: Settings, how: str) -> subprocess.Popen[str]:
    """Start a process that commits batches, or leaves its first transaction open."""
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, name, str(settings.kafka.address), str(settings.state), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def kill(writer: subprocess.Popen[str]) -> None:
    """Kill it, and wait until it is gone."""
    writer.send_signal(signal.SIGKILL)
    writer.communicate(timeout=20)


def test_what_a_killed_writer_sent_is_never_seen(
    opened: Opener, name: str, settings: Settings
) -> None:
    """Its transaction is aborted by the next writer, which begins where the notes end."""
    begin_append(opened)
    writer = start_writer(name, settings, "open")
    assert writer.stdout is not None
    assert writer.stdout.readline() == "open\n"
    kill(writer)
    kafka, at = opened()._place.kafka, TopicPartition(name, 0)
    assert kafka.stable_end([at])[at] < kafka.written_end([at])[at]
    assert opened().log().last_seq("orders") == 0

    commit(opened(), 1, inserted={1: "next"})

    assert names_in(settings, name) == ["next"]
    assert [row["id"] for batch in opened().scan(["id"]) for row in batch.to_pylist()] == [1]


def test_readers_see_whole_batches_whenever_a_writer_dies(
    opened: Opener, name: str, settings: Settings
) -> None:
    """After each kill, what is committed is the batches of the notes, each of them once."""
    begin_append(opened)
    moments = random.Random(7)
    for _ in range(20 if IS_LONG else 2):
        writer = start_writer(name, settings, "commit")
        assert writer.stdout is not None
        assert writer.stdout.readline()
        with suppress(subprocess.TimeoutExpired):
            writer.wait(moments.uniform(0, 0.5))
        kill(writer)

        seqs = Counter(
            json.loads(message.value() or b"")["_seq"]
            for message in committed_records(settings, name)
        )
        assert set(seqs.values()) == {3_000}
        assert sorted(seqs) == [*range(1, len(seqs) + 1)]

    last = opened().log().last_seq("orders") or 0
    commit(opened(), last + 1, inserted={1: "x"})
    ids = [row["id"] for batch in opened().scan(["id"]) for row in batch.to_pylist()]
    assert len(ids) == len(set(ids)) == last * 3_000 + 1


@pytest.mark.parametrize(("fault", "is_made"), [("cut", True), *twins(("reset", False))])
def test_a_log_tells_of_a_commit_that_got_no_answer(
    frail: FrailBroker,
    name: str,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    fault: Any,
    is_made: bool,
) -> None:
    """Whether the request or its answer was lost, rows and note are both there, or neither."""
    patient = changed(settings, kafka=frail.address)
    hasty = changed(settings, kafka=frail.proxied, kafka_timeout_seconds=2)
    begin(lambda: table_of(name, patient))
    table, settle = table_of(name, hasty), TopicWriter._commit

    def commit_without_answer(writer: TopicWriter) -> None:
        frail.proxy.switch(fault)
        settle(writer)

    with monkeypatch.context() as patch, closing(table.begin(1)) as transaction:
        patch.setattr(TopicWriter, "_commit", commit_without_answer)
        with pytest.raises(UnknownOutcomeError, match="no answer came"):
            transaction.commit(change(1, inserted={1: "a"}), note(1))
    frail.proxy.switch("none")

    assert table.log().last_seq("orders") == int(is_made)
    kafka, at = table_of(name, patient)._place.kafka, TopicPartition(name, 0)
    assert kafka.stable_end([at]) == kafka.written_end([at]), "the transaction is still open"
    assert rows_in(table_of(name, patient)) == ({1: "a"} if is_made else {})
    commit(table, 1 + is_made, inserted={2: "b"})


def test_a_record_too_large_is_refused(opened: Opener, name: str, settings: Settings) -> None:
    """The batch is gone as a whole, nothing is left open, and the next one is taken."""
    begin(opened)

    with pytest.raises(RefusedError, match=r"does not take a record.*too large"):
        commit(opened(), 1, inserted={1: "a", 2: secrets.token_hex(2_000_000)})

    kafka, at = opened()._place.kafka, TopicPartition(name, 0)
    assert kafka.stable_end([at]) == kafka.written_end([at])
    assert names_in(settings, name) == []
    commit(opened(), 1, inserted={1: "a"})
    assert rows_in(opened()) == {1: "a"}


def test_a_batch_whose_rows_cannot_be_written_leaves_nothing_open(
    opened: Opener, name: str, settings: Settings
) -> None:
    """Whatever goes wrong within the transaction, readers need not wait for it to time out."""
    begin(opened)
    given = change(1, inserted={1: "a"})
    broken = replace(given, updated=pa.table({"id": ["no number"]}))
    with closing(opened().begin(1)) as transaction, pytest.raises((KeyError, pa.ArrowInvalid)):
        transaction.commit(broken, note(1))

    kafka, at = opened()._place.kafka, TopicPartition(name, 0)
    assert kafka.stable_end([at]) == kafka.written_end([at])
    assert names_in(settings, name) == []


def test_the_brokers_limit_of_a_transaction_is_kept(
    opened: Opener, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that allows less than is asked for is asked for what it allows."""
    monkeypatch.setattr(topic_writer, "_TRANSACTION_MS", 100_000_000)
    begin(opened)
    commit(opened(), 1, inserted={1: "a"})

    assert opened()._place.kafka.longest_transaction_ms(name) == 900_000
    assert rows_in(opened()) == {1: "a"}


def test_somebody_elses_topic_is_left_alone(
    opened: Opener, admin: AdminClient, name: str, settings: Settings
) -> None:
    """A topic with records and no note is refused; one without any is taken."""
    policy = {"cleanup.policy": "compact"}
    for future in admin.create_topics([NewTopic(name, 3, 1, config=policy)]).values():
        future.result(10)
    produce(settings, name, "hello", "key")
    assert (opened().log().exists, opened().log().is_empty) == (True, False)

    with pytest.raises(ForeignTableError, match="has records, and no commit"):
        make(opened())

    admin.delete_topics([name])[name].result(10)
    while opened().log().exists:
        pass
    for future in admin.create_topics([NewTopic(name, 3, 1, config=policy)]).values():
        future.result(10)
    begin(opened)
    commit(opened(), 1, inserted=dict.fromkeys(range(20), "a"))
    assert len(rows_in(opened())) == 20


def test_another_streams_topic_is_refused_by_its_name(
    opened: Opener, name: str, settings: Settings
) -> None:
    """Two streams that name one topic do not mix."""
    begin(opened)
    other = table_of(name, settings, "customers")

    with pytest.raises(ForeignTableError, match="is the topic of stream orders"):
        make(other)
    with pytest.raises(ForeignTableError, match="is the topic of stream orders"):
        other.check(other.log())
    with pytest.raises(CommitConflictError, match="no commit of this stream"):
        other.begin(0)
    assert other.log().last_seq("customers") is None


def test_other_partitions_are_refused_with_keys_alone(
    opened: Opener, admin: AdminClient, name: str, settings: Settings
) -> None:
    """A key would be in two of them; without keys the new ones are read, too."""
    log = f"{name}.log"
    for each, start in ((name, begin), (log, begin_append)):
        start(lambda each=each: table_of(each, settings))
        admin.create_partitions([NewPartitions(each, 4)])[each].result(10)

    error = opened().check(opened().log())
    assert "has 4 partitions and had 1" in str(error)
    with pytest.raises(TableSettingsError, match="had 1"):
        opened().begin(1)
    table = table_of(log, settings)
    assert table.check(table.log()) is None
    for seq in range(1, 9):
        commit(table, seq, inserted={seq: "a"})
    assert len(rows_in(table)) == 8


@pytest.mark.parametrize(
    ("keys", "policy"), [(("id",), "compact,delete"), (("id",), "delete"), ((), "compact")]
)
def test_a_policy_that_takes_rows_is_refused(
    opened: Opener, admin: AdminClient, name: str, keys: Sequence[str], policy: str
) -> None:
    """Retention would forget the rows of a key, and compaction refuses a record without one."""
    opened().create(TableDefinition(columns=COLUMNS, keys=tuple(keys)))
    set_config(admin, name, cleanup_policy=policy)

    error = opened().check(opened().log())

    assert f"cleanup.policy={policy}" in str(error)
    with pytest.raises(TableSettingsError):
        opened().create(TableDefinition(columns=COLUMNS, keys=tuple(keys)))


def test_records_that_were_deleted_are_missed(
    opened: Opener, admin: AdminClient, name: str
) -> None:
    """A scan says which offsets are gone, instead of giving the rest."""
    begin_append(opened)
    commit(opened(), 1, inserted={1: "a", 2: "b"})
    gone = ClientTopicPartition(name, 0, 1)
    admin.delete_records([gone])[gone].result(10)

    with pytest.raises(DamagedTableError, match=rf"{name}-0 \[0, 1\) were deleted"):
        [*opened().scan(["id"])]


def test_a_record_of_somebody_else_is_no_row(opened: Opener, name: str, settings: Settings) -> None:
    """A scan stops at it, and says where."""
    begin_append(opened)
    produce(settings, name, "hello")
    commit(opened(), 1, inserted={1: "a"})

    with pytest.raises(DamagedTableError, match=rf"a record of {name}-0 \[0, 2\) is no row"):
        [*opened().scan(["id"])]


def test_a_row_under_the_key_of_another_is_found(
    opened: Opener, name: str, settings: Settings
) -> None:
    """A consumer that goes by the record's key would have it twice, or for the other."""
    begin(opened)
    commit(opened(), 1, inserted={1: "a"})
    (record,) = committed_records(settings, name)
    produce(settings, name, str(record.value(), "utf-8"), '{"id":7}')
    commit(opened(), 2, inserted={2: "b"})

    with pytest.raises(DamagedTableError, match="no row of this stream, or has another's key"):
        [*opened().scan(["id"])]


def test_a_note_of_somebody_else_is_damage(opened: Opener, name: str, settings: Settings) -> None:
    """What has the key of a note and is none stops every commit."""
    begin(opened)
    produce(settings, f"{name}.oncelake", "{}", f"{opened().log().topic_id}/1")

    with pytest.raises(DamagedTableError, match="is no note"):
        opened().begin(1)


def test_a_topic_with_commits_keeps_its_name(opened: Opener, name: str, settings: Settings) -> None:
    """It has its name for good; where there is none, or no commit, there is nothing to do."""
    sink = SinkSpec.model_validate({"kafka": {"topic": name}})
    paths = StreamPaths.of("orders", settings, sink)
    refuse_kept_name(paths)
    make(opened())
    refuse_kept_name(paths)
    opened().commit_note(note(0))

    with pytest.raises(RefusedError, match=f"cannot be renamed.*delete {name} and {name}.oncelake"):
        refuse_kept_name(paths)


def test_a_log_finds_no_row_by_its_key(opened: Opener) -> None:
    """Nobody is to ask, and what no record can hold is refused before anything is made."""
    begin(opened)
    with closing(opened().begin(1)) as transaction, pytest.raises(NotImplementedError):
        transaction.rows_of(pa.table({"id": [1]}))

    numbered = replace(COLUMNS[1], type=parse_type("MAP<INT, STRING>"))
    numbered = replace(numbered, name="more")
    with pytest.raises(InvalidSpecError, match="column more cannot be written"):
        opened().reshape(with_columns(opened(), [numbered]), note(1))
