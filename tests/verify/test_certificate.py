"""A certificate says of a table, and of its copies, what the proof has proven."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner, Result

from oncelake.ingestion.cli.app import app
from tests.support.world import ROOT, World, row

COLUMNS = (
    "id INT NOT NULL, name STRING, at INT, price DECIMAL(9, 2), ratio FLOAT, size DOUBLE, "
    "raw BINARY, ok BOOLEAN, seen TIMESTAMP, local TIMESTAMP_NTZ, day DATE, tags ARRAY<STRING>, "
    "more STRUCT<a: INT, b: MAP<STRING, DOUBLE>>"
)
RICH = {
    "price": 12.5,
    "ratio": 0.1,
    "size": -0.0,
    "raw": "aGk=",
    "ok": True,
    "seen": "2024-02-03T04:05:06.789+01:00",
    "local": "2024-02-03T04:05:06",
    "day": "1969-02-28",
    "tags": ["x", None, "é:1"],
    "more": {"a": 1, "b": {"k": 1.5, "a": None}},
}


@pytest.fixture
def certified(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A stream of every type, of which there is a certificate."""
    world.declare(schema=COLUMNS)
    world.send(row(1, "a", 1) | RICH, row(2, "b"), row(3, "ß", 3) | RICH, b"garbage")
    world.run()
    world.write_declaration()
    world.set_environment(monkeypatch)
    done = type_("verify", world.topic, "--certificate", tmp_path / "c.json")
    assert (done.exit_code, "written, sha256" in done.stderr) == (0, True), done.output
    return world


def type_(*words: object) -> Result:
    """Type a command."""
    return CliRunner().invoke(app, [*map(str, words)])


def test_the_table_is_what_was_proven(certified: World, tmp_path: Path) -> None:
    """Without Kafka."""
    for topic in (certified.topic, *certified.topics_beside):
        certified.delete_topic(*({topic} - {certified.topic}))
    done = type_("verify", certified.topic, "--against", tmp_path / "c.json")
    certified.create_topic()

    assert (done.exit_code, "has the 3 rows that" in done.stdout) == (0, True), done.output


@pytest.mark.parametrize(
    "column",
    [
        *("name = 'x'", "price = 12.51", "ratio = 0.2", "size = 1.0", "raw = X'00'"),
        *("ok = false", "day = DATE '2020-01-01'", "tags = make_array('x')"),
    ],
)
def test_any_value_that_changes_is_found_in_its_bucket(
    certified: World, tmp_path: Path, column: str
) -> None:
    """The condition that is told finds the row."""
    name, _, value = column.partition(" = ")
    table = DeltaTable(certified.paths.data.path)
    table.update({name: value}, predicate="id = 3")

    done = type_("verify", certified.topic, "--against", tmp_path / "c.json", "--json")

    told = json.loads(done.stdout)
    assert (done.exit_code, told["holds"], len(told["buckets"])) == (1, False, 1)
    rows = table.to_pyarrow_table()
    with duckdb.connect() as database:
        database.register("rows", rows)
        assert database.sql(f"SELECT id FROM rows WHERE {told['where']}").fetchall() == [(3,)]


@pytest.mark.parametrize(
    "change",
    [
        lambda table: table.delete("id = 2"),
        lambda table: write_deltalake(
            table, table.to_pyarrow_table(filters=[("id", "=", 2)]), mode="append"
        ),
    ],
    ids=["a row less", "a row twice"],
)
def test_rows_that_come_or_go_are_found(
    certified: World, tmp_path: Path, change: Callable[[DeltaTable], object]
) -> None:
    """Whoever adds or removes them."""
    change(DeltaTable(certified.paths.data.path))

    done = type_("verify", certified.topic, "--against", tmp_path / "c.json")

    assert (done.exit_code, "FAILED: 1 bucket of 256 differ" in done.stdout) == (1, True)


