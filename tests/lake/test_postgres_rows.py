"""What a table of PostgreSQL asks of its rows decides whether a batch is written, by its end."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

from oncelake.ingestion.errors import RefusedError, TableBusyError
from oncelake.ingestion.sinks.postgres.table import PostgresTable
from oncelake.ingestion.tables.table import Change, TableDefinition
from tests.lake.test_postgres_table import (
    COLUMNS,
    KEYS,
    NOTE,
    change,
    commit,
    execute,
    last_seq,
    names_in,
    opened,
)

UNIQUE = "ADD CONSTRAINT one UNIQUE (name)"
FUNCTION = "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS "


@pytest.fixture
def schema(postgres_address: str, request: pytest.FixtureRequest) -> str:
    """The name of a schema of the test's own, which is not there yet."""
    name = re.sub(r"\W", "_", request.node.name.lower())[-40:].strip("_")
    execute(postgres_address, f"DROP SCHEMA IF EXISTS s_{name} CASCADE")
    return f"s_{name}"


@pytest.fixture
def table(postgres_address: str, schema: str) -> PostgresTable:
    """A table with the rows a, b and c."""
    table = opened(postgres_address, schema)
    table.create(TableDefinition(columns=COLUMNS, keys=KEYS))
    table.commit_note(NOTE)
    commit(table, 1, change(1, inserted={1: "a", 2: "b", 3: "c"}))
    return table


def execute_in(url: str, schema: str, statements: str) -> None:
    """Execute statements as somebody else does, in a schema."""
    execute(url, f"SET search_path = {schema}; {statements}".replace("%", "%%"))


EXCHANGES = {
    "a unique constraint": f"ALTER TABLE orders {UNIQUE}",
    "one that is deferrable": f"ALTER TABLE orders {UNIQUE} DEFERRABLE",
    "a unique index": "CREATE UNIQUE INDEX ON orders (name)",
    "one over an expression": "CREATE UNIQUE INDEX ON orders (lower(name))",
    "one over a part": "CREATE UNIQUE INDEX ON orders (name) WHERE id < 9",
    "one over more columns": "CREATE UNIQUE INDEX ON orders (name, _topic)",
    "an exclusion": "ALTER TABLE orders ADD CONSTRAINT one EXCLUDE (name WITH =)",
    "two of them": f"ALTER TABLE orders {UNIQUE}; CREATE UNIQUE INDEX ON orders (upper(name))",
    "a row that others refer to": f"""
        ALTER TABLE orders {UNIQUE}; CREATE TABLE lines (of bigint REFERENCES orders);
        INSERT INTO lines VALUES (1), (2)""",
    "columns of others": f"""
        ALTER TABLE orders {UNIQUE}, ADD made timestamptz NOT NULL DEFAULT now(),
            ADD number bigint GENERATED ALWAYS AS IDENTITY, ADD doc jsonb DEFAULT '{{}}',
            ADD upper text GENERATED ALWAYS AS (upper(name)) STORED""",
}


@pytest.mark.parametrize(
    ("what", "names"),
    [
        (change(2, updated={1: "b", 2: "a"}), {1: "b", 2: "a", 3: "c"}),
        (change(2, updated={1: "b", 2: "c", 3: "a"}), {1: "b", 2: "c", 3: "a"}),
        (change(2, updated={1: "b", 2: "d"}), {1: "b", 2: "d", 3: "c"}),
        (
            change(2, updated={1: "b", 2: "a"}, inserted={4: "c"}, deleted=[3]),
            {1: "b", 2: "a", 4: "c"},
        ),
    ],
    ids=["two", "a ring", "a chain", "with a delete and an insert"],
)
@pytest.mark.parametrize("asks", EXCHANGES)
def test_rows_may_exchange_what_is_unique(
    postgres_address: str,
    schema: str,
    table: PostgresTable,
    *,
    asks: str,
    what: Change,
    names: Mapping[int, str],
) -> None:
    """A batch whose end is right is written, whatever stands in its way in between."""
    execute_in(postgres_address, schema, EXCHANGES[asks])
    others = (
        f"SELECT id, to_jsonb(o) - '{{name,upper,_offset,_seq}}'::text[] FROM {schema}.orders o"
    )
    before = dict(execute(postgres_address, others))

    commit(table, 2, what)

    assert (names_in(table), last_seq(table)) == (names, 2)
    after = dict(execute(postgres_address, others))
    assert {id: row for id, row in after.items() if id != 4} == {
        id: row for id, row in before.items() if id in after
    }
    if asks == "columns of others":
        uppers = execute(postgres_address, f"SELECT id, upper FROM {schema}.orders")
        assert dict(uppers) == {id: name.upper() for id, name in names.items()}
        assert len({row["number"] for row in after.values()}) == 3
        docs = [row for batch in table.scan(["doc", "made"]) for row in batch.to_pylist()]
        assert [row["doc"] for row in docs] == ["{}"] * len(names)
    if asks == "a row that others refer to":
        assert execute(postgres_address, f"SELECT of FROM {schema}.lines") == [(1,), (2,)]


