"""A user's own settings of Spark, and those that are not theirs to set.

Spark itself reads the file's values. Here its keys are read: what a person sets wins over what the
engine only recommends, and what the promise hangs on is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.kafka.properties import read_properties
from oncelake.ingestion.settings import variable

_SET_BY: Final = {
    "spark.master": variable("spark_master"),
    "spark.driver.memory": variable("spark_driver_memory"),
    "spark.driver.extraJavaOptions": variable("spark_java_options"),
}
# Of Delta's many, those that only cost or save time.
_DELTAS_OWN: Final = r"spark\.databricks\.delta\.(?!snapshotPartitions$)"
_FIXED: Final = {
    r"spark\.submit\.deployMode|spark\.remote|spark\.api\.mode": "the driver is the run's own "
    "process, which reads the offsets of a batch and commits it",
    r"spark\.driver\.extraClassPath": "it has the jars of the lock file; `spark.jars` adds others",
    r"spark\.sql\.session\.timeZone": "moments are read, compared and written in UTC",
    r"spark\.sql\.extensions|spark\.sql\.catalog\.spark_catalog": "they are Delta's",
    r"spark\.delta\.|spark\.hadoop\.fs\.s3a?\.(impl|create|performance)": "it decides whether a "
    "commit can overwrite another",
    _DELTAS_OWN: "it decides what a commit holds, or whether it is written twice or not at all",
    r"spark\.sql\.streaming\.": "it decides which offsets a batch has",
    r"spark\.sql\.(ansi\.|storeAssignmentPolicy|legacy\.|mapKeyDedupPolicy|caseSensitive)": "it "
    "decides what a value becomes, and whether a wrong one is noticed",
    r"spark\.(sql\.)?files\.ignore": "rows of a file that is missing or damaged would be left out "
    "in silence",
    r"spark\.sql\.parquet\.(outputTimestampType|writeLegacyFormat|binaryAsString|int96|datetime)": (
        "the proof reads the files, too, and by another library"
    ),
    r"spark\.sql\.sources\.partitionOverwriteMode": "it decides which rows an overwrite replaces",
    r"spark\.sql\.execution\.arrow\.": "it bounds the memory of the workers that decode",
    r"spark\.(sql\.)?redaction\.": "it keeps passwords out of logs",
}


def read_spark_defaults(file: Path | None) -> dict[str, str]:
    """Return what a file sets, as far as it can be known here: values without their escapes.

    Raises:
        InvalidSpecError: it is not there, or sets what is not the user's to set; names its lines.
    """
    if file is None:
        return {}
    settings = read_properties(file, variable=variable("spark_defaults"))
    problems = [
        f"{file}, line {line}: {key}: {problem}"
        for line, key, _ in settings
        if (problem := why_fixed(key))
    ]
    if problems:
        raise InvalidSpecError("\n".join([*problems, "Next: take these lines out"]))
    return {key: value for _, key, value in settings}


def refuse_fixed(keys: Iterable[str], *, where: str) -> None:
    """Refuse settings that are not the user's to set.

    Raises:
        InvalidSpecError: names them, and where they stand.
    """
    problems = [f"{where}: {key}: {problem}" for key in keys if (problem := why_fixed(key))]
    if problems:
        raise InvalidSpecError("\n".join(problems))


def why_fixed(key: str) -> str | None:
    """Say why a key of Spark's cannot be set by a user; ``None`` where it can."""
    if "\\" in key:
        return "write the key without a backslash"
    if key in _SET_BY:
        return f"set {_SET_BY[key]} instead"
    return next((reason for keys, reason in _FIXED.items() if re.match(keys, key)), None)
