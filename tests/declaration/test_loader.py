"""Every mistake in a stream's file has a line, a field and a remedy."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oncelake.ingestion.declaration.files.loader import (
    find_stream,
    load_stream,
    load_streams,
    locating_problems,
)
from oncelake.ingestion.declaration.files.yaml_reader import BadYamlError, read_tree
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import BadFieldError, InvalidSpecError

ORDERS = """\
topic: orders
schema: id BIGINT NOT NULL, amount DOUBLE, at TIMESTAMP
keys: [id]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the streams' folder of an empty project."""
    (tmp_path / "dagster.yaml").touch()
    monkeypatch.chdir(tmp_path)
    streams = tmp_path / "assets" / "streams"
    streams.mkdir(parents=True)
    return streams


def problems(folder: Path, text: str, name: str = "orders") -> list[str]:
    """Return what is said of a file with this text, line by line."""
    path = folder / f"{name}.yaml"
    path.write_text(text)
    with pytest.raises(InvalidSpecError) as raised:
        load_stream(path)
    return str(raised.value).splitlines()


def test_a_stream_is_read_from_its_file(folder: Path) -> None:
    """The file's name is the stream's; the rest is what the file says."""
    (folder / "orders.yaml").write_text(ORDERS)

    spec = load_stream(folder / "orders.yaml")

    assert (spec.name, spec.topic, spec.keys) == ("orders", "orders", ("id",))


