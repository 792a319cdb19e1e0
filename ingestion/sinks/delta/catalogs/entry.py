"""What a catalog is to say of a Delta table, as the table's log has it, and what is another's."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from oncelake.ingestion.delta.files import read_delta
from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.storage.location import Location

# No run waits longer for one answer of a catalog, and none is asked for twice.
SECONDS: Final = 5.0
# The parameters that say of what format a table is, to Spark and to Athena.
_FORMATS: Final = {"spark.sql.sources.provider": "delta", "table_type": "DELTA"}
# What begins so is Delta's; everything else on an entry is its owners'.
_OURS: Final = "delta."
# Of no use to anybody else.
_HIDDEN: Final = "oncelake."
# With this parameter, whoever drops an entry of Hive's deletes the table's files.
_PURGES: Final = "external.table.purge"
# Glue takes no longer names of types.
_LONGEST_TYPE: Final = 131_072
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


@dataclass(frozen=True, kw_only=True, slots=True)
class TableEntry:
    """A Delta table as its catalog is to show it.

    Attributes:
        table_id: Which table it is; ``reset`` makes another at the same place.
        location: Its URL.
        fields: Its columns as the log has them, also those that only partition it.
        properties: Its own, and Delta's.
    """

    table_id: str
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
        properties = sorted(metadata.configuration.items())
        return cls(
            table_id=str(metadata.id),
            location=path.uri,
            fields=tuple(json.loads(table.schema().to_json())["fields"]),
            partitioned_by=tuple(metadata.partition_columns),
            comment=metadata.description or "",
            properties={name: it for name, it in properties if not name.startswith(_HIDDEN)},
        )

    @property
    def hive_columns(self) -> list[tuple[str, str, str]]:
        """Names, types and comments of its columns, as Hive has them."""
        return [
            (field["name"].lower(), _hive_type(field["type"]), shortened(comment_of(field), 255))
            for field in self.fields
        ]

    def digest(self, *where: str | None) -> str:
        """Identify all that an entry says, and where."""
        return hashlib.sha256(json.dumps([where, asdict(self)]).encode()).hexdigest()

    def parameters(self, before: Mapping[str, str]) -> dict[str, str]:
        """Return the parameters of an entry of Hive's or Glue's, those of others as they were."""
        theirs = {name: it for name, it in before.items() if not name.startswith((_OURS, _PURGES))}
        return {**theirs, **self.properties, **_FORMATS, "EXTERNAL": "TRUE"}

    def serde(self, before: Mapping[str, str]) -> dict[str, str]:
        """Return the properties by which Spark finds the files."""
        return {**before, "serialization.format": "1", "path": self.place(before.get("path"))}

    def place(self, before: str | None) -> str:
        """Return the location, spelled as an entry spells it already: s3a:// is Hadoop's s3://."""
        return before if before and spelled(before) == spelled(self.location) else self.location

    def refuse_another(self, location: str | None, *, is_delta: bool) -> None:
        """Make sure that an entry that is there is of this table.

        Raises:
            InvalidSpecError: it is of another.
        """
        if not is_delta or location != self.place(location):
            raise InvalidSpecError(
                f"that is another table, at {location or 'no place'}, and was left as it is; this "
                f"one is at {self.location}"
            )


def is_of_delta(parameters: Mapping[str, str]) -> bool:
    """Tell whether the parameters of an entry of Hive's or Glue's say that it is of Delta."""
    return any((parameters.get(name) or "").lower() == "delta" for name in _FORMATS)


def shortened(comment: str, most_bytes: int) -> str:
    """Return a comment as catalogs take it: on one line, and no longer than that."""
    return " ".join(comment.split()).encode()[:most_bytes].decode(errors="ignore")


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
    fields = (f"{_name(it['name'])}:{sql_type(it['type'], names)}" for it in stored["fields"])
    return f"struct<{','.join(fields)}>"


def _name(field: str) -> str:
    return field if re.fullmatch(r"\w+", field, re.ASCII) else f"`{field}`"


def _hive_type(stored: Any) -> str:
    """Name a type as Hive does, whose parser knows no quotes; what it cannot read is a string."""
    name = sql_type(stored, _IN_HIVE).lower()
    return "string" if "`" in name or len(name) > _LONGEST_TYPE else name


def spelled(location: str) -> str:
    """Write a location as all other spellings of it are written."""
    place = re.sub(r"^s3[an]://", "s3://", location.rstrip("/"))
    return re.sub(r"^file:/+", "file:/", place)
