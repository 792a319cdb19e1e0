"""JSON is taken as it is written, or refused with the reason; the proof reads it alike."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from oncelake.ingestion.declaration.formats import FORMATS, Options
from oncelake.ingestion.declaration.parts import ExtraFields
from oncelake.ingestion.formats.decoder import Encoded, by_record
from oncelake.ingestion.formats.decoding import Decoding, decode_batches
from oncelake.ingestion.formats.json import FastPath
from oncelake.ingestion.formats.json.strict import StrictReader
from oncelake.ingestion.formats.spelling import Undeclared
from oncelake.ingestion.formats.variant import LONGEST_VARIANT
from oncelake.ingestion.modes.engines.rows import Rows
from oncelake.ingestion.pipeline.schema import types as spark_schema
from tests.corpus.json_messages import MESSAGES, SCHEMA, Message
from tests.support.decoding import decoded, disagreements, opened, proven, row_type
from tests.support.long import IS_LONG

# A seed says nothing when it is made smaller.
QUIETLY: dict[str, Any] = {
    "deadline": None,
    "phases": [Phase.generate],
    "suppress_health_check": list(HealthCheck),
}
# What JSON may hold, each tried in every column.
LEAVES = """
1|-1|0|-0|1.0|1e0|1.5|-1.50|1.239|999.99|1000|999.999|127|128|-128|-129|32768|2147483647|2147483648
9223372036854775807|9223372036854775808|-9223372036854775809|1e2|1.5e1|1e400|-1e400|1e-400|0.1|-0.0
3.4028235e38|3.4028236e38|16777217|16777217.0000000000001|1.00000005960464477539062500000001
1.000000059604644775390625|1.00000017881393432617187499999999|12345678901234567890.5
"a"|""|"abc"|"abcd"|"1.5"|"true"|"null"|"NaN"|"Infinity"|"-INF"|"nan"|true|false|null|[]|{}|[1]
{"a": 1}|["a"]|[null]|{"a": null}|{"a": "1"}|"a:b"|"\\u003a"|"\\\\u003a"|"\\ud83d\\ude00"|"\\ud800"
"é"|"\\u0000"|"a\\"b"|"2024-02-29"|"2023-02-29"|"2024-2-3"|"0000-01-01"|"0001-01-01"|"9999-12-31"
"10000-01-01"|"+2024-01-01"|"2024-01-01 "|"2024-01-01T"|"2024-01-01T05"|"2024-01-01T05:06"
"2024-01-01T05:06Z"|"2024-01-01 05:06:07"|"2024-01-01T05:06:07.1"|"2024-01-01T05:06:07.123456"
"2024-01-01T05:06:07.1234567"|"2024-01-01T05:06:07."|"2024-01-01t05:06:07z"|"2024-01-01T05:06:07Z"
"2024-01-01T05:06:07+05:30"|"2024-01-01T05:06:07-00:00"|"2024-01-01T05:06:07+0530"
"2024-01-01T05:06:07+05"|"2024-01-01T05:06:07+18:00"|"2024-01-01T05:06:07+18:01"
"2024-01-01T05:06:07 +05:30"|"2024-01-01T24:00:00Z"|"2024-01-01T23:60:00Z"|"2024-01-01T23:59:60Z"
"2024-13-01T00:00:00Z"|"2024-01-32T00:00:00Z"|"0001-01-01T00:00:00+01:00"|"2024\\u002d01-01"
"9999-12-31T23:59:59.999999Z"|"9999-12-31T23:59:59.999999-01:00"|"1700000000"|1700000000
-1700000000|999999999999|253402300799|253402300800|-62135596800|-62135596801|1000000000000
"AAECAw=="|"AAECAw"|"AB=="|"AAA="|"AAB="|"A==="|"===="|"AA==AA=="|"AAAA="|"AA-_"|"\\u0041A=="
""".strip().replace("\n", "|").split("|")  # fmt: skip
LEAVES += ["1" * 38, "1" * 39, "0." + "1" * 38, "0." + "1" * 39, "1." + "0" * 37, "1." + "0" * 38]
LEAVES += ["0." + "1" * 998, "0." + "1" * 999, "0." + "1" * 1000, "1" * 999, "1" * 1001]
COLUMNS = [column.name for column in row_type(SCHEMA)][1:]
PLACES = [
    *(f'"{name}": %s' for name in COLUMNS),
    '"who": {"name": "x", "age": %s}',
    '"who": {"name": %s}',
    '"who": {"name": "x", "size": %s}',
    '"who": {"name": "x", "y": %s}',
    '"lines": [{"n": 1, "price": %s}, null]',
    '"lines": [{"n": %s}]',
    '"lines": [{"n": 1, "z": %s}, {"n": 1}]',
    '"counts": {"a:b": %s, "c": 1}',
    '"tags": [%s, "x"]',
    '"x": %s',
]
# JSON that a VARIANT holds, or that is learnt to be there though nobody declared it.
WIDE = f"{SCHEMA}, v VARIANT, vs ARRAY<VARIANT>, vm MAP<STRING, VARIANT>, vo STRUCT<v: VARIANT>"
VARIANT_PLACES = [
    *('"v": %s', '"vs": [%s, 1]', '"vm": {"k:": %s}', '"vo": {"v": %s}', '"v": {"a": %s}'),
    *('"v": {"a": %s, "a": 1}', '"x": {"y": %s}', '"x": {"a": %s, "a": 1}', '"x": "a", "y": %s'),
    *('"who": {"name": "x", "y": {"z": %s}}', '"v": 1, "v": %s', '"x": 1, "x": %s'),
]
EVERYWHERE = [f'{{"id": 1, {place % leaf}}}'.encode() for leaf in LEAVES for place in PLACES]

AS_JSON = [f'{{"id": 1, {place % leaf}}}'.encode() for leaf in LEAVES for place in VARIANT_PLACES]


CORPUS = [each.value for each in MESSAGES]


def mutated(chance: random.Random, *, count: int, of: Sequence[bytes] = CORPUS) -> list[bytes]:
    """Return messages with a byte changed, dropped or doubled, or with parts swapped.

    Deep nesting is left out: how deep a parser goes is its own affair.
    """
    whole = [value for value in of if len(value) < 4000]
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


def of_value(ddl: str, extra_fields: ExtraFields = "ignore") -> Encoded:
    """Say that bytes are objects of these columns."""
    return Encoded(schema=row_type(ddl), is_key=False, options=Options(), extra_fields=extra_fields)


def decoding_of(encoded: Encoded) -> Decoding:
    """Return how values of JSON are decoded."""
    return Decoding(module=FORMATS["json"].module, encoded=encoded, column="_value")


def strictly(ddl: str, values: list[bytes], extra_fields: ExtraFields) -> list[dict[str, Any]]:
    """Read values one by one, and no other way."""
    encoded = of_value(ddl, extra_fields)
    return decoded(by_record(StrictReader(encoded), encoded), values)


def spelt_out(struct: dict[str, Any]) -> str:
    """Write what is said of a record; zeros of both signs differ, the order of names does not."""
    row = struct["row"] and {name: same_json(name, value) for name, value in struct["row"].items()}
    kept = same_json("v", struct.get("kept"))
    return repr({**struct, "row": row, "kept": kept, "extra": sorted(struct["extra"] or [])})


def same_json(name: str, value: Any) -> Any:
    """Return what the JSON in a VARIANT says, numbers as written, but for the sign of -0."""
    if isinstance(value, dict | list) and name.startswith("v"):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return [(key, same_json(name, each)) for key, each in items]
    if not isinstance(value, str) or not name.startswith("v"):
        return value
    return json.loads(value, parse_float=str, object_pairs_hook=sorted)


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    """What became of each message."""
    structs = decoded(opened("json", SCHEMA), [each.value for each in MESSAGES])
    return {each.name: struct for each, struct in zip(MESSAGES, structs, strict=True)}


@pytest.mark.parametrize("message", MESSAGES, ids=[each.name for each in MESSAGES])
def test_a_message_is_a_row_or_refused_with_its_reason(
    message: Message, found: dict[str, dict[str, Any]]
) -> None:
    """Nothing is taken that is not what it says; keys are for the pipeline to miss."""
    struct = found[message.name]

    assert struct["reason"] == (None if message.reason == "missing_key" else message.reason)
    assert (struct["row"] is None) == (struct["reason"] is not None)


def test_the_proof_and_the_engine_read_the_same_values() -> None:
    """Whatever stands in whatever column, two readers that share no code give the same row."""
    values = [each.value for each in MESSAGES if each.name != "too deep"] + EVERYWHERE

    assert disagreements("json", SCHEMA, values) == []
    assert disagreements("json", SCHEMA, values, extra_fields="reject") == []


@settings(max_examples=40 if IS_LONG else 8, **QUIETLY)
@given(seed=st.integers(0, 2**32))
def test_the_proof_and_the_engine_refuse_the_same(seed: int) -> None:
    """Whatever is done to a message, two readers that share no code agree on it."""
    assert disagreements("json", SCHEMA, mutated(random.Random(seed), count=600)) == []


@settings(max_examples=60 if IS_LONG else 8, **QUIETLY)
@given(seed=st.integers(0, 2**32), extra_fields=st.sampled_from(["ignore", "keep", "reject"]))
def test_the_fast_path_finds_what_the_strict_reader_finds(
    seed: int, extra_fields: ExtraFields
) -> None:
    """Where the fast path finds a record sound, the strict reading gives the same row."""
    chance = random.Random(seed)
    values = [each.value for each in MESSAGES] + mutated(chance, count=600)
    values += chance.sample(EVERYWHERE, 600) + chance.sample(AS_JSON, 400)
    path = FastPath(of_value(WIDE, extra_fields))
    if extra_fields != "reject":
        path.note([Undeclared("", "x"), Undeclared("", "y"), Undeclared("who.", "y")])
        path.learn()
    rows, is_sound = path(pa.array(values, pa.binary()))
    fast = rows.to_pylist(maps_as_pydicts="strict")

    strict = strictly(WIDE, values, extra_fields)

    sound = [each for each, is_one in zip(strict, is_sound, strict=True) if is_one]
    assert len(sound) > 60
    assert [spelt_out(each) for each in fast] == [spelt_out(each) for each in sound]
    together = decoded(opened("json", WIDE, extra_fields=extra_fields), values)
    assert [spelt_out(each) for each in together] == [spelt_out(each) for each in strict]


@pytest.mark.parametrize(
    ("name", "is_read"), [("\U0001f600" * 25_000, True), ("n" * 50_001, False)]
)
@pytest.mark.parametrize("more", ["", ', "more": 1'], ids=["fast", "read once more"])
def test_a_name_is_as_long_as_spark_takes_it(name: str, is_read: bool, more: str) -> None:
    """Spark's parser counts as Java does, and one record that it refused would fail its batch."""
    decode = opened("json", "id INT, v VARIANT")
    longer = [
        f'{{"id": 1, "v": {{"{each}": 1}}{more}}}'.encode() for each in (name, name + name[0])
    ]

    reasons = [each["reason"] for each in decoded(decode, longer)]

    assert reasons == [None if is_read else "malformed_json", "malformed_json"]


