"""What a catalog is to say of a Delta table, as the table's log has it, and what is another's."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

from oncelake.ingestion.delta.files import read_delta
from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.storage.location import Location

# No run waits longer for one answer of a catalog, and none is asked for twice.
SECONDS: Final = 5.0
# The parameters that say of what format a table is, to Spark and to Athena.
_FORMATS: Final = {"spark.sql.sources.provider": "delta", "table_type": "DELTA"}
# What begins so is Delta's; everything else on an entry is its owners'.
_OURS: Final = "delta."
# Catalogs take no longer ones.
_LONGEST_COMMENT: Final = 255
# Types that SQL names otherwise than Delta, and those that Hive has not.
_IN_SQL: Final = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
_IN_HIVE: Final = {**_IN_SQL, "timestamp_ntz": "timestamp", "variant": "string"}
# As Spark writes them of any table that it alone can read.
INPUT: Final = "org.apache.hadoop.mapred.SequenceFileInputFormat"
OUTPUT: Final = "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat"
SERDE: Final = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"
# What may be wrong with an entry, behind its name.
MISSING: Final = "is not there"
STALE: Final = "does not say what the table is"


class EntryChange(NamedTuple):
    """What is wrong with an entry, and the request that puts it right."""

    what: str
    make: Callable[[], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class TableEntry:
    """A Delta table as its catalog is to show it.

    Attributes:
        location: Its URL.
        fields: Its columns as the log has them, also those that only partition it.
        properties: Those of Delta's own.
    """

    location: str
    fields: tuple[Mapping[str, Any], ...]
    partitioned_by: tuple[str, ...]
    comment: str
    properties: Mapping[str, str]

    @classmethod
    def of(cls, path: Location) -> TableEntry:
        """Read the newest version of a table."""
        table = read_delta(path)
        metadata = table.metadata()
        found = metadata.configuration.items()
        return cls(
            location=path.uri,
            fields=tuple(json.loads(table.schema().to_json())["fields"]),
            partitioned_by=tuple(metadata.partition_columns),
            comment=metadata.description or "",
            properties={name: value for name, value in sorted(found) if name.startswith(_OURS)},
        )

    @property
    def hive_columns(self) -> list[tuple[str, str, str]]:
        """Names, types and comments of its columns, as Hive has them."""
        return [
            (
                each["name"].lower(),
                sql_type(each["type"], _IN_HIVE).lower(),
                comment_of(each)[:_LONGEST_COMMENT],
            )
            for each in self.fields
        ]

    def digest(self, *where: str | None) -> str:
        """Identify all that an entry says, and where."""
        return hashlib.sha256(json.dumps([where, asdict(self)]).encode()).hexdigest()

    def parameters(self, before: Mapping[str, str]) -> dict[str, str]:
        """Return the parameters of an entry of Hive's or Glue's, those of others as they were."""
        theirs = {name: value for name, value in before.items() if not name.startswith(_OURS)}
        return {**theirs, **self.properties, **_FORMATS, "EXTERNAL": "TRUE"}

    def serde(self, before: Mapping[str, str]) -> dict[str, str]:
        """Return the properties by which Spark finds the files."""
        return {**before, "serialization.format": "1", "path": self.location}

    def refuse_another(self, location: str | None, parameters: Mapping[str, str | None]) -> None:
        """Make sure that an entry that is there, with parameters, is of this table.

        Raises:
            InvalidSpecError: it is of another.
        """
        is_delta = any((parameters.get(name) or "").lower() == "delta" for name in _FORMATS)
        if not is_delta or spelled(location or "") != spelled(self.location):
            raise InvalidSpecError(
                f"that is another table, at {location or 'no place'}, and was left as it is; this "
                f"one is at {self.location}"
            )


def comment_of(field: Mapping[str, Any]) -> str:
    """Return the comment of a column, as the log has it."""
    return str(field["metadata"].get("comment", ""))


def sql_type(stored: Any, names: Mapping[str, str] = _IN_SQL) -> str:
    """Name a type, as the log has it, as Spark does, or by other names."""
    if isinstance(stored, str):
        return names.get(stored, stored)
    if stored["type"] == "array":
        return f"array<{sql_type(stored['elementType'], names)}>"
    if stored["type"] == "map":
        return f"map<{sql_type(stored['keyType'], names)},{sql_type(stored['valueType'], names)}>"
    fields = (f"{each['name']}:{sql_type(each['type'], names)}" for each in stored["fields"])
    return f"struct<{','.join(fields)}>"


def spelled(location: str) -> str:
    """Write a location as all other spellings of it are written."""
    place = re.sub(r"^s3[an]://", "s3://", location.rstrip("/"))
    return re.sub(r"^file:/+", "file:/", place)
