"""The remedies for records in quarantine, by their reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_SENDER: Final = "nothing in the declaration can help: correct the producer, and let it send again"
_SERIALIZER: Final = (
    "let the producer use a serializer of the registry, or declare another `format`"
)
_KEYS: Final = (
    "declare the `key_format` that the topic's keys have: where the detail names one, that one; of "
    "objects of `schema` and `payload` `{type: json, schemas: true}`"
)
_FOUND: Final = "declare the column as the type that the detail names behind `found`"

REMEDIES: Final[Mapping[str, str]] = {
    "bad_header": "declare the column as a type that holds the header's text, such as STRING, the "
    "`header_format` where a Java serializer wrote it, or correct the producer",
    "bad_key": f"{_KEYS}, and in `from_key` the columns that they give",
    "missing_key": "name columns in `keys` that every record has, take what only the Kafka key "
    "has by `from_key` (docs/transform.md, Columns of headers and of the Kafka key), or correct "
    "the producer; for objects of `schema` and `payload`, see docs/json.md, Kafka Connect",
    "key_too_long": "identify rows by a digest: `key STRING NOT NULL` in `schema`, `select: {key: "
    "sha2(NAME, 256)}`, `keys: [key]`, and the long one in `value_schema`; or declare another "
    "`sink`; then oncelake rebuild",
    "missing_order": "name columns in `sequence_by` that every record has, such as _timestamp",
    "missing_required": "remove NOT NULL from the column in `schema`, or correct the producer",
    "tombstone_without_key": f"{_KEYS}, or write `tombstones: ignore`",
    "tombstone_without_order": "decide what null values mean: `tombstones: ignore`, or an order "
    "that they have, too, such as `sequence_by: [_timestamp]` (docs/streams.md, Deletes)",
    "tombstone_quarantined": "apply it manually, or write `tombstones: ignore`",
    "unexpected_tombstone": "write `tombstones: ignore`, or a mode that deletes, such as upsert",
    "moved_key": "let the source send the old row in full (REPLICA IDENTITY FULL), or name columns "
    "in `keys` that `before` has",
    "unexpected_delete": "declare a mode that deletes, such as upsert, or leave such records out "
    "by `where`",
    "unrouted": "declare a table of its kind beside the others, which reads it from the topic, "
    "or `otherwise: ignore` where nobody needs it; once that table has it, oncelake redrive with "
    "--reason unrouted lets it go",
    "violates_constraint": "correct the producer, or drop the constraint that the detail names, "
    "and redrive",
    "nothing_to_keep": "let the source send the row in full, by a snapshot, and redrive",
    "undecodable": "please report its detail: this should not happen",
    "invalid_utf8": "declare `format: raw`, let the producer send UTF-8, or correct `select`",
    "empty_value": f"{_SENDER}; a delete is a null value, not an empty one",
    "malformed_json": f"declare the `format` that the topic has, or, where it is JSON, {_SENDER}; "
    "a byte order mark is no part of JSON",
    "trailing_data": "let the producer send one document a record",
    "duplicate_name": _SENDER,
    "lone_surrogate": _SENDER,
    "not_an_object": "let the producer send objects, or declare `format: raw` with one column",
    "wrong_type": "for a number in quotes, or a number where a text is declared, write `types: "
    f"{{column: lenient}}`, which keeps the column's type; else {_FOUND}, or correct the producer",
    "out_of_range": _FOUND,
    "inexact_number": f"{_FOUND}; of a VARIANT, correct the producer",
    "not_finite": "declare the column as STRING, with `types: {column: lenient}` where it is no "
    "text, or correct the producer",
    "bad_time": "declare STRING or BIGINT and convert it by `select`, or send ISO 8601; where the "
    "detail is _timestamp, sequence by a column of the value, and select none of Kafka's time",
    "bad_base64": "declare the column as STRING, or let the producer send base64",
    "too_long": "declare a longer VARCHAR, or STRING",
    "wrong_case": "declare the name as the records write it, in `schema` and wherever else the "
    "file has it (`keys`, …); or declare the records' names as `value_schema`, and give the column "
    "its own by `select` (docs/json.md, Names in another case)",
    "unknown_field": "declare the field in `schema`, or write `extra_fields: ignore`; with columns "
    "of a registry, `on_wider_type: evolve`, or the column's type in `columns`",
    "not_framed": f"{_SERIALIZER}; where the detail names a header, let it put the schema id in "
    "front of the payload: `headers.enabled` of Apicurio, `store.schema.version.id.in.header` of "
    "Cloudera (docs/formats.md, Ids in headers); JSON can be declared as `format: json`",
    "short_header": _SERIALIZER,
    "malformed_compression": _SENDER,
    "unknown_schema_id": "where the detail names a fingerprint, add that schema to `schemas`, and "
    "redrive; else point ONCELAKE_SCHEMA_REGISTRY to the registry that has this schema, or "
    "register it there, or what it refers to as the subject and version that the detail names, "
    "and redrive, of a routed topic each table; where the detail names an id of eight bytes, let "
    "the producer write four (docs/formats.md, Ids of eight bytes)",
    "wrong_schema_type": "declare the `format` of the schema that the detail names",
    "unusable_schema": "such a schema can only be replaced: let the producer write by another one, "
    "or declare `format: raw` with one BINARY column",
    "type_mismatch": f"{_FOUND}, or correct the producer; for a null in a STRUCT, remove NOT NULL "
    "there",
    "malformed_avro": _SENDER,
    "malformed_protobuf": _SENDER,
    "malformed_key": _KEYS,
    "ambiguous_key": "declare the `key_format` that the keys have, of the two in the detail",
    "malformed_csv": "declare the columns, delimiter and quotes that the lines have",
    "malformed_debezium": "declare the `format` that the topic has; `debezium` reads envelopes",
    "unavailable_value": "let the source send the column in every event (REPLICA IDENTITY FULL), "
    "or name others in `keys`, `sequence_by` and expressions",
    "truncate": "decide: in a topic of one partition declare `on_truncate: apply` in `format`, and "
    "oncelake redrive; else `where` with the position after it, and oncelake rebuild "
    "(docs/debezium.md, When the source is truncated); or leave its rows; to stop before the next "
    "one, declare `on_truncate: stop`",
    "not_a_change": "nothing is lost; leave such messages out by the connector's settings, or "
    "their topic by `topics` or a narrower `topic_pattern`",
    "source_schema_change": "nothing is lost; leave the connector's topic of schema changes out by "
    "`topics` or a narrower `topic_pattern`; for a new column, declare it in `schema`",
}


def remedy_of(reason: str) -> str:
    """Return what to do about a reason; an engine of another version may have had others."""
    return REMEDIES.get(reason, "correct the declaration or the producer")
