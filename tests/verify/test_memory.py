"""A proof goes on where the last one ended, and says what a whole proof says."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from oncelake.ingestion.errors import DependencyError
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.verify.columns import NotInColumnsError
from oncelake.ingestion.verify.columns.fold import FoldQueries
from oncelake.ingestion.verify.columns.memory import ledger_digest
from oncelake.ingestion.verify.compare.ledger import miscounts
from oncelake.ingestion.verify.fold.rule import Recount
from oncelake.ingestion.verify.read.snapshot import Batch
from oncelake.ingestion.verify.verdict import Difference, Verdict
from oncelake.ingestion.verify.verify import verify
from tests.formats.test_avro import column, encoded, record
from tests.support.long import IS_LONG
from tests.support.registry import framed
from tests.support.small_registry import small_registry
from tests.support.world import COLUMNS, World, row
from tests.verify.factories import P0, P1, batch, stretch

MODES: dict[str, dict[str, Any]] = {
    "upsert": {},
    "ordered": {"sequence_by": ["at"]},
    "marking deletes": {"sequence_by": ["at"], "deletes": "soft", "apply_as_deletes": "at = 7"},
    "in Iceberg": {"sequence_by": ["at"], "sink": "iceberg"},
    "partial updates": {"ignore_null_updates": True, "apply_as_deletes": "at = 7"},
    "insert_only": {"mode": "insert_only"},
    "versions": {"mode": "scd2", "sequence_by": ["at"], "apply_as_deletes": "at = 7"},
    "versions of a column": {"mode": "scd2", "sequence_by": ["at"], "track": ["name"]},
    "versions by the record's time": {"mode": "scd2", "sequence_by": ["_timestamp"]},
    "append": {"mode": "append", "keys": []},
    "changes of a database": {"format": "debezium"},
    "changes with their schemas": {"format": {"type": "debezium", "schemas": True}},
    "Avro": {"format": "avro", "sequence_by": ["at"]},
    "changes in the order of a log": {
        "format": {"type": "debezium", "columns": {"lsn": "source.lsn"}},
        "schema": "id INT NOT NULL, name STRING, at INT, lsn BIGINT NOT NULL",
        "sequence_by": ["lsn"],
        "deletes": "soft",
    },
}
# An older schema, and one with a field that no column names.
SCHEMAS = (
    record(column("id", "int"), column("name", ["null", "string"]), column("at", "int")),
    record(column("more", "int"), column("id", "long"), column("at", ["null", "long"])),
)


@contextmanager
def with_schemas(world: World, *schemas: Any) -> Iterator[None]:
    """Put schemas into a registry of the world's, with ids from 1 on."""
    with small_registry() as registry:
        for schema in schemas:
            registry.add(schema)
        address = {"schema_registry": registry.address}
        world.settings = world.settings.model_copy(update=address)
        yield


def proven(world: World, **options: Any) -> Verdict:
    """Prove the world's stream."""
    return verify(world.spec, world.settings, **options)


def goes_on(verdict: Verdict) -> bool:
    """Tell whether a proof that holds went on from another."""
    assert verdict.holds, verdict.differences
    return bool(verdict.memory and verdict.memory.startswith("goes on from the proof of "))


@pytest.fixture
def known(world: World) -> World:
    """A stream of which a proof is kept, and a batch behind it."""
    world.send(row(1, "a"), row(2, "b"), b"garbage", row(3, "c"))
    world.send(None, id=3)
    world.run()
    assert not goes_on(proven(world))
    world.send(row(1, "A"), row(4, "d"))
    world.run()
    return world


def test_a_proof_goes_on_from_the_last(known: World) -> None:
    """It reads what came since, and counts what was proven before."""
    told: list[tuple[str, int, int]] = []
    verdict = proven(known, tell=lambda *step: told.append(step))

    assert goes_on(verdict)
    assert (verdict.records, verdict.batches, verdict.rows, verdict.quarantined) == (7, 2, 3, 1)
    assert {total for step, _, total in told if step == "reading the topic"} <= {2}
    whole = proven(known, whole=True)
    assert (whole.memory, whole.records, whole.proven) == (None, 7, verdict.proven)


