"""What a sink of another package imports of Oncelake: its record, its table, its types, its errors.

A name of ``__all__`` stays, with its parameters and its meaning, until a new minor version says
otherwise in CHANGELOG.md; a member that is added to a class until then has a default, and so has a
parameter. The abstract members of ``SinkTable``, ``Transaction`` and ``CommitLog`` are all that a
sink must have. Whatever else is in ``oncelake.ingestion`` may change with every version.

A name is imported once it is asked for, since the module of an entry point is loaded together with
the declarations: such a module takes ``SinkKind``, ``SinkPart`` and the names of its fields alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from oncelake.ingestion.declaration.catalogs import QualifiedName
    from oncelake.ingestion.declaration.ddl import DeclaredColumn, parse_columns
    from oncelake.ingestion.declaration.sinks import (
        BESIDE,
        SinkKind,
        SinkPart,
        Statements,
    )
    from oncelake.ingestion.declaration.sql import equal, identifier, literal, quoted
    from oncelake.ingestion.declaration.types import SqlType
    from oncelake.ingestion.errors import (
        CommitConflictError,
        DamagedTableError,
        DependencyError,
        ForeignTableError,
        IngestionError,
        InvalidSpecError,
        MissingRightError,
        RefusedError,
        RewindError,
        SetupError,
        SinkUnavailableError,
        TableBusyError,
        TableSettingsError,
    )
    from oncelake.ingestion.settings import Settings, settings_of_sink
    from oncelake.ingestion.sinks.files import FilesTransaction
    from oncelake.ingestion.storage.location import Location
    from oncelake.ingestion.tables.arrow_types import arrow_schema, cast_rows
    from oncelake.ingestion.tables.commit_log import (
        DELETED,
        INSERTED,
        ROW_COUNTS,
        UPDATED,
        Commit,
        CommitLog,
        UnknownOutcomeError,
        operation_of,
    )
    from oncelake.ingestion.tables.commit_metadata import (
        CommitMetadata,
        DamagedMetadataError,
        app_id,
    )
    from oncelake.ingestion.tables.table import (
        REPLACED,
        Altered,
        Change,
        ErasableTable,
        Layout,
        MarkableTable,
        NamedTable,
        RewindableTable,
        Rules,
        SealedTable,
        SinkTable,
        TableDefinition,
        Tell,
        Transaction,
        counts_of,
        foreign_table,
        seq_conflict,
        since,
    )

__all__ = [
    "BESIDE",
    "DELETED",
    "INSERTED",
    "REPLACED",
    "ROW_COUNTS",
    "UPDATED",
    "Altered",
    "Change",
    "Commit",
    "CommitConflictError",
    "CommitLog",
    "CommitMetadata",
    "DamagedMetadataError",
    "DamagedTableError",
    "DeclaredColumn",
    "DependencyError",
    "ErasableTable",
    "FilesTransaction",
    "ForeignTableError",
    "IngestionError",
    "InvalidSpecError",
    "Layout",
    "Location",
    "MarkableTable",
    "MissingRightError",
    "NamedTable",
    "QualifiedName",
    "RefusedError",
    "RewindError",
    "RewindableTable",
    "Rules",
    "SealedTable",
    "Settings",
    "SetupError",
    "SinkKind",
    "SinkPart",
    "SinkTable",
    "SinkUnavailableError",
    "SqlType",
    "Statements",
    "TableBusyError",
    "TableDefinition",
    "TableSettingsError",
    "Tell",
    "Transaction",
    "UnknownOutcomeError",
    "app_id",
    "arrow_schema",
    "cast_rows",
    "counts_of",
    "equal",
    "foreign_table",
    "identifier",
    "literal",
    "operation_of",
    "parse_columns",
    "quoted",
    "seq_conflict",
    "settings_of_sink",
    "since",
]
# Where each is; the declarations' own come first, of which the rest is made.
_MODULES: Final = tuple(
    f"oncelake.ingestion.{module}"
    for module in (
        *("declaration.sinks", "declaration.ddl", "declaration.sql", "declaration.types"),
        *("errors", "settings", "storage.location", "tables.arrow_types", "tables.commit_log"),
        *("tables.commit_metadata", "tables.table", "sinks.files"),
    )
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        for module in map(import_module, _MODULES):
            if name in vars(module):
                return vars(module)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
