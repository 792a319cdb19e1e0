"""A run's report in Dagster: the metadata of a materialization, and its log lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import dagster as dg
import psutil

from oncelake.assets.asset_specs import column_lineage, column_schema, version_of
from oncelake.assets.checks.evidence import Evidence
from oncelake.assets.history import COMPLETE
from oncelake.ingestion.errors import counted
from oncelake.ingestion.lake.books import COUNTS

if TYPE_CHECKING:
    from oncelake.ingestion.lake.ledger import LedgerRow

# The table of ranges has that name already.
_RENAMED: Final = {"offsets": "offsets_in_ranges"}
_MAIN_COUNTS: Final = ("read", "inserted", "updated", "deleted", "quarantined")
MOST_RUNS: Final = 20


def metadata_of(evidence: Evidence) -> dict[str, Any]:
    """Return the metadata of a run's materialization: flat numbers, so that the UI plots them."""
    report, spec = evidence.report, evidence.spec
    return {
        **metadata_of_batches(report.batches),
        **_pace(evidence),
        **_known(
            bytes_read=report.traffic.read if report.batches else None,
            bytes_written=report.traffic.written,
            waiting_in_quarantine=evidence.waiting,
            oldest_unread_seconds=evidence.oldest_unread_seconds,
        ),
        **_known(**{"dagster/row_count": report.row_count}),
        "seq": report.seq,
        **version_of(spec.sink.name, report.delta_version),
        "lag": report.lag,
        "healed": ", ".join(str(row.seq) for row in report.recovered) or "none",
        "notices": "\n".join(report.notices) or "none",
        "history": evidence.unreported.history,
        # What is the same from run to run stands behind what was measured.
        "recovered": False,
        "engine": evidence.report.engine or "none",
        "delivery": spec.delivery,
        "epoch": report.epoch,
        "table_id": evidence.table_id,
        "dagster/column_schema": column_schema(spec),
        **column_lineage(spec, evidence.translation.topic_key),
        "dagster/uri": evidence.paths.table.uri,
        "dagster/table_name": spec.sink.declared.shown_name(spec.name),
        **_catalog_link(evidence),
    }


def cpu_seconds() -> float:
    """Return the CPU time so far of this process and of all that it has started, a JVM as well."""
    me, seconds = psutil.Process(), 0.0
    for process in (me, *me.children(recursive=True)):
        with suppress(psutil.Error):
            times = process.cpu_times()
            # Those whose end was waited for count with their parent.
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


def _catalog_link(evidence: Evidence) -> dict[str, dg.MetadataValue[Any]]:
    """Return the page about the table in its catalog, where the settings have one."""
    link, catalog = evidence.paths.settings.catalog_link, evidence.spec.sink.catalog
    if link is None or catalog is None:
        return {}
    name = catalog.name_of(evidence.spec.name)
    database, _, table = name.rpartition(".")
    blanks = {"name": name, "database": database, "table": table, "path": name.replace(".", "/")}
    for blank, value in blanks.items():
        link = link.replace(f"{{{blank}}}", value)
    return {"catalog": dg.MetadataValue.url(link)}


def metadata_of_batches(rows: Sequence[LedgerRow]) -> dict[str, Any]:
    """Return what batches read and what became of it: the ranges, and the counts by name.

    Of a count that is 0 there is no plot, but for those that are looked for.
    """
    from oncelake.ingestion.pipeline.report import total_of

    further = (name for row in rows for name in row.counts)
    counts = {
        _RENAMED.get(name, name): total
        for name in dict.fromkeys([*COUNTS, *further])
        if (total := total_of(rows, name)) or name in _MAIN_COUNTS
    }
    return {"offsets": _offsets_table(rows), **counts, "batches": len(rows)}


def _pace(evidence: Evidence) -> dict[str, float]:
    """Return how long a run took, and its checks; of one that read nothing there is no rate."""
    read, seconds = evidence.report.total("read"), evidence.report.seconds
    # Three digits, so that of a few records it is not 0.
    rate = {"records_per_second": float(f"{read / seconds:.3g}")} if read and seconds else {}
    return {"duration_seconds": round(seconds + evidence.seconds, 1), **rate}


