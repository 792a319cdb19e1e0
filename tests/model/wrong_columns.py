"""Protocols that give a table the wrong columns, or none, or read a batch by those of before."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import oncelake.ingestion.operations.run
import oncelake.ingestion.pipeline.schema.evolve
import oncelake.ingestion.recovery.topics
from oncelake.ingestion.pipeline.schema import follow as follow_schema
from oncelake.ingestion.pipeline.schema.evolve import under_declaration
from tests.model import seams
from tests.model.patches import nothing, together


def schemas_not_compared() -> AbstractContextManager[Any]:
    """A batch is decoded by the columns of before its schema moved."""
    return patch.object(follow_schema, "_refuse_moved", nothing)


def alteration_left_to_who_wrote_the_file() -> AbstractContextManager[Any]:
    """Columns that the host's file has are taken for those of the table, and only noted."""

    def evolve(spark: Any, stream: Any, position: Any, **named: Any) -> Any:
        if stream.spec.ddl in stream.settings.files:
            return under_declaration(position, stream.spec, {}), ()
        return seams._evolve_schema(spark, stream, position, **named)

    return patch.object(oncelake.ingestion.operations.run, "evolve_schema", evolve)


def columns_of_the_file_alone() -> AbstractContextManager[Any]:
    """A host whose file is older gives the table the columns that it knows."""

    def commit(spec: Any, paths: Any, metadata: Any, *_: Any, **__: Any) -> Any:
        return paths.table.commit_note(metadata, columns=spec.ddl)

    def of_file(spec: Any, *_: Any) -> Any:
        return spec

    return together(
        patch.object(oncelake.ingestion.recovery.topics, "as_of_table", of_file),
        patch.object(oncelake.ingestion.operations.run, "as_of_table", of_file),
        patch.object(oncelake.ingestion.pipeline.schema.evolve, "allowed_changes", lambda *_: ()),
        patch.object(oncelake.ingestion.pipeline.schema.evolve, "commit_columns", commit),
    )


def columns_before_the_lock() -> AbstractContextManager[Any]:
    """What another has given the table since a run began is not known to it."""
    return patch.object(oncelake.ingestion.operations.run, "as_of_table", lambda spec, *_: spec)