def test_a_copy_by_another_tool_is_compared(certified: World, tmp_path: Path) -> None:
    """With the columns in another order, and wider types."""
    rows = DeltaTable(certified.paths.data.path).to_pyarrow_table()
    at = rows.schema.get_field_index("at")
    wider = rows.set_column(at, "at", rows["at"].cast(pa.int64()))
    write_deltalake(tmp_path / "copy", wider.select(sorted(wider.column_names)))
    words = ("verify", "--against", tmp_path / "c.json", "--table")

    same, other = type_(*words, tmp_path / "copy"), type_(*words, certified.paths.quarantine)

    assert same.exit_code == 0, same.output
    assert (other.exit_code, "it has no column id" in other.stderr) == (2, True), other.output


def test_the_checker_of_the_docs_needs_nothing_of_ours(certified: World, tmp_path: Path) -> None:
    """It says the same of Parquet files."""
    page = (ROOT / "docs" / "certificate.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "check.py").write_text(code)
    rows = DeltaTable(certified.paths.data.path).to_pyarrow_table()
    pq.write_table(rows, tmp_path / "same.parquet")
    pq.write_table(rows.slice(1), tmp_path / "other.parquet")
    assert len(code.splitlines()) <= 70

    def check(name: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "check.py", "c.json", name]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    same, other = check("same.parquet"), check("other.parquet")

    assert (same.returncode, same.stderr) == (0, ""), same
    assert (other.returncode, other.stdout[:20]) == (1, "buckets that differ:")


def test_each_certificate_names_the_one_before(certified: World, tmp_path: Path) -> None:
    """So that one that is missing is noticed."""
    first = json.loads((tmp_path / "c.json").read_text())
    certified.send(row(9, "i"))
    certified.run()
    type_("verify", certified.topic, "--certificate", tmp_path / "d.json")

    second = json.loads((tmp_path / "d.json").read_text())

    assert (first["before"], second["before"]) == (None, first["digest"])
    assert (first["rows"], second["rows"], second["records"]) == (3, 4, 5)


def test_an_erase_leaves_the_chain_whole(certified: World, tmp_path: Path) -> None:
    """Whether or not it can tell the key in what a proof remembers."""
    first = json.loads((tmp_path / "c.json").read_text())
    for number in (1, 2):
        done = type_(
            "erase", certified.topic, "--key", f'{{"id": {number}}}', "--reason", "r", "-y"
        )
        assert done.exit_code == 0, done.output
        certified.declare(apply_as_deletes="name = 'zzz'")
        certified.write_declaration()
    type_("verify", certified.topic, "--certificate", tmp_path / "d.json")

    second = json.loads((tmp_path / "d.json").read_text())

    assert (second["before"], second["rows"]) == (first["digest"], 1)


def test_of_a_proof_that_fails_there_is_no_certificate(certified: World, tmp_path: Path) -> None:
    """Nothing is certified that is wrong."""
    DeltaTable(certified.paths.data.path).delete("id = 2")

    done = type_("verify", certified.topic, "--certificate", tmp_path / "wrong.json")

    assert (done.exit_code, (tmp_path / "wrong.json").exists()) == (1, False)


def changed(document: dict[str, Any], **fields: Any) -> str:
    """Return a document with other fields."""
    return json.dumps({**document, **fields})


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda _: "no JSON", "it is no certificate"),
        (lambda _: "[]", "it is no certificate"),
        (lambda found: changed(found, rows=7), "it is not as it was written"),
        (lambda found: changed(found, format=99), "it is of format 99"),
        (None, "No such file or directory"),
    ],
)
def test_what_is_no_certificate_is_refused(
    certified: World, tmp_path: Path, spoil: Any, says: str
) -> None:
    """With file and remedy."""
    file = tmp_path / "other.json"
    if spoil is not None:
        file.write_text(spoil(json.loads((tmp_path / "c.json").read_text())))

    done = type_("verify", certified.topic, "--against", file)

    assert (done.exit_code, says in done.stderr, "Next: " in done.stderr) == (2, True, True)


def test_a_table_is_named_by_stream_or_place(certified: World, tmp_path: Path) -> None:
    """And only one that a certificate is compared with."""
    alone = type_("verify", "--against", tmp_path / "c.json")
    without = type_("verify", certified.topic, "--table", "x")

    assert (alone.exit_code, "nothing says which table" in alone.stderr) == (2, True)
    assert without.exit_code == 2