def test_the_contract_s_own_example_is_read(folder: Path) -> None:
    """Comments, a block of DDL and every field of the documented example are understood."""
    (folder / "flights.yaml").write_text(
        "description: Every departure from New York in 2013\n"
        "topic: flights                       # or topics: [a, b]\n"
        "format: json\n"
        "schema: |                            # Spark DDL\n"
        "  year INT NOT NULL, month INT NOT NULL,\n"
        "  status STRING, updated_at TIMESTAMP NOT NULL\n"
        "mode: upsert\n"
        "keys: [year, month]\n"
        "sequence_by: [updated_at]            # optional\n"
        "apply_as_deletes: status = 'cancelled'\n"
    )

    spec = load_stream(folder / "flights.yaml")

    assert [column.name for column in spec.columns] == ["year", "month", "status", "updated_at"]
    assert spec.apply_as_deletes == "status = 'cancelled'"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("keyz: [id]", "4: keyz: unknown key; did you mean `keys`?", id="misspelt key"),
        pytest.param("ddl: id INT", "4: ddl: unknown key; did you mean `schema`?", id="inner name"),
        pytest.param(
            "xyz: 1", "4: xyz: unknown key; there are: description, topic", id="strange key"
        ),
        pytest.param(
            "quarantine_rate:\n  warn_abov: 0",
            "5: quarantine_rate.warn_abov: unknown key; did you mean `warn_above`?",
            id="misspelt nested key",
        ),
        pytest.param(
            "expectations:\n- {type: expect_column_to_exist, column: id}\n- column: id",
            "6: expectations[1].type: missing; write for example `type: expect_",
            id="missing nested field",
        ),
        pytest.param(
            "expectations:\n- {type: expect_column_to_exist, column: id,\n   severity: fatal}",
            "6: expectations[0].severity: write one of: 'critical', 'warning' or 'info'; "
            "found 'fatal'",
            id="enum in a list",
        ),
        pytest.param(
            "tombstones: drop",
            "4: tombstones: write one of: 'delete', 'ignore' or 'quarantine'; found 'drop'",
            id="enum",
        ),
        pytest.param(
            "mode: upsrt", "4: mode: there is no 'upsrt'; write one of: upsert", id="mode"
        ),
        pytest.param(
            "format: jsn", "4: format: there is no 'jsn'; write one of: json", id="short format"
        ),
        pytest.param(
            "format:\n  type: jsn", "5: format.type: there is no 'jsn'", id="format with options"
        ),
        pytest.param(
            "description: 2013",
            "4: description: must be text; put it in quotes; found 2013",
            id="text",
        ),
        pytest.param("description:", "4: description: has no value; write one, or", id="no value"),
        pytest.param(
            'sensor_seconds: "5"',
            "4: sensor_seconds: write a whole number of seconds, at least 5, such as 60; found '5'",
            id="quoted number",
        ),
        pytest.param(
            "sensor_seconds: 1",
            "4: sensor_seconds: write a whole number of seconds, at least 5",
            id="low",
        ),
        pytest.param(
            "freshness_minutes: yes",
            "4: freshness_minutes: write a whole number of minutes from 1 to 525600, such as",
            id="yes is text",
        ),
        pytest.param(
            "quarantine_rate: {fail_above: 3}",
            "4: quarantine_rate.fail_above: write a number from 0 to 1, such as 0.1; found 3",
            id="share",
        ),
        pytest.param(
            "follow: {every_second: 5}",
            "4: follow.every_second: unknown key; did you mean `every_seconds`?",
            id="part",
        ),
        pytest.param(
            "follow:\n  min_records: 0",
            "5: follow.min_records: write a whole number above 0, such as 100; found 0",
            id="part in lines",
        ),
        *(
            pytest.param(
                f"rewind_window_days: {days}",
                "4: rewind_window_days: write a whole number of days from 1 to 36500, such as 7; "
                f"found {days}",
                id=f"{days} days",
            )
            for days in (0.002, 0, -1, 99_999_999_999)
        ),
        pytest.param(
            "freshness_minutes: 99999999999999999",
            "4: freshness_minutes: write a whole number of minutes from 1 to 525600",
            id="more minutes than time has",
        ),
        pytest.param(
            "starting: {offsets: {orders: {a: 1}}}",
            "4: starting.offsets.orders.a: a partition is a whole number, at least 0",
            id="partition",
        ),
        pytest.param("quarantine_rate: 3", "4: quarantine_rate: must be a map", id="not a map"),
        pytest.param(
            "verify: 'yes'", "4: verify: write true or false; found 'yes'", id="text for a flag"
        ),
        pytest.param(
            "sequence_by: {a: 1}", "4: sequence_by: must be a list, such as [a, b]", id="not a list"
        ),
        pytest.param(
            "sequence_by: [att]",
            "4: sequence_by: 'att' is not a column of `schema`; did you mean `at`?",
            id="unknown column",
        ),
        pytest.param(
            "sequence_by: at\ntombstones: delete",
            "5: tombstones: a null value has no at",
            id="contradiction",
        ),
        pytest.param(
            "retention_warning: soon", "4: retention_warning: write a number and a unit", id="span"
        ),
        pytest.param("schedule: hourly", "4: schedule: write five fields as cron does", id="cron"),
        pytest.param("backfill_from: []", "4: backfill_from: write a date, such as", id="date"),
        pytest.param("owners: [bob]", "4: owners[0]: write an e-mail address", id="owner"),
        pytest.param("topics: [a]", "4: topics: declare either `topic` or `topics`", id="topics"),
        pytest.param(
            "topic: b", "4: topic: given twice, first in line 1; remove one", id="duplicate key"
        ),
        pytest.param("name: x", "4: name: the file's name is the stream's", id="name"),
        pytest.param("mode: !x upsert", "4: the tag !x is not allowed; write a plain", id="tag"),
        pytest.param("<<: {mode: upsert}", "4: a key must be plain text", id="merge"),
        pytest.param("? [a]\n: b", "4: a key must be plain text", id="list for a key"),
        pytest.param(
            "mode: a: b",
            "4: not YAML: a value has a `: ` in it; put the value in quotes",
            id="syntax",
        ),
        pytest.param("\tmode: x", "4: not YAML: a tab stands here; write spaces", id="tab"),
        pytest.param("mode: *there", "4: not YAML: found undefined alias", id="alias"),
        pytest.param("---\nmode: x", "4: not YAML: expected a single document", id="two documents"),
    ],
)
def test_a_mistake_has_a_line_a_field_and_a_remedy(folder: Path, text: str, says: str) -> None:
    """One mistake gives one line: file, line, field, what is wrong, what to write instead."""
    (said,) = problems(folder, f"{ORDERS}{text}\n")

    assert said.startswith(f"assets/streams/orders.yaml:{says}")