def test_what_was_proven_stays_proven_when_kafka_deletes_it(known: World) -> None:
    """Nothing is left of the topic's first part, and nothing is a limit."""
    known.forget_before(0, 5)

    verdict = proven(known)

    assert goes_on(verdict)
    assert (verdict.limits, verdict.records) == ((), 7)
    assert [(part.start, part.end) for part in verdict.proven if part.partition == 0] == [(0, 7)]


def test_a_column_that_was_proven_fills_a_row_when_its_record_is_gone(world: World) -> None:
    """A partial update behind a proof needs no record from before it."""
    world.declare(ignore_null_updates=True)
    world.send(row(1, "a", 1), {"id": 1, "at": 2})
    world.run()
    proven(world)
    world.forget_before(0, 2)
    world.send({"id": 1, "at": 3})
    world.run()

    assert goes_on(proven(world))
    assert [(each["name"], each["at"]) for each in world.rows()] == [("a", 3)]
    DeltaTable(world.paths.data.path).update({"name": "'x'"})
    assert not proven(world).holds


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            lambda table: table.update({"name": "'x'"}, predicate="id = 2"),
            "is not as the proof of ",
        ),
        (lambda table: table.delete("id = 2"), "is missing: the proof of "),
    ],
)
def test_a_row_that_changes_after_its_record_is_gone_is_found(
    known: World, change: Any, what: str
) -> None:
    """The memory knows the row that no record tells of any more."""
    known.forget_before(0, 5)
    change(DeltaTable(known.paths.data.path))

    verdict = proven(known)

    assert not verdict.holds
    (difference,) = verdict.differences
    assert difference.what.startswith(what)
    assert (difference.partition, difference.offset) == (0, 1)


def test_a_row_that_changes_is_explained_while_its_record_is_there(known: World) -> None:
    """As a whole proof explains it."""
    DeltaTable(known.paths.data.path).update({"name": "'x'"}, predicate="id = 2")

    assert [str(each) for each in proven(known).differences] == [
        f"key (id=2) · {known.topic}-0 offset 1 · batch 1: column name differs: expected 'b', "
        "found 'x'"
    ]


def test_quarantine_that_changes_after_its_record_is_gone_is_found(known: World) -> None:
    """The memory knows what was in quarantine, too."""
    known.forget_before(0, 5)
    DeltaTable(known.paths.quarantine.path).delete()

    assert not proven(known).holds


def spoilt(place: Location) -> Path:
    """Return the file of the memory."""
    return Path(str(place)) / "proof.json"


def cut(place: Location) -> None:
    """Cut the memory short."""
    spoilt(place).write_text(spoilt(place).read_text()[:-20])


def raise_a_count(place: Location) -> None:
    """Change the memory, and nothing of its digest."""
    document = json.loads(spoilt(place).read_text())
    document["proof"]["records"] += 1
    spoilt(place).write_text(json.dumps(document))


def of_a_newer_version(place: Location) -> None:
    """Say that a newer version has written it."""
    document = json.loads(spoilt(place).read_text())
    spoilt(place).write_text(json.dumps({**document, "format": 99}))


def without_rows(place: Location) -> None:
    """Lose a file of rows."""
    for file in Path(str(place)).glob("*.parquet"):
        file.unlink()


