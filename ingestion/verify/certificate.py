"""A certificate of a proven table: what anybody can check with the table, or a copy of it, alone.

One document of JSON: which batches and offsets were proven, and a digest of the rows in each of
256 buckets. A row is in the bucket of its key. Rows are compared by a text that says the same of
the same value in every format and engine; docs/certificate.md writes it down.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa

from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_columns
from oncelake.ingestion.declaration.sql import identifier, literal, quoted
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.verify.columns.events import database_in
from oncelake.ingestion.verify.columns.memory import tables_of
from oncelake.ingestion.verify.verdict import Verdict

FORMAT: Final = 1
_BUCKETS: Final = 256
_ROWS_AT_ONCE: Final = 100_000
_WHOLE: Final = frozenset({"TINYINT", "SMALLINT", "INT", "BIGINT", "BOOLEAN", "STRING", "VARCHAR"})
# The types that DuckDB knows by another name.
_TAKEN: Final[Mapping[str, str]] = {"TIMESTAMP": "TIMESTAMPTZ", "TIMESTAMP_NTZ": "TIMESTAMP"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A table beside a certificate.

    Attributes:
        table: What was compared, for people.
        rows: How many rows it has; ``expected`` how many were proven.
        buckets: The numbers of the buckets that differ.
        where: A condition of DuckDB that finds the rows of these buckets in either table.
    """

    table: str
    rows: int
    expected: int
    buckets: tuple[int, ...]
    where: str | None

    @property
    def holds(self) -> bool:
        """Tell whether the table has exactly the rows that were proven."""
        return not self.buckets


def write_certificate(
    file: Path,
    verdict: Verdict,
    columns: Sequence[DeclaredColumn],
    rows: Iterable[pa.RecordBatch],
    scratch: Path,
    **more: Any,
) -> str:
    """Write what a proof that holds has proven; return the digest of the document.

    Args:
        file: Where to.
        verdict: Of the proof.
        columns: The columns of the table, without those that tell of records.
        rows: The rows that were proven.
        scratch: For what is larger than memory.
        more: What the document has, too: ``keys``, the columns that make the key, without which a
            row is its own; when it was ``proven_at``, in ISO 8601; and ``before``, the digest of
            the stream's last certificate.

    Raises:
        InvalidSpecError: a column is of a type that has no canonical text, or the file cannot be
            written.
    """
    buckets = digest_rows(rows, columns, more["keys"], scratch)
    document = {
        "format": FORMAT,
        "stream": verdict.stream,
        "table": verdict.table,
        "version": verdict.delta_version,
        "seq": verdict.seq,
        "epoch": verdict.epoch,
        "ranges": [[r.topic, r.partition, r.start, r.end] for r in verdict.proven],
        "records": verdict.records,
        "not_proven": list(verdict.limits),
        "columns": [f"{quoted(each.name)} {each.type}" for each in columns],
        "rows": sum(count for count, _ in buckets),
        "buckets": buckets,
        **more,
    }
    digest = _digest(document)
    try:
        file.write_text(_canonical({**document, "digest": digest}) + "\n")
    except OSError as error:
        raise InvalidSpecError(
            f"--certificate {file}: {error.strerror}. Next: name a file that can be written"
        ) from error
    return digest