def test_every_mistake_of_a_file_is_reported_at_once(folder: Path) -> None:
    """Wrong fields, unknown keys and contradictions are listed together, in the file's order."""
    said = problems(
        folder, "descripton: x\nsensor_seconds: 1\nschema: id INT\nkeys: [idd]\ntombstones: no\n"
    )

    assert [line.split(": ")[0:2] for line in said] == [
        ["assets/streams/orders.yaml:1", "descripton"],
        ["assets/streams/orders.yaml:1", "topic"],
        ["assets/streams/orders.yaml:2", "sensor_seconds"],
        ["assets/streams/orders.yaml:4", "keys"],
        ["assets/streams/orders.yaml:5", "tombstones"],
    ]


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        pytest.param("mode: upsrt", "mode", id="misspelt mode"),
        pytest.param("modes: upsert", "modes", id="misspelt key"),
        pytest.param("xyz: 1", "xyz", id="unknown key"),
    ],
)
def test_a_wrong_mode_or_key_hides_no_other_mistake(folder: Path, mode: str, says: str) -> None:
    """Keys, order, conditions and expectations are checked as if it was right."""
    text = (
        "topic: orders\nschema: id BIGINT NOT NULL, at TIMESTAMP\nkeyz: [idd]\nsequence_by: [att]\n"
        "where: idx > 1\nexpectations:\n- {type: expect_column_values_to_be_unique, column: ix}\n"
    )

    said = problems(folder, f"{text}{mode}\n")

    assert [line.split(": ")[0:2] for line in said] == [
        ["assets/streams/orders.yaml:3", "keyz"],
        ["assets/streams/orders.yaml:3", "keyz"],
        ["assets/streams/orders.yaml:4", "sequence_by"],
        ["assets/streams/orders.yaml:5", "where"],
        ["assets/streams/orders.yaml:7", "expectations[0].column"],
        ["assets/streams/orders.yaml:8", says],
    ]
    as_keys = "keyz: as `keys`: 'idd' is not a column of `schema`; did you mean `id`?"
    assert said[0].endswith(as_keys)


def test_a_mode_like_no_other_hides_only_what_depends_on_it(folder: Path) -> None:
    """What is wrong by every mode is told, and no mode is presumed."""
    said = problems(folder, ORDERS.replace("[id]", "[idd]\nwhere: i > 1\nmode: merge"))

    assert [line.split(": ")[1] for line in said] == ["keys", "where", "mode"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param("topic: a\n  mode: upsert\n", 2, id="deeper than a value"),
        pytest.param(" topic: a\nmode: upsert\n", 2, id="less deep than the first"),
        pytest.param("follow:\n  min_records: 1\n every_seconds: 5\n", 3, id="between two"),
        pytest.param("keys:\n  - a\n - b\n", 3, id="list"),
        pytest.param("expectations:\n- type: x\n   column: y\n", 3, id="map in a list"),
    ],
)
def test_wrong_indentation_is_called_so(folder: Path, text: str, line: int) -> None:
    """A line in the wrong column is named, and no value is to be put in quotes."""
    begin = f"assets/streams/orders.yaml:{line}: not YAML: the indentation differs; begin the lines"

    assert problems(folder, text)[0].startswith(begin)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("description: a: b\n", "1: not YAML: a value has a `: ` in it", id="colon"),
        pytest.param(
            "schema: id INT,\nname STRING\nkeys: id\n", "2: not YAML: a line without", id="no key"
        ),
    ],
)
def test_a_slip_in_a_value_is_told_apart(folder: Path, text: str, says: str) -> None:
    """A colon in a value, and a value that goes on without indentation, have their own advice."""
    assert f"assets/streams/orders.yaml:{says}" in problems(folder, text)[0]


@pytest.mark.parametrize(
    ("text", "field", "example"),
    [
        pytest.param("schema: id INT\nkeys: id", "topic", "`topic: orders`", id="topic"),
        pytest.param("topic: a\nkeys: id", "schema", "`schema: id BIGINT NOT NULL", id="schema"),
        pytest.param("topic: a\nschema: n INT", "keys", "`keys: [n]`", id="keys"),
    ],
)
def test_a_missing_field_comes_with_an_example(
    folder: Path, text: str, field: str, example: str
) -> None:
    """What has no line of its own is said of line 1, with what to write."""
    (said,) = problems(folder, text)

    assert said.startswith(f"assets/streams/orders.yaml:1: {field}: missing; ")
    assert example in said


def test_a_misspelt_field_is_not_reported_as_missing_too(folder: Path) -> None:
    """One slip of the pen is one line."""
    assert len(problems(folder, "topik: orders\nscheme: id INT\nkeyz: [id]\n")) == 3


@pytest.mark.parametrize("text", ["", "# soon\n", "---\n"], ids=["nothing", "comment", "marker"])
def test_an_empty_file_says_what_to_write(folder: Path, text: str) -> None:
    """The three lines that a stream needs are given, ready to paste."""
    said = problems(folder, text)

    assert said[0] == "assets/streams/orders.yaml:1: the file is empty; write at least"
    (folder / "orders.yaml").write_text("\n".join(line.strip() for line in said[1:]))
    assert load_stream(folder / "orders.yaml").topic == "orders"


def test_a_list_is_no_declaration(folder: Path) -> None:
    """A file that holds no map says what a declaration looks like."""
    assert "a declaration is a map of keys to values" in problems(folder, "- topic: a")[0]


