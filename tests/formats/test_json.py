"""JSON is taken as it is written, or refused with the reason; the proof reads it alike."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructType

from ingestion.declaration.formats import Options
from ingestion.declaration.parts import ExtraFields
from ingestion.declaration.spec import StreamSpec
from ingestion.formats import decoder
from ingestion.formats.decoder import Encoded, decoded_struct
from ingestion.formats.json import decode, strictly_read
from ingestion.formats.json.fast_path import looked_at, supports_fast_path
from ingestion.pipeline.schema import row_type
from ingestion.settings import Settings
from ingestion.verify.fold.classify import Classifier
from ingestion.verify.read.record import Record
from tests.corpus.json_messages import MESSAGES, SCHEMA, Message
from tests.support.batches import judged
from tests.support.long import IS_LONG, twins

pytestmark = pytest.mark.spark

RAW = "_topic STRING, _partition INT, _offset BIGINT, _timestamp TIMESTAMP, _key BINARY, "
RAW += "_value BINARY, _headers STRING"
NUMBERED = "n INT, value BINARY"


def declared(**fields: Any) -> StreamSpec:
    """A stream with a column of every kind."""
    base = {"name": "s", "topic": "t", "schema": SCHEMA, "keys": ["id"]}
    return StreamSpec.model_validate({**base, **fields})


def validated(spark: SparkSession, spec: StreamSpec, values: list[bytes]) -> list[Row]:
    """Judge values, each at the offset of its place in the list."""
    raw = [("t", 0, n, None, None, bytearray(value), None) for n, value in enumerate(values)]
    records = spark.createDataFrame(raw, RAW)
    return sorted(judged(records, spec).collect(), key=lambda row: int(row["_offset"]))


def proven_bad(spec: StreamSpec, values: list[bytes]) -> dict[int, str]:
    """Say which values belong in quarantine, as the proof sees it."""
    records = [Record("t", 0, n, 0, None, value) for n, value in enumerate(values)]
    return {record.offset: why for record, why in Classifier(spec).classify(records, seq=1).bad}


def mutated(chance: random.Random, *, count: int) -> list[bytes]:
    """Return messages of the corpus with a byte changed, dropped or doubled, or with parts swapped.

    Deep nesting is left out: how deep a parser goes is its own affair.
    """
    whole = [each.value for each in MESSAGES if len(each.value) < 4000]
    tokens = [b'"', b"{", b"}", b"[", b"]", b",", b":", b"1", b"e9", b".", b"-", b"null", b"\\u00"]
    made = []
    for _ in range(count):
        value, at = chance.choice(whole), 0
        for _ in range(chance.randint(1, 2)):
            at = chance.randrange(len(value) + 1)
            other = chance.choice([chance.choice(whole)[-12:], *tokens])
            value = value[:at] + other + value[at + chance.randint(0, 3) :]
        made.append(value)
    return made


def refused(_: Column, encoded: Encoded) -> Column:
    """Refuse everything."""
    return decoder.decoded(encoded, reason=F.lit("unseen"))


def of_value(schema: StructType, extra_fields: ExtraFields = "ignore") -> Encoded:
    """Say that the column ``value`` holds objects of these columns."""
    return Encoded(
        column="value",
        into="said",
        is_key=False,
        schema=schema,
        options=Options(),
        extra_fields=extra_fields,
        settings=Settings(),
    )


def decoded_rows(decoded: DataFrame) -> list[dict[str, Any]]:
    """Return what is said of each record; names that are not declared come in no order."""
    each = [row["said"].asDict(recursive=True) for row in decoded.sort("n").collect()]
    return [
        {**one, "extra": sorted(one["extra"] or []), "kept": str(one.get("kept"))} for one in each
    ]


@pytest.fixture(scope="module")
def validated_messages(spark: SparkSession) -> dict[str, Row]:
    """What became of each message."""
    rows = validated(spark, declared(), [each.value for each in MESSAGES])
    return {each.name: row for each, row in zip(MESSAGES, rows, strict=True)}


@pytest.fixture(scope="module")
def opinions() -> dict[str, str]:
    """What the proof says against messages."""
    bad = proven_bad(declared(), [each.value for each in MESSAGES])
    return {MESSAGES[number].name: why for number, why in bad.items()}


@pytest.mark.parametrize("message", MESSAGES, ids=[each.name for each in MESSAGES])
def test_a_message_is_a_row_or_quarantined_with_its_reason(
    message: Message, validated_messages: dict[str, Row], opinions: dict[str, str]
) -> None:
    """Nothing is taken that is not what it says, and both readers see it alike."""
    row = validated_messages[message.name]

    assert (row["_reason"], row["_disposition"] == "row") == (
        message.reason,
        message.reason is None,
    )
    assert (message.name in opinions) == (message.reason is not None), opinions.get(message.name)


@settings(max_examples=8 if IS_LONG else 2, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_the_proof_and_the_engine_refuse_the_same(spark: SparkSession, seed: int) -> None:
    """Whatever is done to a message, two readers that share no code agree on it."""
    values = mutated(random.Random(seed), count=600)

    rows, bad = validated(spark, declared(), values), proven_bad(declared(), values)

    disagreed = [
        (values[n], row["_reason"], bad.get(n))
        for n, row in enumerate(rows)
        if (row["_disposition"] == "row") == (n in bad)
    ]
    assert disagreed == []


@settings(
    max_examples=2, phases=[Phase.generate], deadline=None, suppress_health_check=list(HealthCheck)
)
@given(seed=st.integers(0, 2**32), extra_fields=st.sampled_from(["ignore", "keep", "reject"]))
@pytest.mark.parametrize("is_flat", [True, False])
def test_the_fast_path_finds_what_the_strict_decoder_finds(
    spark: SparkSession, is_flat: bool, seed: int, extra_fields: ExtraFields
) -> None:
    """Where the cheap look finds a record sound, the strict reading gives the same row."""
    values = [each.value for each in MESSAGES] + mutated(random.Random(seed), count=600)
    records = spark.createDataFrame([(n, bytearray(v)) for n, v in enumerate(values)], NUMBERED)
    seen = [f for f in row_type(SCHEMA) if supports_fast_path(StructType([f]))]
    scalars = [f for f in seen if not isinstance(f.dataType, StructType | ArrayType)]
    encoded = of_value(StructType(scalars if is_flat else seen), extra_fields)

    by_look = decoded_rows(looked_at(records, encoded, otherwise=refused))
    looked = decoded_rows(decode(records, encoded))
    strictly = decoded_rows(records.withColumn("said", strictly_read(F.col("value"), encoded)))

    found = [n for n, each in enumerate(by_look) if each["reason"] is None]
    assert len(found) > 20
    # Spelt out, since zeros of both signs are equal.
    assert [values[n] for n in found if repr(by_look[n]) != repr(strictly[n])] == []
    assert repr(looked) == repr(strictly)


@pytest.mark.parametrize(
    ("columns", "value", "reason"),
    [
        pytest.param("id BIGINT, n INT, ok BOOLEAN", b'{"id": 1, "n": 2}', None, id="no text"),
        pytest.param("id INT, `a?` INT", b'{"a\\ud800": 5}', "lone_surrogate", id="question"),
        pytest.param("id INT, `a\ufffd` INT", b'{"a\xff": 5}', "invalid_utf8", id="mended"),
        *twins(
            pytest.param(", ".join(f"c{n} INT" for n in range(350)), b"{}", None, id="wide"),
        ),
        pytest.param(
            f"c STRUCT<{', '.join(f'c{n}: INT' for n in range(350))}>", b"{}", None, id="deep"
        ),
    ],
)
def test_columns_of_any_kind_are_read(
    spark: SparkSession, columns: str, value: bytes, reason: str | None
) -> None:
    """What is said has the type that it should have, whichever way it is found."""
    schema = row_type(columns)
    records = spark.createDataFrame([(0, bytearray(value))], NUMBERED)

    decoded = decode(records, of_value(schema))

    type_ = decoded.schema["said"].dataType
    assert type_.simpleString() == decoded_struct(schema).simpleString()
    (row,) = decoded.collect()
    assert row["said"]["reason"] == reason


def test_every_class_has_a_name_of_its_own() -> None:
    """The corpus is as large as it says."""
    assert len({each.name for each in MESSAGES}) == len(MESSAGES) >= 60
