"""Whose record it is, where several streams share a topic: read a second time, and decided so.

By another reader than the engine's, from the record alone: neither its place in a table nor a count
says anything of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from oncelake.ingestion.declaration.parts import FormatSpec
from oncelake.ingestion.declaration.routes import BY_SCHEMA, Route
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.verify.decode import Decode, Expected, reading
from oncelake.ingestion.verify.decode.coerce import (
    BROKEN,
    TruncateError,
    UnknownSchemaError,
)
from oncelake.ingestion.verify.read.record import Record

Owner = Literal["own", "tombstones_shared", "routed_elsewhere", "unrouted", "bad"]


class RouteReader:
    """Tells for each record of a topic whether it is one stream's own."""

    def __init__(self, route: Route, format_spec: FormatSpec, settings: Settings | None) -> None:
        self._route = route
        self._value_of: Callable[[Record], object] = self._in_value
        if route.header is not None:
            self._value_of = self._in_header
        # Only changes of rows may be of all tables, and by its schema each is of one.
        self._are_changes = format_spec.type == "debezium" and route.by != BY_SCHEMA
        if route.header is not None and not self._are_changes:
            return
        expected = Expected(
            columns=route.columns,
            options=format_spec.options,
            settings=settings,
            # No type is called so: nothing but its name is read.
            record=("\0",) if route.by == BY_SCHEMA else (),
        )
        self._read: Decode = reading(format_spec, expected)

    def owner_of(self, record: Record) -> Owner:
        """Say whose a record is: ``own``, or one that this stream is to count or put aside."""
        route = self._route
        try:
            found = self._value_of(record)
        except UnknownSchemaError:
            # It may be of any stream, and each has it in quarantine.
            return "own"
        except BROKEN:
            found = None
        for stream, routes in route.tables if found is not None else ():
            if found in routes:
                return "own" if stream == route.stream else "routed_elsewhere"
        if takers := self._takers(record, found):
            if route.stream not in takers:
                return "routed_elsewhere"
            return "own" if len(takers) == 1 else "tombstones_shared"
        first, _ = route.tables[0]
        if route.otherwise == "quarantine":
            return "bad" if route.stream == first else "routed_elsewhere"
        if route.otherwise == "ignore":
            return "unrouted"
        return "own" if route.otherwise == route.stream else "routed_elsewhere"

    def was_own(self, value: object) -> bool:
        """Tell whether a row was of this stream's table when it had a route."""
        route = self._route
        owners = (stream for stream, routes in route.tables if value in routes)
        return next(owners, route.otherwise) == route.stream

    def _takers(self, record: Record, found: object) -> tuple[str, ...]:
        """Return the streams of which a record of no table may be; none where that is one."""
        if record.value is None:
            return () if found is not None else self._route.tombstones
        # A route that is null, 0, false or empty may be none that the connector knows.
        if found or not self._are_changes:
            return ()
        try:
            decoded = self._read(record.value, record.key, record.headers or ())
        except TruncateError:
            return tuple(stream for stream, _ in self._route.tables)
        except BROKEN:
            return ()
        return self._route.deleting if decoded.is_delete else ()

    def _in_header(self, record: Record) -> str | None:
        """Return the last header of the name."""
        found = [raw for name, raw in record.headers or () if name == self._route.header]
        return found[-1].decode("utf-8") if found and found[-1] is not None else None

    def _in_value(self, record: Record) -> object:
        if record.value is None:
            return None
        decoded = self._read(record.value, record.key, record.headers or ())
        if self._route.by == BY_SCHEMA:
            return decoded.record
        (value,) = decoded.values
        for name in self._route.by.split(".")[1:]:
            value = value.get(name) if isinstance(value, dict) else None
        return value
