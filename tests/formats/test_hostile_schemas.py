"""What a schema registry may answer to do harm: such a record is refused, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from oncelake.ingestion.declaration.ddl import parse_columns
from oncelake.ingestion.kafka.schema_registry import Registry, WriterSchema
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.decode import avro, protobuf
from oncelake.ingestion.verify.decode.coerce import BadRecordError, provable_types
from tests.corpus.hostile_schemas import AVRO, PROTOBUF, HostileSchema, plugin_schema
from tests.support.decoding import decoded, opened
from tests.support.http_server import Handler, served
from tests.support.registry import framed

DDL = "id BIGINT"


def reason_of(schema: WriterSchema, payload: bytes) -> str | None:
    """Return why the engine refuses a record that is written by a schema."""
    decode = opened(schema.type.lower(), DDL, writer_schemas=[schema])
    (found,) = decoded(decode, [framed(schema.id, payload)])
    reason: str | None = found["reason"]
    return reason


def prove(schema: WriterSchema, payload: bytes) -> None:
    """Read such a record as the proof does."""
    wanted = provable_types(parse_columns(DDL))
    if schema.type == "AVRO":
        avro.opened(schema, wanted, is_key=False)(payload)
    else:
        protobuf.opened(schema, wanted, protobuf.by_indexes)(payload)


@pytest.mark.parametrize("hostile", [*AVRO, *PROTOBUF], ids=lambda hostile: hostile.name)
def test_a_schema_that_explodes_or_leads_astray_is_unusable(
    hostile: HostileSchema, capfd: pytest.CaptureFixture[str]
) -> None:
    """Engine and proof both refuse it, at once, and print nothing of it."""
    assert reason_of(hostile.schema, hostile.payload) == "unusable_schema"
    with pytest.raises(BadRecordError):
        prove(hostile.schema, hostile.payload)

    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("type_", "more"),
    [
        (["null", "int"], {"default": "null"}),
        ("int", {"default": "x", "aliases": "b"}),
        ({"type": "enum", "name": "E", "symbols": ["a"], "default": "b"}, {}),
    ],
    ids=str,
)
def test_what_a_schema_says_to_readers_alone_is_not_looked_at(type_: object, more: object) -> None:
    """Nobody needs a default to read what was written, so that a wrong one does no harm."""
    fields = [{"name": "id", "type": "long"}, {"name": "a", "type": type_, **dict(more)}]
    text = json.dumps({"type": "record", "name": "Row", "fields": fields})
    schema = WriterSchema(id=1, type="AVRO", text=text)

    assert reason_of(schema, b"\2\0") is None
    prove(schema, b"\2\0")


def test_a_schema_cannot_make_the_compiler_run_a_program(tmp_path: Path) -> None:
    """An import that is an option of the compiler is refused before the compiler sees it."""
    program, mark = tmp_path / "program", tmp_path / "ran"
    program.write_text(f"#!/bin/sh\ntouch {mark}\n")
    program.chmod(0o755)
    schema = plugin_schema(str(program), str(tmp_path))

    assert reason_of(schema, b"\0\x08\x01") == "unusable_schema"
    with pytest.raises(BadRecordError):
        prove(schema, b"\0\x08\x01")
    assert not mark.exists()


def test_the_proof_writes_no_file_that_a_schema_names(tmp_path: Path) -> None:
    """A reference whose name is a path is not followed."""
    target = tmp_path / "written.proto"
    schema = WriterSchema(
        id=1, type="PROTOBUF", text="", references=((str(target), 'syntax = "proto3";'),)
    )

    with pytest.raises(BadRecordError):
        prove(schema, b"\0")
    assert not target.exists()


def test_schemas_that_refer_to_one_another_in_circles_are_read_once() -> None:
    """A registry whose schemas refer to each other, twice each, answers each request once."""
    with circular_registry() as (address, requests):
        found = Registry(Settings(schema_registry=address)).schemas([1])

    assert [name for name, _ in found[1].references] == ["a2", "a1", "a0"]
    assert len(requests) == 4


@contextmanager
def circular_registry() -> Iterator[tuple[str, list[str]]]:
    """Serve schemas of which each refers twice to the next, and the last to the first."""
    requests: list[str] = []

    class _Circle(Handler):
        def get(self) -> None:
            requests.append(self.path)
            subject = self.path.split("/")[2] if self.path.startswith("/subjects") else "a2"
            after = f"a{(int(subject[1]) + 1) % 3}"
            reference = {"name": after, "subject": after, "version": 1}
            answer = {"schema": "{}", "references": [reference, reference]}
            answer |= {"subject": subject, "version": 1, "id": 7}
            self.answer(200, json.dumps(answer).encode())

    with served(_Circle) as url:
        yield url, requests
