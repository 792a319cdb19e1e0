"""The command: its report, its document, its exit codes; and that it leaves no trace."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka.admin import AdminClient
from deltalake import write_deltalake

from oncelake.ingestion.declaration.files.loader import load_stream
from oncelake.ingestion.operations.audit.audit import audit
from oncelake.ingestion.operations.audit.declare import AuditRequest
from oncelake.ingestion.settings import Settings
from tests.audit.pipelines import Source, delta_merge, sound, source
from tests.audit.test_audit import compare, counts
from tests.audit.test_doubts import saved, send
from tests.cli.shell import answer, oncelake
from tests.support.debezium import postgres
from tests.support.world import written

pytestmark = pytest.mark.kafka


def type_audit(settings: Settings, monkeypatch: pytest.MonkeyPatch, *words: str) -> Any:
    """Type the command, with settings of the environment."""
    for name in ("kafka", "lake", "state"):
        monkeypatch.setenv(f"ONCELAKE_{name.upper()}", str(written(settings)[name]))
    return oncelake("audit", *words)


def test_it_reports_and_exits_as_documented(
    orders: Source, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault is a line with key, place and both values, and a sample in the document."""
    rows = sound(orders, is_append=False)
    words = ["--topic", orders.topic, "--keys", "id", "--table"]
    good = delta_merge(rows, settings)["table"]
    rows[9] = {**rows[9], "name": "another"}
    bad = delta_merge(rows, settings)["table"]

    assert type_audit(settings, monkeypatch, *words, good).exit_code == 0
    shown = type_audit(settings, monkeypatch, *words, bad)
    told = type_audit(settings, monkeypatch, *words, bad, "--json")

    place = f"{orders.topic}-{rows[9]['kafka_partition']} offset {rows[9]['kafka_offset']}"
    assert (shown.exit_code, told.exit_code) == (1, 1)
    assert f"different: key (id={rows[9]['id']}) · {place}: differs in name" in shown.stdout
    document = answer(told)
    numbers = ("records", "rows", "missing", "doubled", "different", "extra", "unproven")
    assert [document[name] for name in numbers] == [len(orders.events), len(rows), 0, 0, 1, 0, 0]
    [sample] = document["samples"]["different"]
    assert sample["values"]["name"]["found"] == "another"