def _offsets_table(rows: Sequence[LedgerRow]) -> dg.TableMetadataValue:
    """Return what batches read of each partition, as a table; without rows when they read none."""
    from oncelake.ingestion.pipeline.report import ranges_of

    numbers = ("partition", "start", "end", "records", "gaps")
    columns = [dg.TableColumn("topic", "string"), *(dg.TableColumn(it, "int") for it in numbers)]
    return dg.MetadataValue.table(
        [dg.TableRecord(counted.as_row()) for counted in ranges_of(rows)],
        schema=dg.TableSchema(columns=columns),
    )


def earlier_events(
    evidence: Evidence, instance: dg.DagsterInstance, *, by: str
) -> Iterator[dg.AssetMaterialization]:
    """Yield the events before a run's own materialization; ``by`` is the run's id."""
    yield from recovered_materializations(evidence, by=by)
    yield from _side_materializations(evidence)
    yield from _topic_materializations(evidence, instance)


def _topic_materializations(
    evidence: Evidence, instance: dg.DagsterInstance
) -> Iterator[dg.AssetMaterialization]:
    """Yield one of each topic that has none: Dagster would count it as missing for good.

    No more than one: what stands behind a topic would be started by each.
    """
    for topic in sorted({at.topic for at in evidence.report.next}):
        key = evidence.translation.topic_key(topic)
        if instance.get_latest_materialization_event(key) is None:
            yield dg.AssetMaterialization(key, description=f"Read by {evidence.spec.name}")


def _side_materializations(evidence: Evidence) -> Iterator[dg.AssetMaterialization]:
    """Yield what a run leaves in the tables beside the stream's own."""
    sizes: dict[str, dict[str, int | None]] = {
        "quarantine": {"waiting": evidence.waiting},
        "ledger": {"seq": evidence.report.seq, "dagster/row_count": len(evidence.ledger)},
    }
    for table, key in evidence.translation.side_keys(evidence.spec.name).items():
        uri = (evidence.paths.lake / f"{evidence.spec.name}__{table}").uri
        metadata: dict[str, Any] = {**_known(**sizes[table]), "dagster/uri": uri}
        version = evidence.version_of({"quarantined"} if table == "quarantine" else COUNTS)
        yield dg.AssetMaterialization(key, metadata=metadata, tags=version_tags(version))


def _known(**numbers: float | None) -> dict[str, float]:
    return {name: number for name, number in numbers.items() if number is not None}


def recovered_materializations(evidence: Evidence, *, by: str) -> Iterator[dg.AssetMaterialization]:
    """Yield a materialization a swallowed run; one stands for all but the last ``MOST_RUNS``.

    Args:
        evidence: What is known when the run that tells them has ended.
        by: Id of that run.
    """
    runs = [
        tuple(rows) for _, rows in groupby(evidence.unreported.rows, key=lambda row: row.run_id)
    ]
    older = [row for rows in runs[:-MOST_RUNS] for row in rows]
    if older:
        dead = counted(len(runs) - MOST_RUNS, "run")
        yield _materialization(evidence, older, runs=dead, by=by)
    for rows in runs[-MOST_RUNS:]:
        yield _materialization(evidence, rows, runs=f"run {rows[0].run_id}", by=by)


def version_tags(version: str) -> dict[str, str]:
    """Return the tags of a materialization that an asset's own result would have by itself."""
    return {"dagster/data_version": version}


def _materialization(
    evidence: Evidence, rows: Sequence[LedgerRow], *, runs: str, by: str
) -> dg.AssetMaterialization:
    first, last = rows[0], rows[-1]
    batches = f"batch {last.seq}" if first is last else f"batches {first.seq} to {last.seq}"
    return dg.AssetMaterialization(
        asset_key=evidence.asset_key,
        tags=version_tags(evidence.data_version),
        description=f"Recovered: {batches} of {runs}, of which no materialization has told",
        metadata={
            **metadata_of_batches(rows),
            **_standing(rows),
            "recovered": True,
            "recovered_by": by,
            "run_id": runs.removeprefix("run "),
            "history": COMPLETE,
            "table_id": evidence.table_id,
        },
    )


def _standing(rows: Sequence[LedgerRow]) -> dict[str, Any]:
    """Return where in the table's life batches stand."""
    first, last = rows[0], rows[-1]
    return {
        "first_seq": first.seq,
        "seq": last.seq,
        "epoch": last.epoch,
        **version_of(last.sink, last.delta_version),
        "kinds": ", ".join(dict.fromkeys(row.kind for row in rows)),
        "red_batches": sum(row.is_red for row in rows),
        "committed_at": dg.MetadataValue.timestamp(last.committed_at),
    }