@pytest.mark.parametrize("extra_fields", ["ignore", "keep"])
@pytest.mark.parametrize("ddl", ["id INT", "id INT, x VARIANT"])
def test_depth_and_length_have_limits(ddl: str, extra_fields: ExtraFields) -> None:
    """They are the same whether a name is declared, learnt or neither, and the proof's are."""
    shallow = [b'{"id": 1, "x": 1}'] * 60
    values = [
        b'{"id": 1, "x": %b1%b}' % (start * depth, end * depth)
        for start, end in ((b"[", b"]"), (b'{"a":', b"}"))
        for depth in (450, 899, 900, 2000)
    ]
    values.append(b'{"id": 1, "x": "%b"}' % (b"a" * LONGEST_VARIANT))
    is_read = [True, True, False, False] * 2
    is_long_read = extra_fields == "ignore" and "VARIANT" not in ddl

    for others in ([], shallow):
        decode = opened("json", ddl, extra_fields=extra_fields)
        structs = decoded(decode, [*others, *values])[len(others) :]
        assert [each["reason"] is None for each in structs] == [*is_read, is_long_read]
        assert {each["reason"] for each in structs} == {None, "malformed_json"}
    assert disagreements("json", "id INT", values) == []


FLAT = "id INT, name STRING, amount DECIMAL(5, 2), at TIMESTAMP, `a-b` BOOLEAN, who STRUCT<x: INT>"
WHOLE = '{"id": 1, "name": "n:m", "amount": 1.5, "at": "2024-02-29T00:00:00Z", "a-b": true'


