"""Which columns the Kafka key of a topic names, asked of the decoder that reads a tombstone's."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from oncelake.ingestion.declaration.ddl import DeclaredColumn
from oncelake.ingestion.declaration.formats import FORMATS
from oncelake.ingestion.declaration.parts import KeyFormatSpec
from oncelake.ingestion.declaration.types import SqlType
from oncelake.ingestion.formats.decoder import BadBytesError
from oncelake.ingestion.formats.registry.columns import key_names
from oncelake.ingestion.operations.init.decode_sample import decode_keys
from oncelake.ingestion.operations.init.detect_format import (
    FORMATS_OF_SCHEMAS,
    objects_in,
    writer_schemas,
)
from oncelake.ingestion.operations.init.evidence import TopicEvidence
from oncelake.ingestion.operations.init.identify import can_be_key, find_key_by_name, is_rarely_null
from oncelake.ingestion.operations.init.sample import TopicSample
from oncelake.ingestion.settings import Settings

_JSON: Final = KeyFormatSpec()
# What Java's serializers write.
_NUMBERS: Final = tuple(KeyFormatSpec(type=each) for each in ("int", "long", "short"))
# Digits are declared as text before a key has as many bytes as Java's numbers.
_DIGITS: Final = KeyFormatSpec.model_validate({"type": "json", "numbers": "text"})
_WHOLE: Final = FORMATS["short"].fills
_CONNECT: Final = KeyFormatSpec.model_validate({"type": "json", "schemas": True})


@dataclass(frozen=True, kw_only=True, slots=True)
class Keys:
    """The columns that identify a row.

    Attributes:
        columns: The columns; empty where none does.
        format: How the Kafka key is encoded; ``None`` if it does not give them.
        why: What speaks for them.
    """

    columns: tuple[str, ...]
    format: KeyFormatSpec | None
    why: str

    @property
    def declared_format(self) -> Any:
        """The declaration of the Kafka keys; ``None`` where none is needed."""
        if self.format in (None, _JSON):
            return None
        said = self.format.model_dump()
        return said if len(said) > 1 else self.format.type


def find_keys(stream: str, evidence: TopicEvidence) -> Keys:
    """Find the columns: those that the Kafka key gives, else one that is named like a key."""
    format_, names = names_in_keys(evidence.sample, evidence.settings)
    if names and _gives(names, format_, evidence):
        why = f"the Kafka key of every record sampled gives {', '.join(names)}"
        return Keys(columns=names, format=format_, why=why)
    # Columns that are named like a key come before others.
    likely = sorted(evidence.types, key=lambda name: not name.lower().endswith(("id", "key")))
    bare = () if names or evidence.is_debezium else likely
    pairs = [(name, each) for name in bare for each in _bare(format_, evidence.types[name])]
    for name, each in pairs:
        if _gives((name,), each, evidence):
            why = f"the Kafka key of every record sampled is its {name}"
            return Keys(columns=(name,), format=each, why=why)
    found = find_key_by_name(stream, evidence.types, evidence.rows)
    if found is None:
        why = "neither the Kafka key nor a column that is named like a key identifies a row"
        return Keys(columns=(), format=None, why=why)
    why = f"{found} is named like a key; the Kafka key does not give it"
    return Keys(columns=(found,), format=None, why=why)


def _bare(format_: KeyFormatSpec, type_: SqlType) -> tuple[KeyFormatSpec, ...]:
    """Return the formats that bare keys may have, given what they are without names."""
    is_digits = format_ == _JSON and type_.word in _WHOLE
    return (_DIGITS if is_digits else format_, *_NUMBERS)


def names_in_keys(sample: TopicSample, settings: Settings) -> tuple[KeyFormatSpec, tuple[str, ...]]:
    """Return the format of the Kafka keys, and the names in all of them; none in bare values."""
    raws = [record.key for record in sample.records]
    schemas = list(writer_schemas(raws, settings).values())
    type_ = FORMATS_OF_SCHEMAS[schemas[0].type] if schemas else "json"
    format_ = KeyFormatSpec(type=type_)
    if type_ in ("avro", "protobuf"):
        with suppress(BadBytesError):
            return format_, key_names(schemas[0])
    objects: list[Any] = list(objects_in(raws, type_))
    if len(objects) < len(raws):
        return format_, ()
    if format_ == _JSON and all(key.keys() == {"schema", "payload"} for key in objects):
        format_, objects = _CONNECT, [key["payload"] for key in objects]
    if not all(type(key) is dict for key in objects):
        return format_, ()
    return format_, tuple(name for name in objects[0] if all(name in key for key in objects))


def _gives(names: tuple[str, ...], format_: KeyFormatSpec, evidence: TopicEvidence) -> bool:
    """Tell whether the Kafka key of each record gives these columns, as its value has them."""
    types, fills = evidence.types, FORMATS[format_.type].fills
    if not all(name in types and can_be_key(types[name]) for name in names):
        return False
    if fills and not all(types[name].word in fills for name in names):
        return False
    if not all(is_rarely_null(name, evidence.rows) for name in names):
        return False
    if evidence.is_debezium:
        # There a null value is not read by its key: the connector's word is enough.
        return True
    columns = [DeclaredColumn(name=n, type=types[n], nullable=True, comment="") for n in names]
    keys = decode_keys(evidence.sample, columns, format_, evidence.settings)
    rows = ((of.row[n] for n in names) if of.row else (None,) for of in evidence.records)
    pairs = zip(map(tuple, rows), keys, strict=True)
    return None not in keys and all(row == key or None in row for row, key in pairs)