def test_anchors_are_fine(folder: Path) -> None:
    """A value may be written once and referred to again."""
    (folder / "orders.yaml").write_text(ORDERS.replace("[id]", "&k [id]") + "sequence_by: *k\n")

    assert load_stream(folder / "orders.yaml").sequence_by == ("id",)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: &a [*a]", id="an alias of itself"),
        pytest.param("- " * 5_000, id="nested without end"),
        pytest.param(
            "a0: &a0 [x, x, x, x]\n"
            + "".join(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]\n" for n in range(20)),
            id="aliases that unfold without end",
        ),
        pytest.param("max_offsets_per_trigger: 0x" + "f" * 10_000, id="a number of 12,000 digits"),
    ],
)
def test_a_bomb_is_refused(folder: Path, text: str) -> None:
    """A file that would unfold without end is refused in no time."""
    assert len(problems(folder, text)) == 1


def test_a_file_too_large_is_refused(folder: Path) -> None:
    """A declaration has a bound, so that a wrong file does not fill the memory."""
    assert "larger than 1,000,000 bytes" in problems(folder, "#" * 1_000_001)[0]


def test_text_in_another_encoding_is_refused_by_line(folder: Path) -> None:
    """The line that is not UTF-8 is named."""
    (folder / "orders.yaml").write_bytes(b"topic: a\ndescription: caf\xe9\n")

    with pytest.raises(InvalidSpecError, match=r"orders\.yaml:2: the text is not UTF-8"):
        load_stream(folder / "orders.yaml")


def test_a_link_out_of_the_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    """A link to elsewhere is not followed; a link within the folder is."""
    (tmp_path / "secret.yaml").write_text(ORDERS)
    (folder / "orders.yaml").symlink_to(tmp_path / "secret.yaml")
    (folder / "..data").mkdir()
    (folder / "..data" / "mounted.yaml").write_text(ORDERS)
    (folder / "mounted.yaml").symlink_to(folder / "..data" / "mounted.yaml")

    with pytest.raises(InvalidSpecError, match="link out of its folder"):
        load_stream(folder / "orders.yaml")
    assert load_stream(folder / "mounted.yaml").name == "mounted"


def test_what_is_no_readable_file_is_refused(folder: Path) -> None:
    """A folder, a pipe and a dangling link are named, and nothing waits for them."""
    (folder / "a.yaml").mkdir()
    os.mkfifo(folder / "b.yaml")
    (folder / "c.yaml").symlink_to(folder / "gone.yaml")

    said = [str(declared.error) for declared in load_streams(folder)]

    assert "this is not a file" in said[0]
    assert "this is not a file" in said[1]
    assert "cannot be read: No such file" in said[2]


@pytest.mark.parametrize(
    ("file", "name", "says"),
    [
        pytest.param("orders.yml", "orders", "rename it to orders.yaml", id="yml"),
        pytest.param("Orders.yaml", "orders", "to orders.yaml", id="upper case"),
        pytest.param("my-orders.yaml", "my_orders", "to my_orders.yaml", id="hyphen"),
        pytest.param("a__b.yaml", "a_b", "holds no `__`", id="two underscores"),
        pytest.param("7up.yaml", "stream_7up", "a letter in front", id="digit"),
        pytest.param("type.yaml", "stream_type", "Dagster, Python or Oncelake", id="reserved"),
    ],
)
def test_a_file_with_a_bad_name_is_listed_with_its_error(
    folder: Path, file: str, name: str, says: str
) -> None:
    """A file that cannot be a stream is not passed over: it has a name, and says how to mend it."""
    (folder / file).write_text(ORDERS)

    (declared,) = load_streams(folder)

    assert (declared.name, declared.spec) == (name, None)
    assert str(declared.error).startswith(f"assets/streams/{file}:1: ")
    assert says in str(declared.error)


def test_a_broken_file_takes_no_other_down(folder: Path) -> None:
    """The sound streams are there, and the broken one with its error, sorted by name."""
    for name, text in {"c": ORDERS, "a": ORDERS, "b": "topic: [", "A": ORDERS}.items():
        (folder / f"{name}.yaml").write_text(text)
    (folder / "README.md").write_text("not a stream")
    (folder / ".#c.yaml").symlink_to("an-editor-s-lock")

    found = load_streams(folder)

    assert [declared.name for declared in found] == ["a", "a_2", "b", "c"]
    assert [declared.spec is not None for declared in found] == [True, False, False, True]
    assert [declared.error is None for declared in found] == [True, False, False, True]