def with_other_rows(place: Location) -> None:
    """Change a byte of the rows."""
    for file in Path(str(place)).glob("*.parquet"):
        raw = bytearray(file.read_bytes())
        raw[len(raw) // 2] ^= 1
        file.write_bytes(raw)


@pytest.mark.parametrize(
    "spoil", [cut, raise_a_count, of_a_newer_version, without_rows, with_other_rows]
)
def test_a_memory_that_is_not_as_it_was_written_is_not_believed(known: World, spoil: Any) -> None:
    """The proof begins anew, says so, and leaves a sound memory."""
    spoil(known.paths.proof)

    verdict = proven(known)

    assert (verdict.holds, verdict.records) == (True, 7)
    assert (verdict.memory or "").startswith("begun anew: the earlier proof is ")
    known.send(row(9, "i"))
    known.run()
    assert goes_on(proven(known))


def test_a_memory_of_another_table_is_not_believed(known: World) -> None:
    """The stream was read anew."""
    for table in known.paths.tables:
        shutil.rmtree(str(table), ignore_errors=True)
    known.run()

    verdict = proven(known)

    assert (verdict.holds, verdict.memory) == (
        True,
        "begun anew: the earlier proof is of another table",
    )


def test_a_memory_of_another_declaration_is_not_believed(known: World) -> None:
    """Another rule would have made other rows."""
    known.declare(apply_as_deletes="name = 'zzz'")

    verdict = proven(known)

    assert (verdict.holds, "another declaration" in (verdict.memory or "")) == (True, True)


def test_a_proof_that_differs_leaves_the_memory_before_it(known: World) -> None:
    """What is wrong is not remembered as right."""
    before = spoilt(known.paths.proof).read_bytes()
    table = DeltaTable(known.paths.data.path)
    table.delete("id = 4")

    assert not proven(known).holds
    assert spoilt(known.paths.proof).read_bytes() == before


def test_a_proof_that_dies_leaves_the_memory_before_it(
    known: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any place where it writes."""
    before = spoilt(known.paths.proof).read_bytes()
    for name in ("put", "put_durably"):
        with monkeypatch.context() as patch:

            def die(self: Location, content: bytes) -> None:
                raise KeyboardInterrupt

            patch.setattr(Location, name, die)
            with pytest.raises(KeyboardInterrupt):
                proven(known)
        assert spoilt(known.paths.proof).read_bytes() == before
    assert goes_on(proven(known))
    files = {file.name for file in spoilt(known.paths.proof).parent.iterdir()}
    assert len(files) == 2, "of the proofs that died nothing is left"


def test_where_nothing_may_be_written_the_proof_holds_all_the_same(
    known: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that the next one begins anew."""

    def refuse(self: Location, content: bytes) -> None:
        raise PermissionError("not yours")

    monkeypatch.setattr(Location, "put", refuse)

    verdict = proven(known)

    assert verdict.holds
    assert verdict.limits == ("the next proof begins anew: this one is not kept: not yours",)


def test_an_erase_takes_the_key_out_of_what_a_proof_remembers(known: World) -> None:
    """No trace of it is left, its hash included, and the next proof goes on."""
    proven(known)
    before = hashes_in(known.paths.proof)
    erase(known.spec, known.settings, key='{"id": 2}', reason="asked", run_id="e")
    known.forget_before(0, 5)

    verdict = proven(known)

    assert goes_on(verdict)
    (erased,) = before - hashes_in(known.paths.proof)
    assert (
        erased
        not in b"".join(
            file.read_bytes() for file in spoilt(known.paths.proof).parent.iterdir()
        ).hex()
    )
    known.send(row(2, "anew"))
    known.run()
    assert goes_on(proven(known))


def hashes_in(place: Location) -> set[str]:
    """Return the hashes of the keys that are remembered, as Parquet may have them."""
    files = Path(str(place)).glob("*.parquet")
    found = (each for file in files for each in pq.read_table(file)["k"].to_pylist())
    return {each.to_bytes(8, "little").hex() for each in found}


def test_a_memory_that_cannot_tell_the_key_goes_with_it(known: World) -> None:
    """It is of another declaration."""
    known.declare(apply_as_deletes="name = 'zzz'")
    erase(known.spec, known.settings, key='{"id": 2}', reason="asked", run_id="e")

    assert not known.paths.proof.files()


def test_batches_that_were_undone_are_no_part_of_a_proof(known: World) -> None:
    """A rewind takes the proof of what it takes back with it."""
    proven(known)
    rewind(known.spec, known.settings, to="seq:1", reason="asked", run_id="r")

    verdict = proven(known)
    known.run()

    assert (verdict.holds, "undone" in (verdict.memory or "")) == (True, True)
    assert goes_on(proven(known))


def in_columns(verdict: Verdict) -> bool:
    """Tell whether a proof that holds needed no record alone."""
    assert verdict.holds, verdict.differences
    return verdict.record_by_record is None


def test_a_table_without_a_batch_is_proven_again(world: World) -> None:
    """The proof goes on from one that has proven nothing."""
    world.run()

    assert [proven(world).holds for _ in range(2)] == [True, True]


def test_a_redrive_is_proven_in_columns(world: World) -> None:
    """What was bad by an earlier declaration is expected under the batch that sent it in."""
    world.declare(extra_fields="reject", quarantine_rate={"stop_above": 1.0})
    world.send(row(1, "a"), {**row(2, "b"), "more": 1}, row(3, "c"))
    world.run()
    world.declare(extra_fields="ignore")
    world.redrive()

    assert in_columns(proven(world))
    world.send(row(4, "d"))
    world.run()
    going = proven(world)
    assert (goes_on(going), going.limits, going.batches) == (True, (), 3)
    assert {each["id"] for each in world.rows()} == {1, 2, 3, 4}


def test_records_that_wait_and_could_be_redriven_are_told_by_each_proof(world: World) -> None:
    """They are a limit of the proof that goes on, too."""
    world.declare(extra_fields="reject", quarantine_rate={"stop_above": 1.0})
    world.send(row(1, "a"), {**row(2, "b"), "more": 1})
    world.run()
    world.declare(extra_fields="ignore")
    first = proven(world)
    world.send(row(4, "d"))
    world.run()

    going = proven(world)

    assert "can be applied today, by oncelake redrive" in first.limits[0]
    assert (goes_on(going), going.limits) == (True, first.limits)


def test_a_record_whose_bytes_are_gone_waits_for_no_redrive(world: World) -> None:
    """Another declaration would take it, and can no more."""
    world.declare(extra_fields="reject", quarantine_rate={"stop_above": 1.0})
    world.send({**row(2, "b"), "more": 1})
    world.run()
    erase(world.spec, world.settings, key='{"id": 2}', reason="a test", run_id="e")
    world.declare(extra_fields="ignore")

    assert (world.redrive().waiting, len(proven(world).limits)) == (0, 1)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("at", "9"), ("_timestamp", "CAST('2020-01-01T00:00:00Z' AS TIMESTAMP)")),
        *(("_seq", "2"), ("_epoch", "7"), ("_offset", "1"), ("_partition", "1")),
        *(("_topic", "'x'"), ("_deleted", "true"), ("id", "7")),
    ],
)
def test_any_column_that_changes_is_noticed(world: World, column: str, value: str) -> None:
    """Whether it is declared, or tells of the record."""
    world.declare(deletes="soft", sequence_by=["at"])
    world.send(row(1, "a", 1), row(2, "b", 1))
    world.run()
    assert in_columns(proven(world))
    DeltaTable(world.paths.data.path).update({column: value}, predicate="id = 1")

    for whole in (False, True):
        assert not proven(world, whole=whole).holds


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("valid_from", "valid_from - 1"), ("valid_to", "6"), ("valid_to", "NULL")),
        *(("current", "true"), ("name", "'x'")),
    ],
)
def test_a_version_that_changes_is_noticed(world: World, column: str, value: str) -> None:
    """Also when its record is gone, and that by which it ended."""
    world.declare(mode="scd2", sequence_by=["at"])
    world.send(row(1, "a", 1), row(1, "b", 5), row(2, "c", 5))
    world.run()
    assert in_columns(proven(world))
    world.forget_before(0, 3)
    assert in_columns(proven(world))
    DeltaTable(world.paths.data.path).update({column: value}, predicate="name = 'a'")

    assert not proven(world).holds