@pytest.mark.parametrize(
    ("value", "is_fast"),
    [
        (WHOLE + "}", True),
        (WHOLE + ', "who": {"x": null}}', True),
        ('{"id": null, "name": null, "amount": null, "at": null}', True),
        ('{"n\\u0061me": "\\u00e9"}', True),
        ("{}", True),
        (WHOLE + ', "id": 1}', False),
        (WHOLE + ', "who": {"x": 1, "x": 1}}', False),
        (WHOLE + ', "more": 1}', False),
        (WHOLE + ', "who": {"y": 1}}', False),
        ('{"id": 1, "id": 1, "name": "\\u003a"}', False),
    ],
)
def test_the_fast_path_takes_what_adds_up_and_nothing_else(value: str, is_fast: bool) -> None:
    """A colon too many is a name that stands twice, or one that nobody declared."""
    _, (is_sound,) = FastPath(of_value(FLAT))(pa.array([value.encode()], pa.binary()))

    assert bool(is_sound) == is_fast


def test_names_that_come_often_are_learnt() -> None:
    """Undeclared names cost a second reading once; what hides behind them is still found."""
    fast = FastPath(of_value("id INT, who STRUCT<x: INT>"))
    sound = {"id": 1, "y": "a:b", "z": {"a": [{"b": None}]}, "who": {"x": 1, "w": 2}}
    values = [sound, {"id": 2, "z": 1.5}, {**sound, "other": 1}, {"id": 3}, {"id": 4, '"': 1}]
    raw = [json.dumps(value).encode() for value in values]
    raw += [b'{"id": 1, "y": 1, "y": 1}', b'{"id": 1, "z": {"a": 1, "a": 1}}']
    _, undeclared = StrictReader(of_value("id INT, who STRUCT<x: INT>")).read(raw[0])
    fast.note([*undeclared, Undeclared("", '"')])

    assert (fast.learn(), fast.learn()) == (True, False)
    rows, is_sound = fast(pa.array(raw, pa.binary()))
    assert is_sound.tolist() == [True, True, False, True, False, False, False]
    assert rows.field(3).to_pylist() == [["who.w", "y", "z"], ["z"], None]