def test_two_streams_may_read_one_topic(folder: Path) -> None:
    """A topic may have several tables."""
    (folder / "a.yaml").write_text(ORDERS)
    (folder / "b.yaml").write_text(ORDERS)

    assert [declared.error for declared in load_streams(folder)] == [None, None]


def test_no_folder_is_no_streams(tmp_path: Path) -> None:
    """A project without declarations is not an error; a file in the folder's place is."""
    assert load_streams(tmp_path / "none") == ()

    (tmp_path / "file").touch()
    with pytest.raises(InvalidSpecError, match="correct ONCELAKE_STREAMS"):
        load_streams(tmp_path / "file")


def test_a_stream_is_found_though_others_are_broken(folder: Path) -> None:
    """One stream can be run whatever the other files hold."""
    (folder / "orders.yaml").write_text(ORDERS)
    (folder / "orders.yml").write_text("an old copy")
    (folder / "broken.yaml").write_text("[")

    assert find_stream(folder, "orders").name == "orders"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        pytest.param("ordres", "did you mean `orders`?", id="near"),
        pytest.param("zzz", "there are: flights, orders", id="far"),
        pytest.param("../orders", "no stream is called", id="path"),
    ],
)
def test_an_unknown_stream_names_the_nearest(folder: Path, name: str, says: str) -> None:
    """A misspelt name is answered with the right one."""
    (folder / "orders.yaml").write_text(ORDERS)
    (folder / "flights.yaml").write_text(ORDERS)

    with pytest.raises(InvalidSpecError) as raised:
        find_stream(folder, name)

    assert says in str(raised.value)


def test_a_project_without_streams_says_where_they_go(folder: Path) -> None:
    """The first declaration's place is named."""
    with pytest.raises(InvalidSpecError, match=r"declare it in assets/streams/<stream>\.yaml"):
        find_stream(folder, "orders")


@pytest.mark.parametrize(
    ("stream", "file", "field", "line"),
    [
        pytest.param("orders", "orders", ("where",), 4, id="field"),
        pytest.param("orders", "orders", ("select", "amount"), 6, id="part of a field"),
        pytest.param("orders_eu_paid", "orders", ("where",), 4, id="one of several topics"),
        pytest.param("orders", "orders", ("window",), 1, id="no such line"),
    ],
)
def test_what_spark_finds_has_file_and_line(
    folder: Path, stream: str, file: str, field: tuple[str, ...], line: int
) -> None:
    """A problem that only a run can find is said as if the file's reader had found it."""
    text = f"{ORDERS}where: nosuch(id)\nselect:\n  amount: id + 'x'\n"
    if stream != file:
        text = text.replace("topic: orders", "topics: [eu.paid]") + "table_per_topic: true\n"
    (folder / f"{file}.yaml").write_text(text)

    with pytest.raises(InvalidSpecError) as raised, locating_problems(folder):
        raise BadFieldError(stream, field, "Spark says no.")

    dotted = ".".join(field)
    assert str(raised.value) == f"assets/streams/{file}.yaml:{line}: {dotted}: Spark says no."


def test_without_its_file_a_problem_names_the_stream(folder: Path) -> None:
    """A declaration that was made in Python has no line; nothing is made up."""
    with (
        pytest.raises(BadFieldError, match=r"^orders: where: no$"),
        locating_problems(folder),
    ):
        raise BadFieldError("orders", ("where",), "no")


@given(st.text("ab:-[]{}&*!?|>'\"#%@,. \n\t<=1~", max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_text_is_read_or_refused_by_line(text: str) -> None:
    """No text makes the reader fail in another way than by saying where it is wrong."""
    with suppress(BadYamlError):
        read_tree(text)


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["id", "a b", ""])
)
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(
    field=st.sampled_from([field.alias or name for name, field in StreamSpec.model_fields.items()]),
    value=values,
)
@settings(deadline=None, max_examples=30)
def test_any_value_is_taken_or_refused_in_plain_words(
    tmp_path_factory: pytest.TempPathFactory, field: str, value: object
) -> None:
    """No value of any field escapes as another error, or in the words of a library."""
    path = tmp_path_factory.getbasetemp() / "orders.yaml"
    path.write_text(f"{ORDERS}{json.dumps(field)}: {json.dumps(value)}\n")

    try:
        load_stream(path)
    except InvalidSpecError as error:
        said = str(error)
        jargon = ("Input should", "valid tuple", "instance of", "pydantic", "Value error")
        assert not [word for word in jargon if word in said], said