def read_certificate(file: Path) -> Mapping[str, Any]:
    """Read a certificate.

    Raises:
        InvalidSpecError: it is none, was changed, or is of a newer version.
    """
    remedy = "Next: name a file that `oncelake verify --certificate` has written"
    try:
        document = json.loads(file.read_bytes())
        digest = document.pop("digest")
        if document["format"] != FORMAT:
            raise InvalidSpecError(
                f"--against {file}: it is of format {document['format']}, and this version knows "
                f"{FORMAT}. Next: use the version of Oncelake that has written it, or a newer one"
            )
    except OSError as error:
        raise InvalidSpecError(f"--against {file}: {error.strerror}. {remedy}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidSpecError(f"--against {file}: it is no certificate. {remedy}") from error
    if digest != _digest(document):
        raise InvalidSpecError(
            f"--against {file}: it is not as it was written, by its own digest. {remedy}"
        )
    return dict(document)


def compare(
    certificate: Mapping[str, Any], rows: Iterable[pa.RecordBatch], table: str, scratch: Path
) -> Comparison:
    """Compare a table with a certificate; ``scratch`` is for what is larger than memory.

    Raises:
        InvalidSpecError: the table lacks a column, or has it as another type.
    """
    columns = columns_of(certificate)
    found = digest_rows(rows, columns, certificate["keys"], scratch)
    both = enumerate(zip(found, certificate["buckets"], strict=True))
    differing = tuple(number for number, (is_, due) in both if [*is_] != due)
    bucket = _bucket(columns, certificate["keys"])
    numbers = ", ".join(map(str, differing))
    return Comparison(
        table=table,
        rows=sum(count for count, _ in found),
        expected=certificate["rows"],
        buckets=differing,
        where=f"{bucket} IN ({numbers})" if differing else None,
    )


def columns_of(certificate: Mapping[str, Any]) -> tuple[DeclaredColumn, ...]:
    """Return the columns that a certificate is about."""
    return parse_columns(", ".join(certificate["columns"]))


def digest_rows(
    rows: Iterable[pa.RecordBatch],
    columns: Sequence[DeclaredColumn],
    keys: Sequence[str],
    scratch: Path,
) -> list[tuple[int, str]]:
    """Return how many rows each bucket of a table has, and their digest.

    ``scratch`` holds what is larger than memory.

    Raises:
        InvalidSpecError: a column has no canonical text, is not there, or is of another type.
    """
    taken = ", ".join(
        f"CAST({identifier(c.name)} AS {_taken(c.type)}) AS {identifier(c.name)}" for c in columns
    )
    row = _text_of_row(columns)
    with database_in(scratch) as database:
        database.execute("CREATE TABLE digests (bucket INTEGER, digest VARCHAR)")
        for batch in tables_of(rows, _ROWS_AT_ONCE):
            database.register("batch", batch)
            try:
                database.execute(
                    f"INSERT INTO digests SELECT {_bucket(columns, keys)}, sha256({row}) "
                    f"FROM (SELECT {taken} FROM batch)"
                )
            except (duckdb.BinderException, duckdb.ConversionException) as error:
                reason = str(error).partition("\n")[0]
                raise InvalidSpecError(
                    f"the table does not have the columns of the certificate: {reason}. Next: name "
                    "a table that is a copy of the one that was proven"
                ) from error
        return database.execute(
            "SELECT count(digest), sha256(coalesce(string_agg(digest, '' ORDER BY digest), '')) "
            f"FROM range({_BUCKETS}) t(n) LEFT JOIN digests ON bucket = n GROUP BY n ORDER BY n"
        ).fetchall()


def digest_of(buckets: list[tuple[int, str]]) -> tuple[int, str]:
    """Return how many rows there are in buckets of ``digest_rows``, and one digest of them all."""
    return sum(count for count, _ in buckets), _digest({"buckets": buckets})


def _bucket(columns: Sequence[DeclaredColumn], keys: Sequence[str]) -> str:
    """Write the number of a row's bucket: the first byte of the SHA-256 of its key's text."""
    keyed = [each for each in columns if each.name in keys] or columns
    return f"('0x' || substr(sha256({_text_of_row(keyed)}), 1, 2))::INTEGER"


def _text_of_row(columns: Sequence[DeclaredColumn]) -> str:
    return " || ".join(_part(identifier(each.name), each.type) for each in columns)


def _part(value: str, type_: SqlType) -> str:
    """Write a value's canonical text behind its length in bytes; a null has none."""
    text = _text(value, type_)
    return f"coalesce(strlen({text}) || ':' || {text}, '-')"


def _text(value: str, type_: SqlType) -> str:
    """Write a value's canonical text, which is null where the value is."""
    if type_.word in _WHOLE or type_.word == "DECIMAL":
        return f"({value})::VARCHAR"
    if type_.word in ("FLOAT", "DOUBLE"):
        # The sign of a zero is none.
        return f"format('{{:.16e}}', ({value})::DOUBLE + 0.0)"
    if type_.word == "BINARY":
        return f"hex({value})"
    if type_.word == "DATE":
        return f"(({value}) - DATE '1970-01-01')::VARCHAR"
    if type_.word in ("TIMESTAMP", "TIMESTAMP_NTZ"):
        return f"epoch_us({value})::VARCHAR"
    if type_.word == "STRUCT":
        fields = (_part(f"({value})[{literal(n)}]", part) for n, part in type_.parts.items())
        return f"CASE WHEN ({value}) IS NOT NULL THEN {' || '.join(fields)} END"
    if type_.word == "ARRAY":
        item = _part("e", type_.parts["element"])
        return f"array_to_string(list_transform({value}, lambda e: {item}), '')"
    if type_.word == "MAP":
        key, item = _part("e.key", type_.parts["key"]), _part("e.value", type_.parts["value"])
        entries = f"list_transform(map_entries({value}), lambda e: {key} || {item})"
        return f"array_to_string(list_sort({entries}), '')"
    raise InvalidSpecError(
        f"a column of type {type_} has no canonical text. Next: certify a table without such "
        "columns"
    )


def _taken(type_: SqlType) -> str:
    """Return a type as DuckDB writes it, so that a wider one of a copy is no difference."""
    if type_.word == "DECIMAL":
        return f"DECIMAL({type_.precision}, {type_.scale})"
    if type_.word == "STRUCT":
        fields = (f"{identifier(n)} {_taken(part)}" for n, part in type_.parts.items())
        return f"STRUCT({', '.join(fields)})"
    if type_.word == "ARRAY":
        return f"{_taken(type_.parts['element'])}[]"
    if type_.word == "MAP":
        return f"MAP({_taken(type_.parts['key'])}, {_taken(type_.parts['value'])})"
    return _TAKEN.get(type_.word, type_.word)


def _canonical(document: Mapping[str, Any]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def _digest(document: Mapping[str, Any]) -> str:
    return hashlib.sha256(_canonical(document).encode()).hexdigest()