CLASHES = {
    "a row that stays": (
        f"ALTER TABLE orders {UNIQUE}",
        change(2, updated={1: "b"}, inserted={4: "d"}),
        r"row of t-0 offset 0: .* \"one\" \(name\), as the row of t-0 offset 1 has it",
    ),
    "two of the batch": (
        "CREATE UNIQUE INDEX one ON orders (name)",
        change(2, inserted={4: "d", 5: "e", 6: "d", 7: "f"}),
        r"row of t-0 offset 2: .* \"one\" \(name\), as the row of t-0 offset 0 has it",
    ),
    "checked at the end": (
        f"ALTER TABLE orders {UNIQUE} DEFERRABLE INITIALLY DEFERRED",
        change(2, inserted={4: "d", 5: "a"}),
        r"row of t-0 offset 1: .* \"one\" \(name\), as the row of t-0 offset 0 has it",
    ),
    "somebody else's row": (
        f"ALTER TABLE orders {UNIQUE}; INSERT INTO orders (id, name) VALUES (9, 'z')",
        change(2, inserted={4: "d", 5: "z"}),
        r"row of t-0 offset 1: .* \"one\" \(name\), as the row of somebody else has it",
    ),
    "an expression": (
        "CREATE UNIQUE INDEX one ON orders (lower(name))",
        change(2, updated={2: "A"}),
        r"row of t-0 offset 0: .* \"one\"\. Nothing",
    ),
    "an exclusion": (
        "ALTER TABLE orders ADD CONSTRAINT one EXCLUDE (name WITH =)",
        change(2, inserted={4: "d", 5: "a"}),
        r"row of t-0 offset 1: .* \"one\"\. Nothing",
    ),
    "no null twice": (
        f"ALTER TABLE orders {UNIQUE.replace('UNIQUE', 'UNIQUE NULLS NOT DISTINCT')}",
        change(2, inserted={4: "d", 5: None, 6: None}),
        r"row of t-0 offset 2: .* \"one\" \(name\), as the row of ",
    ),
}


@pytest.mark.parametrize("case", CLASHES)
def test_rows_that_clash_in_the_end_are_refused_by_their_records(
    postgres_address: str, schema: str, table: PostgresTable, case: str
) -> None:
    """Constraint, columns and both records are named, no value; without the constraint it goes."""
    statement, what, says = CLASHES[case]
    execute_in(postgres_address, schema, statement)

    with pytest.raises(RefusedError, match=says) as refused:
        commit(table, 2, what)

    assert "NOT (_topic = 't' AND _partition = 0 AND _offset = " in refused.value.remedy
    assert not re.search(r"'[abdz]'|=\([abdz]\)", str(refused.value))
    assert last_seq(table) == 1
    drop = "ALTER TABLE orders DROP CONSTRAINT IF EXISTS one; DROP INDEX IF EXISTS one"
    execute_in(postgres_address, schema, drop)
    commit(table, 2, what)


# What refuses the record at offset 2, and in which words; what makes it take that.
REFUSALS = {
    "a check": (
        "ALTER TABLE orders ADD CONSTRAINT short CHECK (name <> 'bad')",
        'violates check constraint "short"',
        "ALTER TABLE orders DROP CONSTRAINT short",
    ),
    "a foreign key": (
        """CREATE TABLE names (name text PRIMARY KEY); INSERT INTO names VALUES ('a'), ('b'), ('c'),
        ('d'), ('e'), ('f'); ALTER TABLE orders ADD CONSTRAINT known FOREIGN KEY (name)
        REFERENCES names""",
        'violates foreign key constraint "known"',
        "INSERT INTO names VALUES ('bad')",
    ),
    "a foreign key that is checked at the end": (
        """CREATE TABLE names (name text PRIMARY KEY); INSERT INTO names VALUES ('a'), ('b'), ('c'),
        ('d'), ('e'), ('f'); ALTER TABLE orders ADD CONSTRAINT known FOREIGN KEY (name)
        REFERENCES names DEFERRABLE INITIALLY DEFERRED""",
        'violates foreign key constraint "known"',
        "INSERT INTO names VALUES ('bad')",
    ),
    "a trigger that raises": (
        f"""{FUNCTION} 'BEGIN IF NEW.name = ''bad'' THEN RAISE ''not so''; END IF; RETURN NEW; END';
        CREATE TRIGGER t BEFORE INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION f()""",
        "not so",
        "DROP TRIGGER t ON orders",
    ),
    "a trigger that keeps rows out": (
        f"""{FUNCTION} 'BEGIN IF NEW.name = ''bad'' THEN RETURN NULL; END IF; RETURN NEW; END';
        CREATE TRIGGER t BEFORE INSERT OR UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION f()""",
        "a trigger or a rule stands in the way",
        "DROP TRIGGER t ON orders",
    ),
    "a trigger at the end": (
        f"""{FUNCTION} 'BEGIN IF NEW.name = ''bad'' THEN RAISE ''not so''; END IF; RETURN NEW; END';
        CREATE CONSTRAINT TRIGGER t AFTER INSERT OR UPDATE ON orders DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION f()""",
        "not so",
        "DROP TRIGGER t ON orders",
    ),
    "what a generated column computes": (
        "ALTER TABLE orders ADD n int GENERATED ALWAYS AS (1 / (name <> 'bad')::int) STORED",
        "division by zero",
        "ALTER TABLE orders DROP n",
    ),
}