def test_undeclared_names_are_told_at_any_depth() -> None:
    """Each is named by its path, once, and one declared in another case is refused."""
    ddl = "id INT, who STRUCT<x: INT>, `a-b` ARRAY<STRUCT<x: INT>>, m MAP<STRING, STRUCT<x: INT>>"
    others = '"o p": 1, "who": {"y": 1}, "a-b": [{"y": 1}, {"y": 2, "z": 1}], "m": {"k": {"y": 1}}'
    values = [
        f'{{"id": 1, {others}}}'.encode(),
        *(
            b'{"Id": 1}',
            b'{"who": {"X": 1}}',
            b'{"a-b": [null, {"X": 1}]}',
            b'{"m": {"k": {"X": 1}}}',
        ),
    ]
    first, *misspelt = decoded(opened("json", ddl), values)

    assert first["extra"] == ["`o p`", "who.y", "`a-b`[].y", "`a-b`[].z", "m{}.y"]
    told = [(each["reason"], each["detail"]) for each in misspelt]
    assert told == [("wrong_case", name) for name in ("Id", "who.X", "`a-b`[].X", "m{}.X")]
    (rejected,) = decoded(opened("json", ddl, extra_fields="reject"), values[:1])
    assert rejected["reason"] == "unknown_field"
    assert rejected["detail"] == ", ".join(first["extra"])


def test_a_detail_names_the_column_and_what_it_should_be() -> None:
    """The path leads to the value, however deep it is; values of another type come first."""
    values = [
        b'{"id": 1, "day": "today", "ratio": "x", "who": {"name": 1}}',
        b'{"id": 1, "lines": [{"n": 1, "price": 1.239}]}',
        b'{"id": 1, "who": {"age": 1}}',
        b'{"id": 1, "counts": {"a": "1"}}',
    ]

    details = [each["detail"] for each in decoded(opened("json", SCHEMA), values)]

    assert details == [
        "ratio: expected DOUBLE, found STRING, who.name: expected STRING, found BIGINT",
        "lines[].price: expected DECIMAL(5,2), found DECIMAL(38, 3)",
        "who.name: null, and NOT NULL",
        "counts{}: expected INT, found STRING",
    ]


