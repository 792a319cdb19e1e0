"""SQL text: how a name is quoted, and what is refused of a person's SQL before Spark sees it."""

from __future__ import annotations

import logging
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sqlglot import Dialect
    from sqlglot.expressions import Expr

# sqlglot's own log messages.
_CLASS: Final = re.compile(r" for <class .*")
# Functions whose answer changes from call to call, by sqlglot's names or their own.
_VOLATILE: Final = {
    *("rand", "randn", "random", "uuid", "randstr", "uniform", "shuffle"),
    *("now", "currenttimestamp", "currentdate", "localtimestamp", "currenttime"),
    *("current_timestamp", "current_date", "currentuser", "current_user", "session_user"),
    *("monotonically_increasing_id", "spark_partition_id", "input_file_name"),
    # They call any method of Java, which may also tell what the process alone should know.
    *("java_method", "reflect", "try_reflect"),
}
# Paths of JSON by the grammar of Spark's get_json_object, which answers null to any other.
_JSON_PATH: Final = re.compile(r"\$(\.[^.\[]+|\['[^']+'\]|\[(\d{1,18}|\*)\])*")
# Settings of a DuckDB that fetches nothing from the network, whatever it is asked.
OFFLINE: Final[Mapping[str, str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}


def quoted(name: str) -> str:
    """Quote a column's name for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def identifier(name: str) -> str:
    """Quote a name for DuckDB, and any other SQL by the standard."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Write a text as SQL."""
    return "'" + text.replace("'", "''") + "'"


def equal(columns: Iterable[str], one: str, other: str) -> str:
    """Tell rows of two tables, by their aliases, that have the same values, none of them null."""
    names = [identifier(column) for column in columns]
    return " AND ".join(f"{one}.{name} = {other}.{name}" for name in names)


def readable_sql(text: str) -> str:
    """Return SQL as it is; ``ValueError`` where it is none, reads another table, or is volatile.

    A batch that is written twice must give the same rows twice.
    """
    from sqlglot import errors, exp

    try:
        parsed = parse_sql(text)
    except errors.SqlglotError as error:
        reason = _CLASS.sub("", str(error).partition("\n")[0])
        raise ValueError(f"{text!r} is no SQL expression: {reason}") from error
    if parsed.find(exp.Query) is not None:
        raise ValueError(
            f"{text!r} asks another table, which may answer differently when the batch is written "
            "again; ask only for columns of the record"
        )
    if parsed.find(exp.Star) is not None:
        raise ValueError(f"{text!r} has a `*`, which stands for no columns here; name each")
    for found in parsed.find_all(exp.JSONExtractScalar):
        path = found.expression
        if path.is_string and not _JSON_PATH.fullmatch(path.name):
            raise ValueError(
                f"{text!r} has {path.name!r}, which is no path of get_json_object: it would always "
                "be null; write `$`, and then `.name`, `['name']`, `[0]` or `[*]`"
            )
    for node in parsed.walk():
        names = {type(node).__name__.lower(), node.name.lower() if node.key == "anonymous" else ""}
        if volatile := names & _VOLATILE:
            raise ValueError(
                f"{text!r} has {volatile.pop()}(), which answers differently each time: a batch "
                "that is written again must give the same rows; take a column of the record, "
                "such as _timestamp"
            )
    return text


def parse_sql(text: str) -> Expr:
    """Parse SQL of Spark; raise an error of sqlglot where it is none."""
    from sqlglot import parse_one

    return parse_one(text, read=_spark_dialect())


@cache
def _spark_dialect() -> type[Dialect]:
    """Return Spark's dialect, where a path of JSON stays the text that Spark gets."""
    from sqlglot.dialects.spark import Spark

    # What it logs has neither file nor field, and whoever runs any command would read it.
    logging.getLogger("sqlglot").disabled = True

    class SparkAsWritten(Spark):
        """Spark's dialect without sqlglot's own grammar of paths, which is another."""

        def to_json_path(self, path: Expr | None) -> Expr | None:
            return path

    return SparkAsWritten


def columns_in(text: str) -> frozenset[str]:
    """Return the columns that an expression names, in lower case; of ``a.b`` the column is ``a``.

    ``ValueError`` where it is none; see ``readable_sql``.
    """
    return _columns_of(readable_sql(text))


def names_in(text: str | None) -> frozenset[str]:
    """Return every name that an expression has, of columns and fields, in lower case."""
    if text is None:
        return frozenset()
    from sqlglot import exp

    found = parse_sql(text).find_all(exp.Identifier)
    return frozenset(each.name.lower() for each in found)


def with_names(text: str, names: Mapping[str, str]) -> str:
    """Return an expression whose columns have other names, by those that they have in it."""
    if not names:
        return text
    from sqlglot import exp

    by_lower = {name.lower(): other for name, other in names.items()}
    parsed = parse_sql(text)
    for column in list(parsed.find_all(exp.Column)):
        first = column.parts[0]
        if other := by_lower.get(first.name.lower()):
            first.replace(exp.to_identifier(other, quoted=True))
    return parsed.sql(dialect="spark")


def asks_for(column: str, text: str | None) -> bool:
    """Tell whether an expression reads a column, and not a field of another that is named so."""
    return text is not None and column in _columns_of(text)


def _columns_of(text: str) -> frozenset[str]:
    from sqlglot import exp

    columns = parse_sql(text).find_all(exp.Column)
    return frozenset(each.parts[0].name.lower() for each in columns)


def refuse_absent_module(name: str) -> None:
    """Raise a ``ValueError`` if a function's module is not there, or no part of the project.

    Imports only its package. A library's function could do anything with what it is given, and no
    reader of a declaration would expect that.
    """
    module, package = name.rpartition(".")[0], name.partition(".")[0]
    try:
        is_there = _is_of_project(package) and find_spec(module) is not None
    except (ImportError, ValueError):
        is_there = False
    except Exception as error:
        # To find a module its package is imported, and that is a person's code.
        raise ValueError(
            f"the package of `{module}` cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not is_there:
        raise ValueError(
            f"the project has no module `{module}`; the function is named as "
            "package.module.function, its package must be importable where the run starts, and be "
            "no library: one that is installed beside Oncelake must require oncelake itself"
        )


def _is_of_project(package: str) -> bool:
    """Tell whether a package is neither Python's own nor that of a library."""
    found = None if package in sys.stdlib_module_names else find_spec(package)
    if found is None:
        return False
    places = [*filter(None, [found.origin]), *(found.submodule_search_locations or ())]
    libraries = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    if not any(Path(place).is_relative_to(folder) for place in places for folder in libraries):
        return True
    of_package = metadata.packages_distributions().get(package, ())
    needs = (each for name in of_package for each in metadata.requires(name) or ())
    return any(re.match(r"oncelake\b", each) for each in needs)