@pytest.mark.parametrize("declared", [{}, {"ignore_null_updates": True}], ids=["whole", "partial"])
@pytest.mark.parametrize("type_", ["DECIMAL(20, 2)", "ARRAY<DECIMAL(38, 2)>"])
def test_a_number_is_not_taken_for_that_below_zero(
    world: World, type_: str, declared: dict[str, Any]
) -> None:
    """DuckDB has one hash for 0 and for -1 in 128 bits."""
    world.declare(schema=f"id INT NOT NULL, total {type_}", **declared)
    world.send({"id": 1, "total": [0.00] if "ARRAY" in type_ else 0.00})
    world.run()
    assert in_columns(proven(world))
    below = f"CAST('-0.01' AS {type_})" if "ARRAY" not in type_ else "make_array(-0.01)"
    DeltaTable(world.paths.data.path).update({"total": below})

    assert not proven(world).holds


def test_a_change_to_the_number_below_zero_is_a_version(world: World) -> None:
    """Of what is tracked, too, the columns tell the two numbers."""
    schema = "id INT NOT NULL, total DECIMAL(20, 2), at INT"
    world.declare(schema=schema, mode="scd2", sequence_by=["at"], track=["total"])
    world.send(*({"id": 1, "total": n, "at": at} for at, n in enumerate((0.00, -0.01, -0.01))))
    world.run()

    verdict = proven(world)

    assert (verdict.rows, in_columns(verdict)) == (2, True)


