"""The JSON Schema of a declaration, by which an editor completes keys and marks mistakes.

A stream's file names it in its first line:
``# yaml-language-server: $schema=../stream.schema.json``. It says what can be said of one field
at a time; ``oncelake validate`` says the rest.
"""

from __future__ import annotations

import json
from typing import Any

from ingestion.declaration.formats import FORMATS
from ingestion.declaration.modes import MODES
from ingestion.declaration.spec import StreamSpec

_LISTS_OR_ONE = ("topics", "keys", "sequence_by")


def json_schema() -> dict[str, Any]:
    """Return the schema of a stream's file."""
    schema = StreamSpec.model_json_schema(by_alias=True)
    _without_titles(schema)
    fields, parts = schema["properties"], schema["$defs"]
    # The file's name gives it.
    del fields["name"]
    schema["required"].remove("name")
    fields["mode"]["enum"] = list(MODES)
    parts["FormatSpec"]["properties"]["type"]["enum"] = list(FORMATS)
    for name in ("format", "key_format"):
        fields[name] = _with_short_form(fields[name], {"type": "string", "enum": list(FORMATS)})
        fields[name]["default"] = "json"
    words = parts["Starting"]["properties"]["at"]["enum"]
    fields["starting"] = _with_short_form(fields["starting"], {"type": "string", "enum": words})
    fields["starting"]["default"] = "earliest"
    for name in _LISTS_OR_ONE:
        fields[name] = _with_short_form(fields[name], fields[name]["items"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A stream of Oncelake",
        **schema,
        "description": "One Kafka topic (or several) into one Delta table.",
        "oneOf": [{"required": [name]} for name in ("topic", "topics", "topic_pattern")],
    }


def json_schema_text() -> str:
    """Return the schema as it is committed in ``assets/stream.schema.json``."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


def _with_short_form(field: dict[str, Any], short: dict[str, Any]) -> dict[str, Any]:
    """Let a field be written in one word as well as in full."""
    outer = {name: part for name, part in field.items() if name in {"description", "default"}}
    full = {name: part for name, part in field.items() if name not in outer}
    return {**outer, "anyOf": [short, full]}


def _without_titles(schema: dict[str, Any]) -> None:
    """Drop what pydantic derives from the names of the classes and fields."""
    for part in (schema, *schema["$defs"].values()):
        part.pop("title", None)
        for field in part.get("properties", {}).values():
            field.pop("title", None)
