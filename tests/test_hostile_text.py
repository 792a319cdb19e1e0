"""Text that others wrote stays text, wherever it ends: SQL, paths, terminals, YAML, Markdown."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pytest
import sqlglot
from deltalake import QueryBuilder
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from oncelake.assets.failures import as_markdown
from oncelake.ingestion.cli import output
from oncelake.ingestion.declaration.ddl import parse_columns
from oncelake.ingestion.declaration.files.yaml_reader import read_tree
from oncelake.ingestion.declaration.messages import printable
from oncelake.ingestion.declaration.names import name_problem, name_trouble
from oncelake.ingestion.declaration.sql import identifier, literal, quoted
from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.modes.engines.spark import translate
from oncelake.ingestion.operations.init.initialize import write_text
from oncelake.ingestion.operations.init.propose import Proposal
from oncelake.ingestion.operations.init.sample import TopicSample
from tests.corpus.hostile_texts import TEXTS
from tests.support.long import IS_LONG
from tests.support.world import settings_in

T = TypeVar("T", bound=Callable[..., Any])
COLUMNS = [text for text in TEXTS if text and not name_trouble(text)]
# Whatever Python calls a character, halves of one included.
texts = st.text(st.characters() | st.sampled_from("'\"`\\[](){}<>!:#&*|%@-\n\x1b\x9b\u202e"))
names = texts.filter(lambda name: bool(name) and not name_trouble(name))


def for_each(corpus: list[str] | tuple[str, ...]) -> Callable[[T], T]:
    """Try a property with every text of the corpus, and with some that nobody has thought of."""

    def decorate(test: T) -> T:
        for text in corpus:
            test = example(text)(test)
        return settings(max_examples=500 if IS_LONG else 50, deadline=None)(test)

    return decorate


def encodable(text: str) -> bool:
    """Tell whether UTF-8 has the text; what has not been decoded strictly goes nowhere."""
    return not any("\ud800" <= each <= "\udfff" for each in text)


@for_each([*filter(encodable, TEXTS)])
@given(texts.filter(encodable))
def test_a_text_in_sql_is_that_text_to_every_engine(text: str) -> None:
    """DuckDB and DataFusion evaluate a literal to the text; Spark parses it as the same."""
    query = f"SELECT {literal(text)} AS value"

    assert duckdb.sql(query).fetchall() == [(text,)]
    assert QueryBuilder().execute(query).read_all()["value"].to_pylist() == [text]
    (value,) = sqlglot.parse_one(translate(query), read="spark").find_all(sqlglot.exp.Literal)
    assert value.this == text


@for_each(COLUMNS)
@given(names)
def test_the_name_of_a_column_is_that_name_to_every_engine(name: str) -> None:
    """What a declaration takes as a name, quoted, names one column and is no SQL."""
    query = f"SELECT x.{identifier(name)} FROM (SELECT 1 AS {identifier(name)}) x"

    assert duckdb.sql(query).columns == [name]
    assert QueryBuilder().execute(query).read_all().column_names == [name]
    found = sqlglot.parse_one(translate(query), read="spark").find_all(sqlglot.exp.Column)
    assert [column.name for column in found] == [name]


@for_each(TEXTS)
@given(texts)
def test_what_init_writes_loads_as_what_was_meant(text: str) -> None:
    """Notes are comments of one line each; names, keys and values come back as they were."""
    proposal = Proposal()
    proposal.add("topic", "orders", text)
    name = "plain" if not text or name_trouble(text) else text
    proposal.add("schema", f"{quoted(name)} INT", text)
    proposal.add("types", {name: "lenient"}, text)
    proposal.add("keys", [name], f"{text}: {text}")
    proposal.note("sequence_by", text)

    sample = TopicSample(topic="orders", partitions=1, ranges=(), records=())
    content = read_tree(write_text(proposal, sample)).content

    assert content == {**proposal.fields, "schema": f"{proposal.fields['schema']}\n"}
    assert [column.name for column in parse_columns(content["schema"])] == [name]


@for_each(TEXTS)
@given(texts)
def test_a_terminal_gets_plain_characters_alone(text: str) -> None:
    """Neither a report, nor a table, nor a JSON document moves a cursor or turns the text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", written := io.StringIO())
        output.say(text)
        output.table(["column"], [[text]])
        output.json_line({text: text})

    assert written.getvalue().replace("\n", "").isprintable()
    assert json.loads(written.getvalue().splitlines()[-1]) == {text: text}
    assert printable(text).isprintable()


@for_each(TEXTS)
@given(texts)
def test_a_stream_lies_in_its_lake_or_has_no_such_name(text: str) -> None:
    """No name leads out of the lake, or out of the folder of state."""
    found = settings_in(Path("place"), "nowhere:1")
    if name_problem(text):
        with pytest.raises(InvalidSpecError):
            StreamPaths.of(text, found)
        return
    paths = StreamPaths.of(text, found)
    assert all(path.resolve().is_relative_to(Path("place").resolve()) for path in paths.written)


@for_each([*filter(encodable, TEXTS)])
@given(texts.filter(encodable))
def test_dagster_shows_a_text_and_no_markup(text: str) -> None:
    """Rendered as Markdown, it has no picture, no link and no tag."""
    tokens = MarkdownIt("commonmark").parse(f"- {as_markdown(text)}")

    inline = [child.type for token in tokens for child in token.children or ()]
    block = [token.type for token in tokens]
    assert not {"image", "link_open", "html_inline", "html_block"} & {*inline, *block}