def test_a_record_in_quarantine_of_a_partition_that_nobody_reads_is_noticed(world: World) -> None:
    """It ends no proof, and is a difference."""
    world.send(row(1, "a"), b"garbage")
    world.run()
    DeltaTable(world.paths.quarantine.path).update({"_partition": "7"})

    verdict = proven(world)

    assert not verdict.holds
    assert verdict.difference_count["quarantine"] == 2


def test_a_row_that_is_there_twice_is_noticed(world: World) -> None:
    """And one that nobody has sent."""
    world.send(row(1, "a"), row(2, "b"))
    world.run()
    assert in_columns(proven(world))
    table = DeltaTable(world.paths.data.path)
    write_deltalake(table, table.to_pyarrow_table(filters=[("id", "=", 1)]), mode="append")

    for whole in (False, True):
        assert not proven(world, whole=whole).holds


def test_a_key_in_two_partitions_is_not_decided_in_columns(world: World) -> None:
    """Nothing says which of the two is newer."""
    with duckdb.connect() as database:
        database.execute(
            "CREATE TABLE events AS SELECT 1 AS k, 1 AS seq, tp, 0 AS off, FALSE AS gone, "
            "0::UBIGINT AS digest FROM (VALUES (0), (1)) t(tp)"
        )
        database.execute("CREATE TABLE remembered AS FROM events LIMIT 0")
        with pytest.raises(NotInColumnsError, match="nothing orders"):
            FoldQueries(database, world.spec).fold({}, has_replays=False)


def test_batches_of_other_columns_are_decided_by_those(world: World) -> None:
    """A column that was added since is null in earlier rows, whatever their records have."""
    world.send({**row(1, "a"), "more": 5})
    world.run()
    world.declare(schema=f"{COLUMNS}, more INT", schema_change="evolve")
    world.send({**row(2, "b"), "more": 6})
    world.run()

    assert in_columns(proven(world))
    assert [each["more"] for each in world.rows()] == [None, 6]


def test_a_count_that_changes_after_its_proof_is_noticed(known: World) -> None:
    """The ledger is what a memory says it was, or the proof begins anew."""
    known.forget_before(0, 5)
    ledger = DeltaTable(known.paths.ledger.path)
    rows = ledger.to_pyarrow_table()
    counts = [dict(each) for each in rows["counts"].to_pylist()]
    counts[0]["inserted"] += 1
    at = rows.schema.get_field_index("counts")
    changed = pa.array([list(each.items()) for each in counts], rows.schema.field(at).type)
    write_deltalake(ledger, rows.set_column(at, rows.schema.field(at), changed), mode="overwrite")

    verdict = proven(known)

    assert (verdict.holds, goes_on_from(verdict)) == (False, False)


def goes_on_from(verdict: Verdict) -> bool:
    """Tell whether a proof went on from another."""
    return bool(verdict.memory and verdict.memory.startswith("goes on"))


def test_a_ledger_is_remembered_with_the_records_of_each_partition() -> None:
    """What moves between two partitions is another ledger, though the sums are the same."""
    one = batch(1, stretch(0, 5, at=P0, records=4), stretch(0, 5, at=P1, records=3))
    other = batch(1, stretch(0, 5, at=P0, records=3), stretch(0, 5, at=P1, records=4))

    assert one.counts == other.counts
    assert ledger_digest([one]) != ledger_digest([other])


def test_all_that_differs_from_an_earlier_proof_is_told(known: World) -> None:
    """A row whose record is gone, beside one whose record is there."""
    known.forget_before(0, 5)
    for number in (2, 4):
        DeltaTable(known.paths.data.path).update({"name": "'x'"}, predicate=f"id = {number}")

    found = {each.offset: each.what for each in proven(known).differences}

    assert found.keys() == {1, 6}
    assert found[1].startswith("is not as the proof of ")
    assert found[6] == "column name differs"


