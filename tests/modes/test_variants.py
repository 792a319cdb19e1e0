"""VARIANTs without Spark: the bytes that Spark would make, in a table that it reads and writes."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import SecretStr
from pyspark.sql import SparkSession
from pyspark.sql.types import VariantType

from oncelake.ingestion.delta.files import read_delta
from oncelake.ingestion.formats.variant import with_variants
from oncelake.ingestion.lake.stream import Stream
from oncelake.ingestion.modes.engines.choose import choose_engine
from oncelake.ingestion.operations.alter import alter
from oncelake.ingestion.operations.erase.erase import erase
from oncelake.ingestion.operations.history.rewind import rewind
from oncelake.ingestion.operations.upkeep.maintain import maintain
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.tables.arrow_types import VARIANT
from oncelake.ingestion.verify.decode.coerce import variant
from oncelake.ingestion.verify.decode.json import parse
from oncelake.ingestion.verify.read.variant import with_texts
from tests.support.both_readers import Sent, classified, declared, judged
from tests.support.long import only_long, twins
from tests.support.proof import find_problems, prove
from tests.support.world import World, settings_in

SCHEMA = (
    "id INT NOT NULL, at INT NOT NULL, v VARIANT, s STRUCT<v: VARIANT, n: INT>, "
    "l ARRAY<VARIANT>, m MAP<STRING, VARIANT>"
)
NUMBERS = (
    *("0", "-0", "127", "128", "-128", "-129", "32767", "32768", "2147483648", "-2147483649"),
    *("9223372036854775807", "9223372036854775808", "-9223372036854775808"),
    *("-9223372036854775809", "9" * 38, "9" * 39, "1" + "0" * 300),
    *("1.0", "1.50", "-0.0", "0.10", "0.999999999", "9.999999999", "1000000000.5", "-12.34"),
    *("9999999999.99999999", "0.1234567890123456789", f"0.{'0' * 37}1", f"0.{'0' * 38}1"),
    *(f"1.{'0' * 40}", "123456789012345678901234567890.12345678901234567890"),
    *("1e3", "1E-3", "1.5e300", "1e308", "5e-324", "0e0", "0e400", f"-0.{'0' * 400}e-400"),
)
# What a double would have as infinity, or as zero, and the reason for which its record waits.
FAR = {
    **dict.fromkeys(("1e400", "-1E0400", "1" + "0" * 400, "1.8e308"), "not_finite"),
    **dict.fromkeys(("-1e-400", "2e-324", f"0.{'0' * 400}1"), "inexact_number"),
}
OTHERS = (
    *("null", "true", "false", '""', '"é😀\\"\\n"', f'"{"x" * 63}"', f'"{"x" * 64}"', "[]", "{}"),
    *('"\\u00e9\\ud83d\\ude00\\u0000"', '{"": 1}', '{"a": {"b": {"a": null}}}', "[1, [2, [3.0]]]"),
    '{"b": 1, "a": 2, "é": 3, "Z": 4, "😀": 5, "\uffff": 6}',
    f"[{', '.join(map(str, range(300)))}]",
    json.dumps({f"name {n}": n for n in range(300)}),
    json.dumps({f"{n}": "x" * 300 for n in range(300)}),
    "[" * 900 + "]" * 900,
    '{"a":' * 900 + "1.5" + "}" * 900,
)


def some_json(dice: random.Random, depth: int = 0) -> str:
    """Return any JSON."""
    kind = dice.choice(["number", "other"] if depth > 3 else ["number", "other", "list", "object"])
    if kind == "number":
        return dice.choice(NUMBERS)
    if kind == "other":
        return dice.choice(OTHERS[:11])
    items = [some_json(dice, depth + 1) for _ in range(dice.choice([0, 1, 2, 5]))]
    if kind == "list":
        return f"[{', '.join(items)}]"
    names = dice.sample([*"abcé😀", "long name", "B", "\uffff"], len(items))
    return f"{{{', '.join(f'{json.dumps(n)}: {i}' for n, i in zip(names, items, strict=True))}}}"


def corpus() -> list[str]:
    """Return JSON that is hard, and any."""
    dice = random.Random(7)
    return [*NUMBERS, *OTHERS, *(some_json(dice) for _ in range(1_000))]


def records(first: int = 0) -> list[bytes]:
    """Return records of each JSON there is, in every place where a VARIANT may be."""
    dice = random.Random(first)
    texts = [*NUMBERS, *OTHERS[:-2], *FAR, *(some_json(dice) for _ in range(30))]
    whole = (
        f'"v": {text}, "s": {{"v": {text}, "n": 1}}, "l": [{text}, null], "x {n}": {text}, '
        f'"m": {{"a": {text}, "b": null}}, "y": 1.50'
        for n, text in enumerate(texts)
    )
    made = [
        f'{{"id": {first + n % 40}, "at": {first + n}, {each}}}' for n, each in enumerate(whole)
    ]
    made.append(f'{{"id": {first + 50}, "at": 900, "v": null, "s": {{"v": null}}}}')
    return [each.encode() for each in made]


def declare(world: World, **more: Any) -> None:
    """Declare columns of every kind, and keep the fields that no column names."""
    declared = {"schema": SCHEMA, "sequence_by": ["at"], "extra_fields": "keep", **more}
    world.declare(**declared)


def encoded(texts: list[str]) -> list[dict[str, bytes]]:
    """Return VARIANTs of JSON."""
    found: list[dict[str, bytes]] = with_variants(pa.array(texts), VariantType()).to_pylist()
    return found


@pytest.mark.spark
def test_the_bytes_are_those_of_spark(spark: SparkSession) -> None:
    """Of any JSON: so numbers have its types, and objects its order."""
    texts = corpus()
    frame = spark.createDataFrame([(n, text) for n, text in enumerate(texts)], "n INT, t STRING")

    rows = frame.selectExpr("n", "parse_json(t) AS v").sort("n").collect()

    made = [{"metadata": bytes(r["v"].metadata), "value": bytes(r["v"].value)} for r in rows]
    assert encoded(texts) == made


def test_the_proof_reads_them_as_they_were_written() -> None:
    """By a reader of its own, of JSON and of the bytes."""
    texts = corpus()

    due = [variant(parse(text.encode())) for text in texts]

    assert with_texts(encoded(texts), VARIANT) == due
    # Both zeros are one whole number, three more are one double, and one the negative of it.
    assert len({*due[: len(NUMBERS)]}) == len(NUMBERS) - 2


def in_any_place(number: str) -> dict[str, str]:
    """Return records that have a number in a VARIANT, by where it is."""
    return {
        "column": f'"v": {number}',
        "object": f'"v": {{"a": [1, {{"b": {number}}}], "hash": "3e1234"}}',
        "STRUCT": f'"s": {{"v": [{number}], "n": 1}}',
        "ARRAY": f'"l": [1, {number}]',
        "MAP": f'"m": {{"a": {number}}}',
        "kept": f'"other": {{"a": {number}}}',
        "both": f'"v": 1e3, "other": {number}',
    }


@pytest.mark.parametrize("is_text", [False, True], ids=["VARIANT", "text"])
@pytest.mark.parametrize("number", FAR)
def test_a_number_is_never_another_one(number: str, is_text: bool) -> None:
    """Its record waits; where the sink has the text of the JSON, it is as it was written."""
    places = in_any_place(number)
    sent = [
        Sent(f'{{"id": {n}, "at": 1, {each}}}'.encode()) for n, each in enumerate(places.values())
    ]
    # What has been read before teaches the quick reader the names of what is kept.
    usual = [Sent(b'{"id": 100, "at": 1, "v": 1.5, "other": {"a": 1e3}}')] * 60
    sink = {"sink": {"iceberg": {}}} if is_text else {}
    spec = declared(schema=SCHEMA, keys=["id"], extra_fields="keep", **sink)

    found = judged(spec, Settings(), [*usual, *sent])[len(usual) :]
    proof = classified(spec, Settings(), [*usual, *sent])

    reason = None if is_text else FAR[number]
    assert [each.get("_reason") for each in found] == [reason] * len(places)
    assert len(proof.bad) == (0 if is_text else len(places))
    if is_text:
        assert number in str(found[0]["v"])


MODES: dict[str, dict[str, Any]] = {
    "upsert": {},
    "soft": {"deletes": "soft", "apply_as_deletes": "id = 3"},
    "partial": {"ignore_null_updates": True, "sequence_by": []},
    "append": {"mode": "append", "keys": [], "sequence_by": []},
    "insert_only": {"mode": "insert_only"},
    "scd2": {"mode": "scd2"},
    "vectors": {"deletion_vectors": True},
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_writes_and_proves_them(world: World, mode: str) -> None:
    """In two batches, the second of which changes rows of the first, and by a redrive."""
    declare(world, **MODES[mode])
    world.send(*records())
    world.run()
    world.send(*records(20), b'{"id": 7, "at": 2, "v": 1.50, "l": 5, "z": 2}')
    report = world.run()

    assert report.engine == "local"
    assert report.total("quarantined") == 1 + len(FAR)
    assert find_problems(world) == ()


def test_a_table_with_them_is_looked_after(world: World) -> None:
    """Evolved, widened, altered, put together, set back, and without an erased key."""
    of_key = "id INT NOT NULL, at INT NOT NULL"
    declare(world, schema_change="evolve", schema=f"{of_key}, k SMALLINT")
    world.send(*records())
    world.run()
    declare(world, schema=f"{of_key}, k INT, v VARIANT, s STRUCT<v: VARIANT>")
    world.send(*records(20))
    world.run()
    declare(world, schema=f"{SCHEMA}, k INT")
    world.send(*records(30))
    assert world.run().engine == "local"
    assert prove(world).differences == ()
    declare(world, schema=f"{SCHEMA}, k INT".replace(" v V", " w V"), renamed_from={"w": "v"})
    alter(world.spec, world.settings, drops=(), run_id="r")
    maintain(world.spec, world.settings, run_id="r")
    rows = world.rows()
    erase(world.spec, world.settings, key='{"id": 31}', reason="a test", run_id="r")

    assert world.rows() == [row for row in rows if row["id"] != 31]
    assert find_problems(world) == ()


def test_a_rewind_brings_them_back(world: World) -> None:
    """Rows and columns are those of then."""
    declare(world)
    world.send(*records())
    world.run()
    before = world.rows()
    world.send(*records(20))
    world.run()

    rewind(world.spec, world.settings, to="seq:1", reason="a test", run_id="r")

    assert world.rows() == before
    assert prove(world).differences == ()
    world.run()
    assert find_problems(world) == ()


def test_fields_that_are_kept_from_now_on_are_proven_from_now_on(world: World) -> None:
    """Rows of batches before have none, and are right."""
    world.declare(schema_change="evolve")
    world.send({"id": 1, "name": "a", "x": 1}, {"id": 2, "name": "b", "x": 1})
    world.run()
    world.declare(extra_fields="keep")
    world.send({"id": 2, "name": "c", "x": 1.5})
    world.run()

    assert prove(world).differences == ()


def test_a_table_of_shredded_variants_stays_with_spark(world: World) -> None:
    """Another column in its files has what a reader of two binaries would not find."""
    declare(world)
    world.run()
    log = Path(world.paths.data.path) / "_delta_log"
    protocol = read_delta(world.paths.data).protocol()
    features = [*protocol.reader_features, "variantShredding-preview"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": [*protocol.writer_features, "variantShredding-preview"],
    }
    (log / f"{1:020}.json").write_text(json.dumps({"protocol": protocol}))
    stream = Stream(spec=world.spec, settings=world.settings)

    name, why = choose_engine(stream)

    assert (name, why) == ("spark", "the table has the feature variantShredding-preview")


def seen_by_spark(world: World) -> list[Any]:
    """Return the rows as Spark reads them: JSON, and the type of each value."""
    parts = ("v", "s.v", "_extra_fields")
    columns = [f"{of}({part})" for part in parts for of in ("to_json", "schema_of_variant")]
    columns += ["transform(l, e -> to_json(e))", "transform(l, e -> schema_of_variant(e))"]
    columns += ["transform(map_values(m), e -> schema_of_variant(e))", "to_json(m)"]
    found = world.spark.read.format("delta").load(str(world.paths.data))
    return found.selectExpr("id", *columns).sort("id").collect()


@only_long
@pytest.mark.spark
@pytest.mark.kafka
def test_both_engines_make_one_table(world: World, tmp_path: Path) -> None:
    """Each of its own, and each of what the other has written, behind a condition."""
    declare(world, where="id <> 4")
    world.send(*records())
    of = {}
    for name in ("local", "spark"):
        here = settings_in(tmp_path / name, world.settings.kafka.address or "", merge_engine=name)
        of[name] = replace(world, settings=here, declared=dict(world.declared))
    assert {world.run().engine for world in of.values()} == {*of}
    first = [seen_by_spark(each) for each in of.values()]
    assert first[0] == first[1]
    assert len(first[0]) == 40

    for name, each in zip(("spark", "local"), of.values(), strict=True):
        each.settings = each.settings.model_copy(update={"merge_engine": name})
    world.send(*records(20))
    assert {world.run().engine for world in of.values()} == {*of}

    second = [seen_by_spark(each) for each in of.values()]
    assert second[0] == second[1] != first[0]


def use_sink(world: World, sink: str, request: pytest.FixtureRequest) -> None:
    """Say where PostgreSQL is, if the sink is one."""
    if sink == "postgres":
        address = SecretStr(request.getfixturevalue("postgres_address"))
        world.settings = world.settings.model_copy(update={"postgres": address})


ON_KAFKA = pytest.param("kafka", marks=pytest.mark.kafka)


@pytest.mark.parametrize("sink", ["iceberg", "postgres", ON_KAFKA])
@pytest.mark.parametrize("fields", ["upsert", "append"])
def test_a_sink_without_them_keeps_extra_fields_as_json(
    world: World, sink: str, fields: str, request: pytest.FixtureRequest
) -> None:
    """In one form, numbers as they were written, whoever has read the record; proven as text."""
    use_sink(world, sink, request)
    of_mode = {"mode": "append", "keys": []} if fields == "append" else {}
    world.declare(schema="id INT NOT NULL, at INT", extra_fields="keep", sink=sink, **of_mode)
    texts = [*NUMBERS, *OTHERS]
    world.send(*(f'{{"id": {n}, "y": 1.50, "x": {t}}}'.encode() for n, t in enumerate(texts)))
    world.send(b'{"id": 900, "x": { "b" : 1.50,\n"a": "\\u0000\\u00e9 \\/" }}', b'{"id": 901}')
    world.run()

    names = ["id", "_extra_fields"]
    rows = {row["id"]: row for each in world.paths.table.scan(names) for row in each.to_pylist()}

    assert rows[900]["_extra_fields"] == '{"x":{"a":"\\u0000é /","b":1.50}}'
    assert rows[901]["_extra_fields"] is None
    assert rows[NUMBERS.index("1.50")]["_extra_fields"] == '{"x":1.50,"y":1.50}'
    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", ["iceberg", "postgres", ON_KAFKA])
def test_a_sink_without_them_has_the_text_of_their_json(
    world: World, sink: str, request: pytest.FixtureRequest
) -> None:
    """In every place, a null that is written among them."""
    use_sink(world, sink, request)
    nested = "" if sink == "postgres" else SCHEMA.partition(" v VARIANT")[2]
    schema = f"id INT NOT NULL, at INT NOT NULL, v VARIANT{nested}"
    declare(world, sink=sink, schema=schema, sequence_by=[])
    world.send(*records())
    world.run()
    world.send(*records(20), b'{"id": 81, "at": 1, "v": {"c": 1.50, "b": [ ]}}')
    world.send(b'{"id": 82, "at": 1, "v": null}', b'{"id": 83, "at": 1}')
    world.run()

    found = world.paths.table.scan(["id", "v"])
    rows = {row["id"]: row["v"] for each in found for row in each.to_pylist()}
    assert (rows[81], rows[82], rows[83]) == ('{"b":[],"c":1.50}', "null", None)
    assert find_problems(world) == ()


@pytest.mark.parametrize("sink", ["iceberg", "postgres"])
def test_the_proof_reads_the_text_in_a_condition(
    world: World, sink: str, request: pytest.FixtureRequest
) -> None:
    """By its own reader, as of any STRING."""
    use_sink(world, sink, request)
    world.declare(schema="id INT NOT NULL, v VARIANT", apply_as_deletes="v = '\"gone\"'", sink=sink)
    world.send(b'{"id": 1, "v": "x"}', b'{"id": 2, "v": "x"}', b'{"id": 2, "v": "gone"}')

    world.run()

    assert [row["id"] for row in world.rows()] == [1]
    assert find_problems(world) == ()


@pytest.mark.spark
def test_statements_read_the_text_where_a_sink_has_no_other(world: World) -> None:
    """As a STRING, and the proof has them evaluated."""
    filtered = "get_json_object(v, '$.b') IS NULL OR length(v) > 9"
    declare(world, sink="iceberg", schema="id INT NOT NULL, at INT, v VARIANT", where=filtered)
    world.send(
        *records(), b'{"id": 80, "at": 1, "v": {"b": 1}}', b'{"id": 81, "at": 1, "v": {"c": 1.50}}'
    )
    report = world.run()

    assert report.total("filtered") == 1
    assert {81} == {row["id"] for row in world.rows()} - {*range(80)}
    assert prove(world).differences == ()


@pytest.mark.spark
@pytest.mark.parametrize("engine", ["local", *twins("spark")])
def test_statements_that_read_them_are_proven(world: World, engine: str) -> None:
    """Those that make one, too, in every place; numbers keep their types on the way to Spark."""
    world.settings = world.settings.model_copy(update={"merge_engine": engine})
    declare(
        world,
        schema=f"{SCHEMA}, city STRING, doubled VARIANT",
        value_schema=SCHEMA,
        select={
            "city": "try_variant_get(v, '$.b', 'string')",
            "doubled": "to_variant_object(named_struct('id', 2 * id, 'v', v))",
        },
        where="schema_of_variant(v) <> 'BOOLEAN'",
    )
    world.send(*records(), b'{"id": 81, "at": 1, "v": {"b": "Ulm", "c": 1.50}}')
    report = world.run()

    rows = {row["id"]: row for row in world.rows()}
    assert rows[81]["city"] == "Ulm"
    assert report.total("filtered") > 0
    assert prove(world).differences == ()
    world.send(*records(20))
    world.run()
    assert prove(world).differences == ()
