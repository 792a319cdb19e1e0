"""How bytes become typed columns: one file a format, and one row here.

A format is a module with a ``decode`` function (see ``ingestion.formats.protocol``); it is named
here and imported when a run needs it, so that loading a declaration imports no Spark. What a
person may write beside its ``type`` is a model of ``ingestion.formats.options``.
"""

from dataclasses import dataclass
from typing import Final

from ingestion.formats.options import (
    CsvOptions,
    DebeziumOptions,
    NoOptions,
    Options,
    RegistryOptions,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """One format.

    Attributes:
        module: Where its ``decode`` is.
        options: What may stand beside ``type``.
        for_keys: Whether a Kafka key may be encoded so.
    """

    module: str
    options: type[Options] = NoOptions
    for_keys: bool = True


FORMATS: Final[dict[str, Format]] = {
    "json": Format(module="ingestion.formats.json"),
    "avro": Format(module="ingestion.formats.avro", options=RegistryOptions),
    "protobuf": Format(module="ingestion.formats.protobuf", options=RegistryOptions),
    "json_schema": Format(module="ingestion.formats.json_schema", options=RegistryOptions),
    "csv": Format(module="ingestion.formats.csv", options=CsvOptions),
    "string": Format(module="ingestion.formats.string"),
    "raw": Format(module="ingestion.formats.raw"),
    "debezium": Format(
        module="ingestion.formats.debezium", options=DebeziumOptions, for_keys=False
    ),
}