def test_a_proof_that_differs_elsewhere_is_not_remembered(world: World) -> None:
    """Rows and counts hold, and the ledger does not."""
    world.send(row(1, "a"))
    world.run()
    DeltaTable(world.paths.ledger.path).update({"run_id": "'somebody'"})

    assert not proven(world).holds
    assert not world.paths.proof.files()


def test_a_memory_of_other_partitions_is_not_believed(world: World) -> None:
    """A topic that stands before the others has come: the numbers of partitions are others."""
    beside = world.add_topic("z", row(1, "a"))
    world.declare(topics=[beside], topic=None)
    world.run()
    assert proven(world).holds
    before = world.add_topic("a", row(2, "b"))
    world.declare(topics=[before, beside])
    world.run()

    verdict = proven(world)

    assert (verdict.holds, verdict.memory) == (
        True,
        "begun anew: the earlier proof is of other partitions",
    )


@dataclass
class Life:
    """A stream to which anything is done, proven twice after each step."""

    world: World
    chance: random.Random
    steps: list[str] = field(default_factory=list)
    gone_on: int = 0

    def step(self) -> None:
        """Do something, and compare two proofs."""
        names, weights = ("send", "redrive", "rewind", "replay", "erase"), (12, 3, 3, 1, 1)
        (name,) = self.chance.choices(names, weights)
        self.steps.append(name)
        getattr(self, f"_{name}")()
        told = f"after {self.steps}"
        going, whole = proven(self.world), proven(self.world, whole=True)
        self.gone_on += bool(going.memory and "goes on" in going.memory)
        for what in ("holds", "records", "batches", "rows", "quarantined", "proven", "limits"):
            assert getattr(going, what) == getattr(whole, what), (told, what, going, whole)
        assert going.holds, (told, going)
        if "erase" not in self.steps:
            assert whole.record_by_record is None, (told, whole)

    def _send(self) -> None:
        for _ in range(self.chance.randint(1, 6)):
            key, at = self.chance.randint(1, 6), self.chance.randint(1, 7)
            whole: Any = row(key, self.chance.choice(["a", "b", "c", None]), at)
            sent = self.chance.choice([whole, whole, whole, whole, b"bad", {"id": key, "at": "x"}])
            if self.world.spec.format.type == "debezium":
                sent = self._changed(sent)
            elif self.world.spec.format.type == "avro" and isinstance(sent, dict):
                number, schema = self.chance.choice([*enumerate(SCHEMAS, 1)])
                payloads = encoded(schema, {**row(key, "a"), **sent, "more": 1, "at": at})
                sent = framed(number, payloads[0][: -1 if sent is not whole else None])
            # An erase takes what waits under its key, after which no proof goes on.
            names_row = isinstance(sent, dict) and sent.get("op") == "d"
            if MODES["changes with their schemas"].items() <= self.world.declared.items():
                document = {"schema": {}, "payload": sent} if isinstance(sent, dict) else {}
                sent = json.dumps(document, separators=(",", ":")).encode()
            self.world.send(sent, partition=key % 2, **({"id": key} if names_row else {}))
            if self.chance.random() < 0.2:
                # A delete, or a record for the quarantine.
                self.world.send(None, id=key, partition=key % 2)
        self.world.run()

    def _changed(self, sent: Any) -> Any:
        """Return an envelope of the row, or what is none."""
        if isinstance(sent, bytes):
            return sent
        op, before = self.chance.choice("rcuudd"), self.chance.choice([sent, None])
        sides = {"before": before, "after": None if op == "d" else sent}
        return {"op": op, **sides, "source": {"lsn": self.chance.randint(1, 9)}, "ts_ms": 1}

    def _redrive(self) -> None:
        self.world.redrive()

    def _replay(self) -> None:
        self.world.replay()

    def _rewind(self) -> None:
        last = self.world.ledger[-1].seq
        with_seq = self.chance.randint(max(1, last - 2), last)
        try:
            rewind(
                self.world.spec, self.world.settings, to=f"seq:{with_seq}", reason="r", run_id="r"
            )
        except Exception as error:  # noqa: BLE001 (there may be nothing to go back to)
            self.steps.append(f"({error})"[:60])
        self.world.run()

    def _erase(self) -> None:
        if self.world.spec.keys:
            key = json.dumps({"id": self.chance.randint(1, 6)})
            erase(self.world.spec, self.world.settings, key=key, reason="asked", run_id="e")


