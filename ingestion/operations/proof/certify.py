"""``oncelake verify --certificate`` and ``--against``: what was proven, for others to check.

A certificate is written of a proof that holds, and of the version that it has proven. It is
compared with any table without Kafka: after a restore, a migration, or a copy to another region.
"""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from pathlib import Path

from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import InvalidSpecError
from oncelake.ingestion.lake.paths import StreamPaths
from oncelake.ingestion.operations.audit.foreign_table import open_table
from oncelake.ingestion.recovery.topics import as_of_its_table
from oncelake.ingestion.settings import Settings
from oncelake.ingestion.storage.processes import scratch_of_this_process
from oncelake.ingestion.verify.certificate import (
    Comparison,
    columns_of,
    compare,
    read_certificate,
    write_certificate,
)
from oncelake.ingestion.verify.columns.memory import LAST_CERTIFICATE
from oncelake.ingestion.verify.verdict import Verdict


def certify(spec: StreamSpec, settings: Settings, verdict: Verdict, file: Path) -> str:
    """Write a certificate of a proof that holds; return its digest.

    Raises:
        InvalidSpecError: a column has no canonical text, or the file cannot be written.
        TableBusyError: the version that was proven is gone.
    """
    paths = StreamPaths.of(spec.name, settings, spec.sink)
    place, columns = paths.proof / LAST_CERTIFICATE, as_of_its_table(spec, paths).table_columns
    digest = write_certificate(
        file,
        verdict,
        columns,
        paths.table.scan([column.name for column in columns], verdict.delta_version),
        scratch_of_this_process(settings.state),
        keys=spec.keys,
        proven_at=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        before=(place.read_if_there() or b"").decode() or None,
    )
    # Who may not write there begins a chain with each certificate.
    with suppress(OSError):
        place.put(digest.encode())
    return digest


def compare_with(
    file: Path, settings: Settings, *, stream: StreamSpec | None, table: str | None
) -> Comparison:
    """Compare a table with a certificate.

    Args:
        file: The certificate.
        settings: Where the lake is.
        stream: Whose table is compared, unless ``table`` names another.
        table: As ``oncelake audit`` takes it.

    Raises:
        InvalidSpecError: the certificate cannot be read, or the table is not there, or another.
    """
    certificate, scratch = read_certificate(file), scratch_of_this_process(settings.state)
    names = [column.name for column in columns_of(certificate)]
    if table is not None:
        other = open_table(table, settings)
        if lacking := [name for name in names if name not in other.schema.names]:
            raise InvalidSpecError(
                f"--table {table}: it has no column {', '.join(lacking)}. Next: name a copy of the "
                f"table of {certificate['stream']}"
            )
        return compare(certificate, other.read(names), other.where, scratch)
    if stream is None:
        raise InvalidSpecError(
            "--against: nothing says which table. Next: name a stream, or a table by --table"
        )
    own = StreamPaths.of(stream.name, settings, stream.sink).table
    return compare(certificate, own.scan(names), own.where, scratch)