@pytest.mark.parametrize("scale", [0, 2, 10, 37, 38])
def test_a_number_with_too_many_digits_is_never_another(scale: int) -> None:
    """Whatever Arrow makes of it: more digits before the point than the column has are refused."""
    ddl = f"id INT, wide DECIMAL(38, {scale})"
    digits = "12345678901234567890123456710123456789"
    texts = [sign + digits[:length] for length in range(1, 39) for sign in ("", "-")]
    texts += [f"{text}.5" for text in texts if 0 < scale < 38 and len(text) < 36]
    texts += ["0", "5", "0.5"]

    structs = decoded(
        opened("json", ddl), [f'{{"id": 1, "wide": {text}}}'.encode() for text in texts]
    )

    for text, struct in zip(texts, structs, strict=True):
        number = Decimal(text)
        is_held = abs(number) < Decimal(10) ** (38 - scale) and (scale or number == int(number))
        assert (struct["reason"] is None) == bool(is_held), text
        assert not is_held or struct["row"]["wide"] == number


@pytest.mark.parametrize("is_often", [False, True], ids=["read once more", "learnt"])
def test_undeclared_fields_are_kept_as_they_were(is_often: bool) -> None:
    """Of the record's own, whatever they hold, and as they were written."""
    value = b'{"x": {"y": [1, "2"]}, "id": 1, "z" : 1.50, "n": null, "who": {"x": 1}}'
    ddl = "id INT, who STRUCT<y: INT>"

    structs = decoded(
        opened("json", ddl, extra_fields="keep"),
        [b'{"id": 2}', *[value] * (200 if is_often else 1)],
    )

    assert structs[0]["kept"] is None
    kept = structs[-1]["kept"]
    assert json.loads(kept) == {"x": {"y": [1, "2"]}, "z": 1.5, "n": None}
    assert "1.50" in kept
    assert sorted(structs[-1]["extra"]) == ["n", "who.x", "x", "z"]


@pytest.mark.parametrize(
    ("ddl", "key", "row", "reason"),
    [
        ("id INT", b"7", [7], None),
        ("id INT", b'{"id": 7, "more": 1}', [7], None),
        ("id INT", b' {"id": 7}', [7], None),
        ("id INT", b'"7"', None, "wrong_type"),
        ("id INT", b"7 8", None, "trailing_data"),
        ("id INT", b'7,"more":1', None, "trailing_data"),
        ("id INT", b"[7]", None, "wrong_type"),
        ("id STRING", b"seven", ["seven"], None),
        ("id STRING", b"", [""], None),
        ("id STRING", b" 7", [" 7"], None),
        ("id STRING", b'"seven"', ["seven"], None),
        ("id STRING", b'"seven', None, "malformed_json"),
        ("id STRING", b"\xff", None, "invalid_utf8"),
        ("id VARCHAR(3)", b'"abcd"', None, "too_long"),
        ("id DATE", b'"2024-02-29"', None, None),
        ("id INT, name STRING", b"7", None, "not_an_object"),
        ("id INT, name STRING", b'{"id": 7, "name": "a"}', [7, "a"], None),
    ],
)
def test_a_key_may_be_a_bare_value(
    ddl: str, key: bytes, row: list[Any] | None, reason: str | None
) -> None:
    """A single key column is an object's, or the key itself: JSON, or for a STRING plain text."""
    (struct,) = decoded(opened("json", ddl, is_key=True), [key])

    assert struct["reason"] == reason
    assert row is None or list(struct["row"].values()) == row
    assert disagreements("json", ddl, [key], is_key=True) == []


@pytest.mark.parametrize(
    ("columns", "value", "reason"),
    [
        pytest.param("id BIGINT, n INT, ok BOOLEAN", b'{"id": 1, "n": 2}', None, id="no text"),
        pytest.param("id INT, `a?` INT", b'{"a\\ud800": 5}', "lone_surrogate", id="question"),
        pytest.param("id INT, `a\ufffd` INT", b'{"a\xff": 5}', "invalid_utf8", id="mended"),
        pytest.param("`a:b` INT, `f0` INT", b'{"a:b": 1, "f0": 2}', None, id="odd names"),
        pytest.param('`a"\\` INT, x INT', b'{"a\\"\\\\": 1, "y\\n": 2}', None, id="quotes"),
        pytest.param(", ".join(f"c{n} INT" for n in range(350)), b'{"c9": 1}', None, id="wide"),
        pytest.param(
            f"c STRUCT<{', '.join(f'c{n}: INT' for n in range(350))}>", b"{}", None, id="deep"
        ),
    ],
)
def test_columns_of_any_kind_are_read(columns: str, value: bytes, reason: str | None) -> None:
    """Whatever the columns are called, and however many there are."""
    (struct,) = decoded(opened("json", columns), [value])

    assert struct["reason"] == reason
    assert reason or list(struct["row"].values()) == proven("json", columns, [value])[0]


