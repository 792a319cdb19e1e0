"""What a format is: a module with one function."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol, cast

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from ingestion.formats import FORMATS


class Decode(Protocol):
    """Bytes to typed columns, and a reason for each record that cannot be."""

    def __call__(
        self, records: DataFrame, schema: StructType, options: Mapping[str, Any]
    ) -> DataFrame:
        """Decode ``_value``, which is null for a tombstone, and leave the other columns alone.

        Returns:
            ``records`` with ``_row`` (a struct of ``schema``), ``_reason`` (a code of the format's
            closed list, null when the record is good) and ``_detail`` (for people, or null). One
            row a record, whatever it holds.
        """
        ...


def decoder(format_type: str) -> Decode:
    """Import the format of that name."""
    return cast("Decode", import_module(FORMATS[format_type]).decode)
