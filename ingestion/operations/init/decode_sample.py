"""A sample, decoded and validated as a run does, without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.formats import FORMATS
from oncelake.ingestion.declaration.parts import KeyFormatSpec
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.declaration.sql import OFFLINE, quoted
from oncelake.ingestion.formats.decoder import Encoded
from oncelake.ingestion.formats.decoding import Decoding, decode_batches
from oncelake.ingestion.kafka.offsets import Offsets
from oncelake.ingestion.modes.engines.rows import RECORDS, Rows, Work
from oncelake.ingestion.operations.init.sample import SampledRecord, TopicSample
from oncelake.ingestion.pipeline.decode import decode_here, with_schemas
from oncelake.ingestion.pipeline.plan import StreamPlan, compile_plan
from oncelake.ingestion.pipeline.schema.types import type_of_columns
from oncelake.ingestion.pipeline.validate import validate
from oncelake.ingestion.settings import Settings


class SampleRow(NamedTuple):
    """The decoded columns of one record; none of a null value, and of a bad one."""

    partition: int
    row: dict[str, Any] | None


def decode_values(sample: TopicSample, spec: StreamSpec, settings: Settings) -> list[SampleRow]:
    """Decode the values of a sample, in its order."""
    records = table_of(sample.topic, sample.records)
    decoded = decode_here(records, compile_plan(spec).decode, settings).here()
    structs = _pylist(decoded["_decoded"])
    rows = []
    for record, struct in zip(sample.records, structs, strict=True):
        is_meant = not spec.record or struct["record"] in (None, *spec.record)
        is_good = record.value is not None and not struct["reason"] and is_meant
        rows.append(SampleRow(record.partition, struct["row"] if is_good else None))
    return rows


def decode_keys(
    sample: TopicSample,
    columns: Sequence[DeclaredColumn],
    key_format: KeyFormatSpec,
    settings: Settings,
) -> list[tuple[Any, ...] | None]:
    """Decode the Kafka keys as some columns, as a null value's is; ``None`` where that fails."""
    records = table_of(sample.topic, sample.records)
    schema, options = type_of_columns(columns), key_format.options
    encoded = Encoded(schema=schema, is_key=True, options=options, extra_fields="ignore")
    decoding = Decoding(module=FORMATS[key_format.type].module, encoded=encoded, column="_key")
    decoded = decode_batches(iter(records.to_batches()), with_schemas(decoding, records, settings))
    structs = [each for batch in decoded for each in _pylist(batch.column("_decoded_key"))]
    return [
        None if record.key is None or each["reason"] else tuple(each["row"].values())
        for record, each in zip(sample.records, structs, strict=True)
    ]


def validate_sample(
    sample: TopicSample, spec: StreamSpec, settings: Settings
) -> list[dict[str, Any]]:
    """Return what a run would make of each record: its columns, disposition and reason.

    But for ``apply_as_deletes``, which only Spark evaluates, and which makes no record bad. All
    that ``select`` does here is to give fields of the value another name.
    """
    of_spark = {"apply_as_deletes", "value_ddl", "select"}
    fields = spec.model_dump(by_alias=True, exclude_unset=True, exclude=of_spark)
    plain = StreamSpec.model_validate({**fields, "types": {}})
    records = table_of(sample.topic, sample.records)
    decoded = decode_here(records, compile_plan(spec).decode, settings)
    renamed = decoded.then(lambda work: _renaming(work, spec))
    validated = validate(renamed, compile_plan(plain).judge, Offsets(), {})
    with duckdb.connect(config={**OFFLINE}) as tables:
        tables.execute("SET TimeZone = 'UTC'")
        tables.register("decoded", validated.here())
        found: list[dict[str, Any]] = _pylist(tables.sql(validated.sql).to_arrow_table())
    found = [row for row in found if row["_index"] == 0]
    return sorted(found, key=lambda row: (row["_timestamp"], row["_partition"], row["_offset"]))


def judge_here(records: pa.Table, plan: StreamPlan, settings: Settings) -> Rows:
    """Decode and validate records in this process, of a stream that needs no Spark for that."""
    decoded = decode_here(records, plan.decode, settings)
    return validate(decoded, plan.judge, Offsets(), {})


def _renaming(decode: Work, spec: StreamSpec) -> Work:
    """Return work whose rows have the table's columns."""
    by_text = {quoted(column.name): column.name for column in spec.value_columns}
    fields = {c.name: by_text[spec.select.get(c.name, quoted(c.name))] for c in spec.columns}

    def renamed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in decode(batches):
            decoded = batch.column("_decoded")
            parts = dict(zip((part.name for part in decoded.type), decoded.flatten(), strict=True))
            values = [parts["row"].field(name) for name in fields.values()]
            is_null = parts["row"].is_null()
            parts["row"] = pa.StructArray.from_arrays(values, [*fields], mask=is_null)
            made = pa.StructArray.from_arrays([*parts.values()], [*parts], mask=decoded.is_null())
            yield batch.set_column(batch.schema.get_field_index("_decoded"), "_decoded", made)

    return renamed


def table_of(topic: str, records: Sequence[SampledRecord]) -> pa.Table:
    """Return records as Spark delivers them."""
    partitions, offsets, times, keys, values, headers = zip(*records, strict=True)
    columns = {
        "_topic": [topic] * len(records),
        "_partition": partitions,
        "_offset": offsets,
        "_timestamp": times,
        "_key": keys,
        "_value": values,
        "_headers": [[{"key": name, "value": value} for name, value in of] for of in headers],
        "_digest": [None] * len(records),
    }
    return pa.Table.from_pydict(columns, RECORDS)


def _pylist(rows: Any) -> list[Any]:
    found: list[Any] = rows.to_pylist(maps_as_pydicts="lossy")
    return found