def test_nothing_gives_nothing() -> None:
    """A null value has no row and no reason, and an empty batch is one."""
    decode = opened("json", SCHEMA, extra_fields="keep")

    assert (
        decoded(decode, [None, b'{"id": 1}', None])[::2]
        == [dict.fromkeys(("row", "reason", "detail", "extra", "is_delete", "kept"))] * 2
    )
    assert decoded(decode, []) == []


VARIANTS = (
    "id INT, v VARIANT, s STRUCT<v: VARIANT, n: INT>, l ARRAY<VARIANT>, m MAP<STRING, VARIANT>"
)


@pytest.mark.spark
def test_spark_gets_what_the_seam_gives(spark: SparkSession) -> None:
    """The struct of every message arrives, and texts that stand for VARIANTs are parsed."""
    values = [each.value for each in MESSAGES]
    values += [b'{"id": 2, "x": {"a": [1, "2"]}, "z": 1.50}']
    records = spark.createDataFrame(
        [(n, bytearray(value)) for n, value in enumerate(values)], "n INT, _value BINARY"
    )
    encoded = of_value(SCHEMA, "keep")

    decoding = decoding_of(encoded)
    work = Rows(records=records, work=lambda batches: decode_batches(batches, decoding))
    rows = work.frame().sort("n").collect()

    by_seam = decoded(opened("json", SCHEMA, extra_fields="keep"), values)
    assert [row["_decoded"]["reason"] for row in rows] == [each["reason"] for each in by_seam]
    assert [row["_decoded"]["extra"] for row in rows] == [each["extra"] for each in by_seam]
    read = [row["_decoded"]["row"] for row in rows]
    amounts = [row["amount"] if row else None for row in read]
    assert amounts == [each["row"]["amount"] if each["row"] else None for each in by_seam]
    assert json.loads(str(rows[-1]["_decoded"]["kept"])) == {"x": {"a": [1, "2"]}, "z": 1.5}


@pytest.mark.spark
def test_variants_hold_what_was_written(spark: SparkSession) -> None:
    """At any depth, any JSON; an object in it with a name twice is refused."""
    schema = spark_schema.row_type(VARIANTS)
    whole = b'{"id": 1, "v": {"b": [1.50, null]}, "s": {"v": "x", "n": 1}, "l": [1, {}]}'
    values = [whole, b'{"id": 2, "v": {"a": 1, "a": 2}}', b'{"id": 3}']
    records = spark.createDataFrame([(bytearray(value),) for value in values], "_value BINARY")

    decoding = decoding_of(of_value(VARIANTS))
    read = Rows(records=records, work=lambda batches: decode_batches(batches, decoding)).frame()

    assert read.schema["_decoded"].dataType["row"].dataType.simpleString() == schema.simpleString()
    found = read.select(F.to_json("_decoded.row").alias("row"), "_decoded.reason").collect()
    rows = [(each["row"] and json.loads(each["row"]), each["reason"]) for each in found]
    whole_row = {**json.loads(whole), "v": {"b": [1.5, None]}}
    assert rows == [(whole_row, None), (None, "malformed_json"), ({"id": 3}, None)]


def test_every_class_has_a_name_of_its_own() -> None:
    """The corpus is as large as it says."""
    assert len({each.name for each in MESSAGES}) == len(MESSAGES) >= 60


@pytest.mark.parametrize("tail", [b"", b"\\"], ids=["", "and half an escape"])
def test_a_string_without_an_end_is_refused_at_once(tail: bytes) -> None:
    """A megabyte of it, behind more brackets than may be nested, is looked at once."""
    value = b"[]" * 901 + b'"' + b'\\"' * 490_000 + tail

    (found,) = decoded(opened("json", "id BIGINT"), [value])

    assert found["reason"] == "trailing_data"
    assert disagreements("json", "id BIGINT", [value]) == []


def test_a_name_that_comes_twice_among_many_is_found_at_once() -> None:
    """A hundred thousand names are counted once, and not for each of them."""
    names = ",".join(f'"n{number}":1' for number in range(90_000))
    values = [f'{{"id":1,{names},"n{twice}":2}}'.encode() for twice in (0, 89_999)]

    found = decoded(opened("json", "id BIGINT"), values)

    assert [each["reason"] for each in found] == ["duplicate_name"] * 2
    assert disagreements("json", "id BIGINT", values) == []
