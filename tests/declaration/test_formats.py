"""What may be declared of a format, and what is refused with a remedy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from ruamel.yaml import YAML

from oncelake.ingestion.declaration.formats import FORMATS
from oncelake.ingestion.declaration.parts import FormatSpec
from oncelake.ingestion.declaration.spec import StreamSpec
from tests.support.world import ROOT

PAGES = [(ROOT / "docs" / name).read_text() for name in ("formats.md", "debezium.md", "json.md")]
EXAMPLES = re.findall(r"```yaml\n(.*?)```", "".join(PAGES[:2]), re.DOTALL)


def declared(**fields: Any) -> StreamSpec:
    """A stream of one key and one more column."""
    base = {"name": "s", "topic": "t", "schema": "id INT, at TIMESTAMP", "keys": ["id"]}
    return StreamSpec.model_validate({**base, **fields})


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: text.partition("\n")[0])
def test_the_examples_of_the_docs_can_be_declared(text: str) -> None:
    """Whoever copies an example gets a stream."""
    fields = YAML(typ="safe").load(text)

    assert StreamSpec.model_validate({"name": "example", **fields}).subscribed


def test_every_format_has_its_example() -> None:
    """No format but JSON, which has a page of its own, is left without one."""
    shown = {
        StreamSpec.model_validate({"name": "x", **YAML(typ="safe").load(text)}).format.type
        for text in EXAMPLES
    }

    assert shown | {"json", "raw"} == set(FormatSpec.names())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"format": {"type": "avro", "registry": "x"}}, "`avro` has no option `registry`"),
        ({"format": "raw"}, "`format: raw` fills exactly one column, a BINARY"),
        ({"key_format": "string"}, "`string` reads exactly one key column, a STRING; the keys are"),
        ({"key_format": "raw"}, "`raw` reads exactly one key column, a BINARY"),
        ({"key_format": "csv", "schema": "id BINARY, at INT"}, "a field of CSV is none of these"),
        ({"select": {"id": "id + 1"}}, "it makes another id of the value's"),
        ({"where": "id IN (SELECT 1)"}, "asks another table"),
        ({"select": {"at": "length(to_json(struct(*)))"}}, "stands for no columns here; name each"),
        ({"select": {"at": "(SELECT max(at) FROM t)"}}, "asks another table"),
        ({"format": "string", "schema": "id INT"}, "fills exactly one column, a STRING"),
        ({"format": "csv", "schema": "id INT, a ARRAY<INT>"}, "a field of CSV is no ARRAY"),
        ({"format": {"type": "csv", "delimiter": '"'}}, "delimiter"),
        ({"format": {"type": "csv", "delimiter": "|", "quote": "|"}}, "must differ"),
        ({"format": "csv", "schema": "id INT, v VARIANT"}, "cannot fill a VARIANT"),
        ({"schema": "id INT, m ARRAY<MAP<INT, STRING>>"}, "schema: column m: the names in a value"),
        ({"value_schema": "id INT, at INT, m MAP<VARCHAR(2), INT>"}, "value_schema: column m: "),
        ({"format": "avro", "extra_fields": "keep"}, "cannot keep them; write `ignore`"),
        (
            {"key_format": "debezium"},
            "there is no 'debezium'; write one of: json, avro, protobuf, json_schema, csv, string, "
            "raw, short, int, long, uuid",
        ),
        (
            {"format": "long"},
            "there is no 'long'; write one of: json, avro, protobuf, json_schema, csv, string, "
            "raw, debezium",
        ),
        ({"key_format": "long"}, "`long` reads exactly one key column, a BIGINT; the keys are INT"),
        (
            {"key_format": "int", "keys": ["id", "at"]},
            "`int` reads exactly one key column, a INT or BIGINT; the keys are INT, TIMESTAMP",
        ),
        ({"key_format": "uuid"}, "`uuid` reads exactly one key column, a STRING; the keys are INT"),
        ({"format": "debezium", "sequence_by": "at"}, "such as `lsn: source.lsn`"),
        (
            {"format": {"type": "debezium", "columns": {"att": "ts_ms"}}},
            "'att' is not a column of `schema`; did you mean `at`?",
        ),
        ({"format": {"type": "debezium", "columns": {"at": "after.at"}}}, "columns.at"),
        (
            {"format": {"type": "debezium", "schemas": True, "timestamps": "millis"}},
            "the schema says it already; remove timestamps",
        ),
        (
            {"format": {"type": "debezium", "schemas": True, "encoding": "avro"}},
            "`schemas` is for JSON",
        ),
    ],
)
def test_a_contradiction_is_refused_with_its_remedy(fields: dict[str, Any], message: str) -> None:
    """What cannot work is refused when the file is loaded."""
    with pytest.raises(ValidationError) as error:
        declared(**fields)

    assert message in str(error.value)


def test_a_null_value_repeats_a_delete_of_debezium() -> None:
    """It is ignored unless the declaration says otherwise."""
    assert declared(format="debezium").tombstone_policy == "ignore"
    assert declared(format="debezium", tombstones="delete").tombstone_policy == "delete"
    assert declared(format="avro").tombstone_policy == "delete"


def test_reasons_are_listed_in_the_docs() -> None:
    """Each code that a format may give stands on a page of the formats."""
    from importlib import import_module

    codes = {
        code
        for each in FORMATS.values()
        for code in getattr(import_module(each.module), "REASONS", {})
    }

    assert codes
    assert {code for code in codes if not any(f"`{code}`" in page for page in PAGES)} == set()


def test_a_package_that_fails_takes_no_other_declaration_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its author wrote wrongly is told as the declaration's, with the error."""
    (tmp_path / "broken_package").mkdir()
    (tmp_path / "broken_package" / "__init__.py").write_text("raise RuntimeError('not today')")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ValidationError, match="cannot be imported: RuntimeError: not today"):
        declared(transform="broken_package.rows.clean")


@pytest.mark.parametrize(
    "fields",
    [
        {"key_format": "string", "tombstones": "ignore"},
        {"key_format": "string", "schema": "id STRING, at INT"},
        {"key_format": "int"},
        {"key_format": "int", "schema": "id BIGINT"},
        {"key_format": "short"},
        {"key_format": "uuid", "schema": "id STRING"},
        {"select": {"id": "id + 1"}, "tombstones": "quarantine"},
        {"select": {"id": "other + 1"}, "value_schema": "other INT, at TIMESTAMP"},
    ],
    ids=[
        *("keys are not read", "one text", "an int", "an int that is wider here", "a short"),
        *("a uuid", "no delete by key", "named by the key"),
    ],
)
def test_keys_that_can_be_read_are_not_refused(fields: dict[str, Any]) -> None:
    """Only what a delete would need is asked for."""
    assert declared(**fields).keys == ("id",)