def _digests(folder: Path) -> dict[str, str]:
    return {
        str(file): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_it_leaves_no_trace(orders: Source, settings: Settings) -> None:
    """Neither in the table's folder, nor in the topic or a consumer group, nor in the lake."""
    asked = delta_merge(sound(orders, is_append=False), settings)
    admin = AdminClient({"bootstrap.servers": settings.bootstrap_servers()})

    def seen() -> tuple[dict[str, str], set[str], set[str]]:
        groups = admin.list_consumer_groups().result().valid
        topics = admin.list_topics().topics
        return _digests(Path(settings.lake)), {each.group_id for each in groups}, {*topics}

    before = seen()

    report = compare(asked, orders.topic, settings)

    assert counts(report) == {}
    assert seen() == before
    assert [each for each in Path(settings.state).rglob("*") if each.is_file()] == []


def test_a_proposal_is_kept_and_can_be_given_instead(
    orders: Source, settings: Settings, tmp_path: Path
) -> None:
    """The file declares a stream; with it nothing has to be proposed."""
    asked = delta_merge(sound(orders, is_append=False), settings)
    file = tmp_path / "kept_orders.yaml"

    compare(asked, orders.topic, settings, keep=file)
    again = audit(AuditRequest(table=asked["table"], file=file), settings)

    assert load_stream(file).keys == ("id",)
    assert (again.topic, counts(again)) == (orders.topic, {})


def test_a_schema_can_be_given(orders: Source, settings: Settings) -> None:
    """Only its columns are compared."""
    rows = [{**each, "name": "any"} for each in sound(orders, is_append=False)]
    asked = {**delta_merge(rows, settings), "schema": "id STRING, total DECIMAL(12, 2)"}

    report = compare(asked, orders.topic, settings)

    assert (report.columns, counts(report)) == (["id", "total"], {})


def test_an_envelope_of_debezium_is_read(empty: Source, settings: Settings) -> None:
    """Its rows and deletes are those of the source's table."""
    connector = postgres(schemas=False)
    events = [connector.event("c", None, _customer(id, "new")) for id in range(6)]
    events += [connector.event("u", _customer(2, "new"), _customer(2, "old"))]
    events += [connector.event("d", _customer(4, "new"), None)]
    events += [connector.event("c", None, _customer(9, "new"))]
    send(empty, [("", each) for each in events])
    schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    names = {0: "new", 1: "new", 2: "old", 3: "new", 5: "new", 9: "new"}
    rows = [{"id": id, "name": name} for id, name in names.items()]

    assert counts(compare(saved(rows, settings, schema), empty.topic, settings)) == {}
    rows.append({"id": 4, "name": "new"})
    assert counts(compare(saved(rows, settings, schema), empty.topic, settings)) == {"extra": 1}


def _customer(id: int, name: str) -> dict[str, Any]:
    return {"id": id, "name": name}


def test_compaction_explains_rows_without_records(
    empty: Source, settings: Settings, kafka_address: str
) -> None:
    """Of a topic that may be compacted, a row of no record is unproven where all are kept."""
    schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    values = [(str(id), {"id": id, "name": "n"}) for id in range(5)]
    rows = [{"id": id, "name": "n"} for id in range(6)]
    asked = {**saved(rows, settings, schema), "mode": "append"}
    send(empty, values)
    with source(kafka_address, **{"cleanup.policy": "compact"}) as compacted:
        send(compacted, values)

        assert counts(compare(asked, empty.topic, settings)) == {"extra": 1}
        assert counts(compare(asked, compacted.topic, settings)) == {"unproven": 1}


def test_mapped_columns_and_partitions_are_read(empty: Source, settings: Settings) -> None:
    """Columns of a Delta table are found by their names, whatever its files call them."""
    folder = Path(settings.lake) / "mapped"
    write_deltalake(folder, pa.table({"id": [0]}))
    log = folder / "_delta_log" / f"{0:020}.json"
    pq.write_table(pa.table({"col-1": [0, 1, 2], "col-2": ["n", "n", "x"]}), folder / "0.parquet")
    columns = [("id", "long"), ("name", "string"), ("part", "string")]
    log.write_text("\n".join(map(json.dumps, _mapped(columns, (folder / "0.parquet").stat()))))
    send(empty, [(str(id), {"id": id, "name": "n", "part": "p"}) for id in range(3)])

    report = compare({"table": str(folder), "keys": ["id"]}, empty.topic, settings)

    assert (counts(report), report.rows) == ({"different": 1}, 3)
    assert report.samples["different"][0].values == {"name": {"expected": "n", "found": "x"}}


def _mapped(columns: list[tuple[str, str]], file: Any) -> list[dict[str, Any]]:
    """Return the actions of a table whose columns are mapped; its last one is a partition."""
    fields = [
        {
            "name": name,
            "type": type_,
            "nullable": True,
            "metadata": {
                "delta.columnMapping.id": number,
                "delta.columnMapping.physicalName": f"col-{number}",
            },
        }
        for number, (name, type_) in enumerate(columns, 1)
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    last = columns[-1][0]
    mapping = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "3"}
    feature = ["columnMapping"]
    metadata = {
        "id": "6d2a3c1e-0000-4000-8000-000000000001",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema,
        "partitionColumns": [last],
        "configuration": mapping,
        "createdTime": 1,
    }
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    add = {
        "path": "0.parquet",
        "partitionValues": {f"col-{len(columns)}": "p"},
        "size": file.st_size,
        "modificationTime": 1,
        "dataChange": True,
    }
    features = {"readerFeatures": feature, "writerFeatures": feature}
    return [{"protocol": protocol | features}, {"metaData": metadata}, {"add": add}]


def test_columns_of_headers_and_key_are_read_from_there(
    kafka_address: str, settings: Settings, tmp_path: Path
) -> None:
    """A file that declares them is enough, and the value has other things to say."""
    file = tmp_path / "parts.yaml"
    with source(kafka_address) as made:
        for id, tenant in ((1, b"t"), (2, b"u")):
            headers = [("tenant", tenant)]
            made.producer.produce(made.topic, b'{"name": "a"}', str(id).encode(), headers=headers)
        made.flush()
        declared = {
            "topic": made.topic,
            "schema": "id BIGINT, name STRING, tenant STRING",
            "from_headers": {"tenant": "tenant"},
            "from_key": ["id"],
            "keys": ["id"],
        }
        file.write_text(json.dumps(declared))
        rows = [{"id": 1, "name": "a", "tenant": "t"}, {"id": 2, "name": "a", "tenant": "x"}]
        schema = pa.schema({"id": pa.int64(), "name": pa.string(), "tenant": pa.string()})
        table = saved(rows, settings, schema)["table"]

        report = audit(AuditRequest(table=table, file=file), settings)

    assert counts(report) == {"different": 1}
