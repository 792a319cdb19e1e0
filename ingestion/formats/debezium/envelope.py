"""Debezium's envelope, independent of its encoding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ingestion.declaration.formats import DebeziumOptions
from ingestion.formats.coerce import Convert, MisfitError
from ingestion.formats.decoder import BadBytesError, Decoded

_ROWS: Final = {"c": "after", "r": "after", "u": "after", "d": "before"}
CLOCKS: Final = {"ts_ms": 10**3, "ts_us": 10**6, "ts_ns": 10**9}
_POSITION: Final = ("lsn", "file", "pos")
_MISSING: Final = "__debezium_unavailable_value"
_MISSING_BYTES: Final = _MISSING.encode()
_MISSING_BASE64: Final = "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ=="


def row_of(envelope: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the side of an envelope that has its row, and the row.

    Raises:
        BadBytesError: it changes no row, or is not an envelope.
    """
    if not isinstance(envelope, dict) or "op" not in envelope:
        raise BadBytesError(
            "malformed_debezium", "no object with `op`; events that an SMT has unwrapped are `json`"
        )
    op = envelope["op"]
    if op == "t":
        raise BadBytesError("truncate", f"op t{_position(envelope)}")
    if op == "m":
        raise BadBytesError("not_a_change", "op m")
    side = _ROWS.get(op) if isinstance(op, str) else None
    if side is None:
        raise BadBytesError("malformed_debezium", f"op {op!s:.20} is unknown")
    row = envelope.get(side)
    if row is None and side == "before":
        return side, {}
    if not isinstance(row, dict):
        raise BadBytesError("malformed_debezium", f"op {op} without `{side}`")
    return side, row


def at_path(envelope: Mapping[str, Any], path: list[str]) -> Any:
    """Return the value at a path of an envelope, or ``None``."""
    found: Any = envelope
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _position(envelope: Mapping[str, Any]) -> str:
    """Write an event's position in the database's log, if the envelope has it."""
    told = {name: at_path(envelope, ["source", name]) for name in _POSITION}
    known = [f"{name} {value}" for name, value in told.items() if value is not None]
    return f" at {', '.join(known)}" if known else ""


class RowPlan:
    """Converts the rows of one side of an envelope to the declared columns.

    For a deleted row the connector makes up the columns that are not in its key: there a value of
    the row that does not fit becomes null.
    """

    def __init__(
        self, converts: Mapping[str, Convert | None], paths: Mapping[str, list[str]], side: str
    ) -> None:
        """Take each column's conversion, if it has one, and its path if it is not of the row."""
        self._converts, self._paths = converts, paths
        self._is_delete = side == "before"

    def decoded(
        self, row: Mapping[str, Any], envelope: Mapping[str, Any], extra: Iterable[str]
    ) -> Decoded:
        """Convert a row, in which there may be names that no column has.

        Raises:
            BadBytesError: the database did not send a value.
            MisfitError: a column cannot hold one.
        """
        values = [self._value(name, row, envelope) for name in self._converts]
        return Decoded(values, None if self._is_delete else list(extra), self._is_delete)

    def _value(self, name: str, row: Mapping[str, Any], envelope: Mapping[str, Any]) -> Any:
        path, convert = self._paths.get(name), self._converts[name]
        value = at_path(envelope, path) if path else row.get(name)
        if value is None or convert is None:
            return None
        if not path and is_missing(value):
            if self._is_delete:
                return None
            raise BadBytesError("unavailable_value", f"{name} has not changed, and is not here")
        try:
            return convert(value)
        except MisfitError as error:
            if self._is_delete and not path:
                return None
            raise error.within(name) from None


def paths_of(options: DebeziumOptions) -> dict[str, list[str]]:
    """Return the paths of columns that are not of the row but of the envelope around it."""
    return {name: path.split(".") for name, path in options.columns.items()}


def is_missing(value: Any) -> bool:
    """Tell whether a value is the placeholder for one that the database did not send."""
    if type(value) is list and len(value) == 1:
        return is_missing(value[0])
    return value in (_MISSING, _MISSING_BASE64, _MISSING_BYTES)