@pytest.mark.parametrize("is_there", [False, True], ids=["inserted", "updated"])
@pytest.mark.parametrize("case", REFUSALS)
def test_what_a_table_refuses_is_traced_to_its_record(
    postgres_address: str, schema: str, table: PostgresTable, *, case: str, is_there: bool
) -> None:
    """No second run helps, so it is refused, with the record; once the table takes it, it goes."""
    statement, says, mend = REFUSALS[case]
    execute_in(postgres_address, schema, statement)
    names: dict[int, str | None] = {1: "d", 2: "e", 3: "bad", 4: "f"} if is_there else {}
    names = names or {5: "d", 6: "e", 7: "bad", 8: "f"}
    what = change(2, updated=dict([*names.items()][:3]), inserted={4: "f"}) if is_there else None
    what = what or change(2, inserted=names)

    with pytest.raises(RefusedError, match=f"row of t-0 offset 2: .*{says}") as refused:
        commit(table, 2, what)

    assert refused.value.exit_code == 3
    assert (names_in(table), last_seq(table)) == ({1: "a", 2: "b", 3: "c"}, 1)
    execute_in(postgres_address, schema, mend)
    commit(table, 2, what)
    assert names_in(table) == {1: "a", 2: "b", 3: "c"} | names


def test_a_row_that_others_refer_to_is_not_deleted(
    postgres_address: str, schema: str, table: PostgresTable
) -> None:
    """The constraint is named, and the record that wrote the row; without what refers, it goes."""
    lines = "CREATE TABLE lines (of bigint CONSTRAINT held REFERENCES orders)"
    execute_in(postgres_address, schema, f"{lines}; INSERT INTO lines VALUES (2)")
    what = change(2, deleted=[1, 2, 3])

    with pytest.raises(RefusedError, match=r'keeps the row of t-0 offset 1, .*"held" on table'):
        commit(table, 2, what)

    execute_in(postgres_address, schema, "DELETE FROM lines")
    commit(table, 2, what)
    assert names_in(table) == {}


@pytest.mark.parametrize("follows", ["CASCADE", "SET NULL", "RESTRICT"])
def test_no_row_is_deleted_for_an_exchange_that_rows_of_others_follow(
    postgres_address: str, schema: str, table: PostgresTable, follows: str
) -> None:
    """The way on is a constraint that is checked at the end; the other table stays as it is."""
    lines = f"CREATE TABLE lines (of bigint REFERENCES orders ON DELETE {follows})"
    setup = f"ALTER TABLE orders {UNIQUE}; {lines}; INSERT INTO lines VALUES (1), (2)"
    execute_in(postgres_address, schema, setup)
    what = change(2, updated={1: "b", 2: "a"})

    with pytest.raises(RefusedError, match=r'does not take the batch: .*"one".*DEFERRABLE'):
        commit(table, 2, what)

    again = f"ALTER TABLE orders DROP CONSTRAINT one, {UNIQUE} DEFERRABLE"
    execute_in(postgres_address, schema, again)
    commit(table, 2, what)
    assert names_in(table) == {1: "b", 2: "a", 3: "c"}
    assert execute(postgres_address, f"SELECT of FROM {schema}.lines") == [(1,), (2,)]


def test_a_row_that_refers_to_a_later_one_is_not_blamed(
    postgres_address: str, schema: str, table: PostgresTable
) -> None:
    """Rows of a batch may refer to each other; where one refers to none, no other is named."""
    setup = """ALTER TABLE orders ADD CONSTRAINT n UNIQUE (name), ADD above text GENERATED ALWAYS AS
        (nullif(chr(ascii(name) + 1), 'g')) STORED, ADD CONSTRAINT up FOREIGN KEY (above)
        REFERENCES orders (name) NOT VALID"""
    execute_in(postgres_address, schema, setup)

    with pytest.raises(RefusedError, match=r'does not take the batch: .*"up"'):
        commit(table, 2, change(2, inserted={4: "e", 5: "x"}))

    commit(table, 2, change(2, inserted={4: "e", 6: "f"}))
    assert last_seq(table) == 2


@pytest.mark.parametrize("what", ["DELETE", "UPDATE"])
def test_rows_that_are_gone_are_others_work(
    postgres_address: str, schema: str, table: PostgresTable, what: str
) -> None:
    """A row that somebody deleted is looked up again by the next run, which then helps."""
    execute(postgres_address, f"DELETE FROM {schema}.orders WHERE id = 2")
    part = change(2, deleted=[2]) if what == "DELETE" else change(2, updated={2: "x"})

    with pytest.raises(TableBusyError, match="others have changed the same rows"):
        commit(table, 2, part)
