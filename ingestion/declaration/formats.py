"""The formats of values and keys: one row a format, and what a person may write beside ``type``.

A format is a module with an ``opened`` function (see ``ingestion.formats.decoder``); it is named
here and imported when a run needs it, so that loading a declaration imports no Spark.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

EnvelopePath = Annotated[
    str, StringConstraints(pattern=r"^(op|ts_(ms|us|ns)|(source|transaction)\.\w+)$")
]


# What parsing a text raises that is no schema.
_NO_SCHEMA: Final = (ValueError, TypeError, LookupError, AttributeError, RecursionError)


OnTruncate = Literal["quarantine", "stop", "apply"]


class Options(BaseModel):
    """The options beside ``type``, of most formats none; frozen, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Whether a null value only follows a delete that said so itself.
    tombstones_repeat_deletes: ClassVar[bool] = False
    # Whether a record is a change of a row: it may leave out the value of a column that has not
    # changed, and tell the row before it; headers name the key of that row, if it is another.
    may_lack_columns: ClassVar[bool] = False

    @property
    def uses_registry(self) -> bool:
        """Whether records name their schema by its id in a registry."""
        return False

    @property
    def reads_key(self) -> bool:
        """Whether a value can be incomplete without its record's Kafka key."""
        return False

    @property
    def reads_headers(self) -> bool:
        """Whether headers say something of a value: that it is moved, or not framed."""
        return self.may_lack_columns or self.uses_registry

    @property
    def of_envelope(self) -> Collection[str]:
        """Columns that are not of the row, but of what is sent around it."""
        return ()

    @property
    def truncate_policy(self) -> OnTruncate:
        """The policy for a TRUNCATE of the source."""
        return "quarantine"


class RegistryOptions(Options):
    """Nothing may stand beside ``type``: the registry knows the rest."""

    @property
    def uses_registry(self) -> bool:
        """Whether records name their schema by its id in a registry."""
        return True


class AvroOptions(RegistryOptions):
    """How a record names its schema."""

    framing: Literal["confluent", "single_object"] = Field(
        "confluent", description="By an id of the registry, or by a fingerprint in front of it."
    )
    schemas: tuple[str, ...] = Field(
        (), description="Schemas of Avro by which records are written, for `single_object`."
    )

    @property
    def uses_registry(self) -> bool:
        """Whether records name their schema by its id in a registry."""
        return self.framing == "confluent"

    @field_validator("schemas", mode="before")
    @classmethod
    def _are_texts(cls, value: Any) -> Any:
        """Take schemas as JSON's texts, or as the file's own maps and lists."""
        if not isinstance(value, list | tuple):
            return value
        return tuple(each if isinstance(each, str) else json.dumps(each) for each in value)

    @field_validator("schemas")
    @classmethod
    def _can_be_told_apart(cls, texts: tuple[str, ...]) -> tuple[str, ...]:
        from fastavro.schema import SchemaParseException, to_parsing_canonical_form

        forms = []
        for text in texts:
            try:
                forms.append(to_parsing_canonical_form(json.loads(text)))
            except (*_NO_SCHEMA, SchemaParseException) as error:
                problem = f"no schema of Avro: {type(error).__name__}: {error}"
                raise ValueError(f"{text:.60} is {problem:.200}") from None
        for text, form in zip(texts, forms, strict=True):
            if forms.count(form) > 1:
                raise ValueError(f"{text:.60} has the fingerprint of another one; remove one")
        return texts

    @model_validator(mode="after")
    def _has_schemas_only_without_registry(self) -> AvroOptions:
        if self.uses_registry and self.schemas:
            raise ValueError("the registry has the `schemas`; remove them, or `single_object`")
        if not self.uses_registry and not self.schemas:
            raise ValueError("`single_object` needs the `schemas` by which records are written")
        return self


class JsonKeyOptions(Options):
    """How a Kafka key of JSON is written."""

    schemas: Annotated[bool, Field(strict=True)] = Field(
        False,
        description="Whether a key has its schema beside it (the converter's schemas.enable).",
    )
    numbers: Literal["text"] | None = Field(
        None,
        description="`text`: a bare number is text, also where it has as many bytes as Java's "
        "serializers write.",
    )

    @model_validator(mode="after")
    def _has_bare_numbers_only_without_schemas(self) -> JsonKeyOptions:
        if self.schemas and self.numbers:
            raise ValueError("with `schemas` no key is a bare number; remove `numbers`")
        return self


Unit = Literal["millis", "micros", "nanos"]