@pytest.mark.parametrize("mode", MODES)
def test_it_says_what_a_whole_proof_says_whatever_befalls_a_stream(world: World, mode: str) -> None:
    """Batches of any records, redrives, replays, rewinds, erases."""
    world.declare(quarantine_rate={"stop_above": 1.0}, **MODES[mode])
    life = Life(world, random.Random(mode))
    with with_schemas(world, *SCHEMAS):
        life._send()
        proven(world)
        for _ in range(60 if IS_LONG else 4):
            life.step()

    assert life.gone_on > 0


def test_records_of_avro_are_decoded_in_columns(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but what is in quarantine is read alone; fields that no column names are counted."""
    undeclared = []

    def noted(batch: Batch, recount: Recount) -> Iterator[Difference]:
        undeclared.append(recount.undeclared)
        return miscounts(batch, recount)

    world.declare(format="avro", quarantine_rate={"stop_above": 1.0})
    old, new = SCHEMAS
    rows = [framed(1, each) for each in encoded(old, *(row(n, "x", n) for n in range(50)))]
    more = [{"id": n, "more": 1, "at": None} for n in range(40, 60)]
    with with_schemas(world, *SCHEMAS):
        world.send(*rows, b"bad", *(framed(2, each) for each in encoded(new, *more)))
        world.run()
        with monkeypatch.context() as patch:
            patch.setattr("oncelake.ingestion.verify.decode.avro.opened", None)
            patch.setattr("oncelake.ingestion.verify.verify.miscounts", noted)
            verdict = proven(world)

        assert in_columns(verdict)
        assert (verdict.records, verdict.rows, verdict.quarantined) == (71, 60, 1)
        assert [world.ledger[-1].counts["extra_fields"]] == undeclared == [20]
        DeltaTable(world.paths.data.path).update({"at": "5"}, predicate="id = 45")
        assert not proven(world).holds


def test_a_record_type_that_comes_later_is_noticed_by_the_proof_that_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before it has remembered of which type the rows are."""
    monkeypatch.setattr("oncelake.ingestion.pipeline.batch.learn_record_types", lambda *of: of[-1])
    world.declare(format="avro")
    schema = SCHEMAS[0]
    payload, other = encoded(schema, row(1, "a", 1), row(2, "b", 1))
    with with_schemas(world, schema, {**schema, "name": "Other"}):
        world.send(framed(1, payload))
        world.run()
        assert in_columns(proven(world))
        world.send(framed(2, other))
        world.run()

        verdict = proven(world)

    assert not verdict.holds
    assert [each.what[:28] for each in verdict.differences] == ["a record of type a.b.Other w"]


def test_a_registry_that_is_gone_stops_a_proof(world: World) -> None:
    """And one that has lost a schema leaves it undecided."""
    world.declare(format="avro")
    with with_schemas(world, SCHEMAS[0]):
        world.send(*(framed(1, each) for each in encoded(SCHEMAS[0], row(1, "a", 1))))
        world.run()
    with pytest.raises(DependencyError, match="schema registry"):
        proven(world)
    with with_schemas(world):
        assert "does not know schema id 1" in proven(world).obstacles[0]


def test_changes_of_a_database_are_proven_in_columns_until_a_row_moves(world: World) -> None:
    """A move is decided record by record, also where an earlier proof had none."""
    world.declare(format="debezium")

    def change(op: str, before: Any, after: Any) -> dict[str, Any]:
        return {"op": op, "before": before, "after": after}

    world.send(change("r", None, row(1, "a")), change("c", None, row(2, "b")))
    world.send(change("u", row(1, "a"), row(1, "A")), change("d", row(2, None), None), None, id=2)
    world.run()
    first = proven(world)
    assert (first.holds, first.record_by_record, first.rows) == (True, None, 1)
    world.send(change("u", row(1, "A"), row(3, "A")))
    world.run()

    moved = proven(world)

    assert (moved.holds, moved.rows, moved.records) == (True, 1, 6)
    assert moved.record_by_record == "rows move, or keep columns that a record leaves out"
