"""Which records are a stream's own, where several streams share a topic.

What must stay true: a record is routed before it is decoded by the columns of its stream, so that
the fields of another kind are never called bad. The route itself is read by the same decoder, with
the one column that has it. A record whose schema is not known may be of any stream, so each of them
puts it aside until it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from oncelake.ingestion.declaration.routes import BY_SCHEMA, Route, Treatment
from oncelake.ingestion.formats.arrays import last_of
from oncelake.ingestion.formats.decoder import Decode, Encoded

# What stands as the reason of a record that is not decoded.
ELSEWHERE: Final = "routed_elsewhere"
UNROUTED: Final = "unrouted"
UNKNOWN_SCHEMA: Final = "unknown_schema_id"
# What stands as the reason of a change that has no row, or none that is known.
TRUNCATE: Final = "truncate"
NOTHING_KNOWN: Final = "missing_key"
# No record type is called so: nothing is decoded but the name of its type.
_NO_TYPE: Final = ("\0",)
_NONE: Final = pa.scalar(None, pa.string())
_MADE_UP: Final = {pa.string(): ("",), pa.int64(): (0,), pa.bool_(): (False,)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Routing:
    """How records are routed; executors get it.

    Attributes:
        encoded: What is expected of a value for its route alone.
    """

    route: Route
    encoded: Encoded


def plan_routing(route: Route, encoded: Encoded, column: StructType) -> Routing:
    """Plan how the records of a stream are routed that are decoded as ``encoded`` says.

    Args:
        column: The type of ``route.columns``.
    """
    of_route = Encoded(
        schema=column,
        is_key=False,
        options=encoded.options,
        extra_fields="ignore",
        unavailable="null" if encoded.unavailable else None,
        record=_NO_TYPE if route.by == BY_SCHEMA else (),
        in_glue=encoded.in_glue,
        writer_schemas=encoded.writer_schemas,
    )
    return Routing(route=route, encoded=of_route)


class RoutedDecoder:
    """Decodes the stream's own records; all others get a reason why they are not.

    A change without a route may be of every table: a truncate is each stream's own, a delete that
    of each which deletes, unless its route is no table's. A change of another route says that its
    row is not in this stream's table, where it may have been: it is a delete of it.
    """

    def __init__(
        self,
        routing: Routing,
        read: Decode,
        decode: Decode,
        decode_elsewhere: Decode | None = None,
        *,
        takes_headers: bool,
    ) -> None:
        """Take the decodings of a stream.

        Args:
            routing: Its own.
            read: Decodes values as ``Routing.encoded`` says.
            decode: Decodes them by the columns of the stream.
            decode_elsewhere: Decodes changes whose row is elsewhere, where that deletes it here.
            takes_headers: Whether all of them take the headers, too.
        """
        self._route, options = routing.route, routing.encoded.options
        self._are_changes = options.may_lack_columns and routing.route.by != BY_SCHEMA
        self._read, self._decode, self._decode_elsewhere = read, decode, decode_elsewhere
        self._takes_headers = takes_headers

    def __call__(self, values: pa.Array, *more: pa.Array) -> pa.StructArray:
        """Decode a batch; the last argument is always the headers."""
        route, inner = self._route, more if self._takes_headers else more[:-1]
        found, wrong, says_delete = _routes(route, self._read, values, inner, more[-1])
        is_own, is_others = _are_in(found, route.own), _are_in(found, route.others)
        is_none, is_null = pc.invert(pc.or_(is_own, is_others)), pc.is_null(values)
        # A null value may have a header, and with it a route that is none of a table's.
        is_bare = pc.and_(is_null, pc.is_null(found))
        of_unrouted = pc.if_else(_lacks_schema(wrong, values), _NONE, _reason(route.of_unrouted))
        of_none = pc.if_else(is_bare, _reason(route.of_tombstones), of_unrouted)
        reasons = pc.if_else(is_none, of_none, pc.if_else(is_others, ELSEWHERE, _NONE))
        is_shared = pc.and_(is_bare, route.of_tombstones == "share")
        is_untold = pc.and_(is_none, pc.invert(_is_told(found)))
        may_be_of_all = pc.and_(pc.and_(is_untold, pc.invert(is_null)), self._are_changes)
        is_decoded = pc.or_(pc.is_null(reasons), may_be_of_all)
        decoded = self._decode(pc.if_else(is_decoded, values, None), *inner)
        if may_be_of_all.true_count:
            reasons, is_of_all = _of_all_tables(decoded, may_be_of_all, reasons, route)
            is_shared = pc.or_(is_shared, is_of_all)
            decoded = pc.if_else(pc.is_null(reasons), decoded, pa.nulls(len(values), decoded.type))
        left = dict[str, pa.Array]()
        if self._decode_elsewhere is not None:
            is_left = pc.and_(pc.invert(is_null), pc.is_in(reasons, _left_reasons(route)))
            elsewhere = self._decode_elsewhere(pc.if_else(is_left, values, None), *inner)
            is_left = pc.and_(is_left, pc.is_valid(elsewhere.field("row")))
            decoded = pc.if_else(is_left, elsewhere, decoded)
            left = {"left_to": pc.if_else(is_left, reasons, _NONE), "is_gone": says_delete}
            reasons = pc.if_else(is_left, _NONE, reasons)
        added = {"reason": reasons, "detail": _details(found, wrong, reasons)}
        return _with(decoded, added, is_shared=is_shared, left=left)


def _of_all_tables(
    decoded: pa.StructArray, among: pa.BooleanArray, reasons: pa.Array, route: Route
) -> tuple[pa.Array, pa.BooleanArray]:
    """Return the reasons where changes without a route may be of every table, and which those are.

    A delete of which nothing is known is one, too.
    """
    wrong = decoded.field("reason")
    is_truncate = pc.and_(among, pc.fill_null(pc.equal(wrong, TRUNCATE), False))
    says_delete = pc.fill_null(decoded.field("is_delete"), False)
    is_delete = pc.or_(says_delete, pc.fill_null(pc.equal(wrong, NOTHING_KNOWN), False))
    is_delete = pc.and_(among, is_delete)
    reasons = pc.if_else(is_delete, _reason(route.of_deletes), reasons)
    is_shared = pc.and_(is_delete, route.of_deletes == "share")
    return pc.if_else(is_truncate, _NONE, reasons), pc.or_(is_truncate, is_shared)


def _left_reasons(route: Route) -> pa.Array:
    """Return the reasons by which the row of a record is in no table, or in another one."""
    is_nowhere = route.of_unrouted == "ignore"
    return pa.array([ELSEWHERE, *([UNROUTED] if is_nowhere else [])])


def _reason(treatment: Treatment) -> pa.StringScalar:
    """Return the reason that keeps a record from being decoded; null of one that is."""
    if treatment in {"take", "share"}:
        return _NONE
    return pa.scalar(ELSEWHERE if treatment == "elsewhere" else UNROUTED)


def _routes(
    route: Route, read: Decode, values: pa.Array, inner: tuple[pa.Array, ...], headers: pa.Array
) -> tuple[pa.Array, pa.Array | None, pa.Array | None]:
    """Return the route of each record, null without one, what is wrong, and whether it deletes."""
    if route.header is not None:
        return _in_header(headers, route.header), None, None
    decoded = read(values, *inner)
    wrong = pc.binary_join_element_wise(decoded.field("reason"), decoded.field("detail"), ": ")
    if route.by == BY_SCHEMA:
        return decoded.field("record"), wrong, None
    found = decoded.field("row")
    for name in route.by.split("."):
        found = pc.struct_field(found, name)
    return found, wrong, decoded.field("is_delete")


def _lacks_schema(wrong: pa.Array | None, values: pa.Array) -> pa.BooleanArray:
    """Tell the records whose route is not known because their schema is not."""
    if wrong is None:
        return pa.repeat(False, len(values))
    return pc.fill_null(pc.starts_with(wrong, UNKNOWN_SCHEMA), False)


def _in_header(headers: pa.Array, name: str) -> pa.Array:
    """Return the last header of a name as text; null where there is none, or it is no text."""
    raws = headers.flatten().field("value").take(last_of(headers, [name]))
    return pa.array(map(_text, raws.to_pylist()), pa.string(), size=len(raws))


def _text(raw: bytes | None) -> str | None:
    try:
        return None if raw is None else raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _is_told(found: pa.Array) -> pa.BooleanArray:
    """Tell the routes that a row has; 0, false and empty texts are what connectors make up."""
    return pc.and_(pc.is_valid(found), pc.invert(_are_in(found, _MADE_UP[found.type])))


def _are_in(found: pa.Array, routes: tuple[Any, ...]) -> pa.BooleanArray:
    return pc.is_in(found, pa.array(routes, found.type))


def _details(found: pa.Array, wrong: pa.Array | None, reasons: pa.Array) -> pa.Array:
    """Say of a record of no route what stands in its place."""
    shown = pc.if_else(pc.is_valid(found), pc.cast(found, pa.string()), "no value")
    shown = shown if wrong is None else pc.coalesce(wrong, shown)
    return pc.if_else(pc.equal(reasons, UNROUTED), shown, _NONE)


def _with(
    decoded: pa.StructArray,
    reasons: dict[str, pa.Array],
    *,
    is_shared: pa.BooleanArray,
    left: Mapping[str, pa.Array],
) -> pa.StructArray:
    """Give records a reason that are not decoded, and say which ones siblings share or have."""
    is_decoded = pc.is_null(reasons["reason"])
    parts = dict(zip((field.name for field in decoded.type), decoded.flatten(), strict=True))
    parts |= {name: pc.if_else(is_decoded, parts[name], each) for name, each in reasons.items()}
    if "is_shared" in parts:
        parts["is_shared"] = pc.and_(is_shared, is_decoded)
    parts |= left
    return pa.StructArray.from_arrays([*parts.values()], fields=list(decoded.type))