class DebeziumOptions(Options):
    """How a connector was told to write its envelopes."""

    tombstones_repeat_deletes: ClassVar[bool] = True
    may_lack_columns: ClassVar[bool] = True

    encoding: Literal["json", "avro"] = Field(
        "json", description="How the envelope is encoded; avro asks the schema registry."
    )
    schemas: Annotated[bool, Field(strict=True)] = Field(
        False, description="Whether JSON carries its schema (the converter's schemas.enable)."
    )
    columns: dict[str, EnvelopePath] = Field(
        {}, description="Columns taken from the envelope, such as `lsn: source.lsn`."
    )
    timestamps: Unit | dict[str, Unit] | None = Field(
        None, description="Unit of moments that are numbers, of all or by column; without schemas."
    )
    decimals: Literal["precise", "string", "base64"] = Field(
        "precise",
        description="The connector's decimal.handling.mode, without schemas; base64 is precise, "
        "where digits alone are base64, too.",
    )
    on_truncate: OnTruncate = Field(
        "quarantine",
        description="Whether a TRUNCATE of the source waits, stops the run, or empties the table.",
    )

    @property
    def truncate_policy(self) -> OnTruncate:
        """The policy for a TRUNCATE of the source."""
        return self.on_truncate

    @property
    def uses_registry(self) -> bool:
        """Whether records name their schema by its id in a registry."""
        return self.encoding == "avro"

    @property
    def reads_key(self) -> bool:
        """Whether a value can be incomplete without its record's Kafka key."""
        return self.encoding == "json"

    @property
    def of_envelope(self) -> Collection[str]:
        """Columns that are not of the row, but of what is sent around it."""
        return self.columns

    @model_validator(mode="after")
    def _needs_units_only_without_schema(self) -> DebeziumOptions:
        needless = {"timestamps", "decimals"} & self.model_fields_set
        if needless and (self.schemas or self.encoding == "avro"):
            raise ValueError(f"the schema says it already; remove {', '.join(sorted(needless))}")
        if self.schemas and self.encoding == "avro":
            raise ValueError("`schemas` is for JSON; with `encoding: avro` the registry has them")
        return self


class CsvOptions(Options):
    """How a line is written."""

    delimiter: Annotated[str, StringConstraints(pattern=r'^[^\r\n"\\A-Za-z0-9.+-]$')] = Field(
        ",", description="The one character between two fields."
    )
    quote: Annotated[str, StringConstraints(pattern=r"^[\"'|]$")] = Field(
        '"', description="What may surround a field; inside it stands twice for itself."
    )
    null_value: str = Field("", description="A field without quotes that means null.")

    @model_validator(mode="after")
    def _tells_fields_apart(self) -> CsvOptions:
        if self.delimiter == self.quote:
            raise ValueError("`delimiter` and `quote` must differ")
        if self.delimiter in self.null_value or self.quote in self.null_value:
            raise ValueError("`null_value` must hold neither `delimiter` nor `quote`")
        return self


class NumberOptions(Options):
    """A number of so many bytes; nothing may stand beside ``type``."""

    size_bytes: ClassVar[int]


class _ShortOptions(NumberOptions):
    size_bytes = 2


class _IntOptions(NumberOptions):
    size_bytes = 4


class _LongOptions(NumberOptions):
    size_bytes = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """One format.

    Attributes:
        module: Where its ``opened`` is.
        options: What may stand beside ``type``.
        key_options: The same for Kafka keys, where that is something else.
        fills: Types that the one column may have which it fills; empty of formats with fields.
        for_values: Whether a value may be encoded so.
        for_keys: Whether a Kafka key may.
    """

    module: str
    options: type[Options] = Options
    key_options: type[Options] | None = None
    fills: tuple[str, ...] = ()
    for_values: bool = True
    for_keys: bool = True

    def options_of(self, *, is_key: bool) -> type[Options]:
        """Return what may stand beside ``type`` of a Kafka key, or of a value."""
        return (self.key_options if is_key else None) or self.options


class Header(NamedTuple):
    """A header that gives a column.

    Attributes:
        name: Its name.
        format: Which number of Java's it is, or a UUID; ``None`` of text, and of bytes.
    """

    name: str
    format: str | None


def _of_java(options: type[Options], *fills: str) -> Format:
    return Format(
        module="oncelake.ingestion.formats.java", options=options, fills=fills, for_values=False
    )


FORMATS: Final[dict[str, Format]] = {
    "json": Format(module="oncelake.ingestion.formats.json", key_options=JsonKeyOptions),
    "avro": Format(module="oncelake.ingestion.formats.avro", options=AvroOptions),
    "protobuf": Format(module="oncelake.ingestion.formats.protobuf", options=RegistryOptions),
    "json_schema": Format(module="oncelake.ingestion.formats.json_schema", options=RegistryOptions),
    "csv": Format(module="oncelake.ingestion.formats.csv", options=CsvOptions),
    "string": Format(module="oncelake.ingestion.formats.raw", fills=("STRING",)),
    "raw": Format(module="oncelake.ingestion.formats.raw", fills=("BINARY",)),
    "debezium": Format(
        module="oncelake.ingestion.formats.debezium", options=DebeziumOptions, for_keys=False
    ),
    "short": _of_java(_ShortOptions, "SMALLINT", "INT", "BIGINT"),
    "int": _of_java(_IntOptions, "INT", "BIGINT"),
    "long": _of_java(_LongOptions, "BIGINT"),
    "uuid": _of_java(Options, "STRING"),
}
