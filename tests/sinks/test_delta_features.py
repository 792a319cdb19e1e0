"""Commits without Spark keep to what the features of somebody else's table ask of them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import CommitProperties
from deltalake.exceptions import DeltaError

from oncelake.ingestion.delta.commits import put_metadata, restore_version
from oncelake.ingestion.delta.features import clustering_columns, unwritable_features
from oncelake.ingestion.delta.files import open_delta, read_delta, scan_rows
from oncelake.ingestion.delta.log_files import actions_in, log_files
from oncelake.ingestion.delta.vacuum import vacuum
from oncelake.ingestion.delta.vectors import PROVIDER, living_files
from oncelake.ingestion.errors import RefusedError
from oncelake.ingestion.sinks.delta.compaction import compact
from oncelake.ingestion.sinks.delta.table import DeltaSinkTable
from oncelake.ingestion.tables.table import Layout
from tests.sinks.test_delta_transaction import change, commit, made, note

HOUR = dt.timedelta(hours=1)
CLUSTERED = {"clusteringColumns": [["name"]], "domainName": "delta.clustering"}
FEATURES: dict[str, dict[str, Any]] = {
    "allowColumnDefaults": {},
    "changeDataFeed": {"properties": {"delta.enableChangeDataFeed": "true"}},
    "clustering": {"domain": ("delta.clustering", CLUSTERED)},
    "inCommitTimestamp": {"properties": {"delta.enableInCommitTimestamps": "true"}},
    "rowTracking": {"properties": {"delta.enableRowTracking": "true"}},
    "vacuumProtocolCheck": {"for_readers": ["vacuumProtocolCheck"]},
}


def table_with(folder: Path, *features: str, marks: bool = False) -> DeltaSinkTable:
    """Make a table, as somebody does who wants features."""
    table = made(folder / "orders")
    table.configure(deletion_vectors=marks)
    first = table.path.path / "_delta_log" / f"{0:020d}.json"
    protocol, metadata = _protocol_of(table), read_delta(table.path).metadata()
    for_readers, domains = [*(protocol["readerFeatures"])], list[dict[str, Any]]()
    configuration = dict(metadata.configuration)
    for each in features:
        said = FEATURES.get(each, {})
        for_readers += said.get("for_readers", [])
        configuration |= said.get("properties", {})
        if "domain" in said:
            name, config = said["domain"]
            domain = {"domain": name, "configuration": json.dumps(config), "removed": False}
            domains.append({"domainMetadata": domain})
    made_of = [each for each in actions_in(first.read_bytes()) if "metaData" in each]
    made_of[0]["metaData"]["configuration"] = configuration
    for_writers = [*protocol["writerFeatures"], *features, "domainMetadata"]
    version = {"minReaderVersion": 3, "minWriterVersion": 7}
    of = {**version, "readerFeatures": for_readers, "writerFeatures": for_writers}
    said = {"inCommitTimestamp": 1, "timestamp": 1, "operation": "CREATE TABLE"}
    actions = [{"commitInfo": said}, {"protocol": of}, *made_of, *domains]
    for path in (table.path.path / "_delta_log").iterdir():
        path.unlink()
    first.write_text("\n".join(map(json.dumps, actions)))
    table.seal()
    table.commit_note(note(0))
    return table


def _protocol_of(table: DeltaSinkTable) -> dict[str, list[str]]:
    found = read_delta(table.path).protocol()
    return {
        "readerFeatures": found.reader_features or [],
        "writerFeatures": found.writer_features or ["appendOnly", "invariants"],
    }


def names(table: DeltaSinkTable) -> dict[Any, str]:
    """Return the names by their ids."""
    rows = [row for each in scan_rows(table.path, ["id", "name"]) for row in each.to_pylist()]
    assert len({row["id"] for row in rows}) == len(rows)
    return {row["id"]: row["name"] for row in rows}


def commits(table: DeltaSinkTable) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Yield the commits, and their actions."""
    for path in sorted((table.path.path / "_delta_log").glob("*.json")):
        if path.stem.isdigit():
            yield int(path.stem), actions_in(path.read_bytes())


def lived(folder: Path, *features: str, marks: bool) -> DeltaSinkTable:
    """Let a table have all that ever happens to one."""
    table = table_with(folder, *features, marks=marks)
    commit(table, 1, change(table, inserted=dict.fromkeys(range(20), "a")))
    then = read_delta(table.path).version()
    for seq in range(2, 14):
        wanted = change(table, inserted={100 + seq: "n"}, updated={seq: "u"}, deleted=[20 - seq])
        commit(table, seq, wanted if seq < 10 else change(table, updated={seq % 4: "later"}))
    compact(table.path, target_bytes=1 << 20)
    before = names(table)
    table.restore(then, replace(note(14), kind="rewind"))
    assert names(table) == dict.fromkeys(range(20), "a")
    commit(table, 15, change(table, inserted={500: "z"}, updated={1: "b"}, deleted=[2]))
    assert vacuum(table.path, window=dt.timedelta(0)) > 0
    assert 101 not in before
    assert names(table) == {
        **dict.fromkeys(({*range(20)} - {1, 2}), "a"), 1: "b", 500: "z",
    }  # fmt: skip
    return table


@pytest.mark.parametrize("marks", [False, True], ids=["files", "vectors"])
@pytest.mark.parametrize("features", [*([each] for each in FEATURES), [*FEATURES]], ids="-".join)
def test_a_table_with_a_feature_is_written_without_spark(
    tmp_path: Path, features: list[str], *, marks: bool
) -> None:
    """Merges, upkeep, a rewind and checkpoints leave the rows, and features, as they should."""
    table = lived(tmp_path, *features, marks=marks)

    found = read_delta(table.path)
    assert unwritable_features(found) == []
    assert {*features} <= {*(found.protocol().writer_features or [])}
    assert any(name.endswith("checkpoint.parquet") for name in table.log().names())


@pytest.mark.parametrize("marks", [False, True], ids=["files", "vectors"])
def test_no_two_rows_ever_have_the_same_id(tmp_path: Path, *, marks: bool) -> None:
    """What a file has begun with, it keeps, and says when it goes; the mark covers all."""
    table = lived(tmp_path, "rowTracking", marks=marks)

    begins, ends, highest = dict[str, int](), dict[int, int](), -1
    for version, actions in commits(table):
        for add in (each["add"] for each in actions if "add" in each):
            rows = json.loads(add["stats"])["numRecords"]
            if add["path"] in begins:
                assert add["baseRowId"] == begins[add["path"]]
                continue
            assert add["defaultRowCommitVersion"] == version
            begins[add["path"]] = add["baseRowId"]
            ends[add["baseRowId"]] = add["baseRowId"] + rows
        for each in actions:
            if "remove" in each and each["remove"]["path"] in begins:
                assert each["remove"]["baseRowId"] == begins[each["remove"]["path"]]
            if said := each.get("domainMetadata"):
                highest = json.loads(said["configuration"])["rowIdHighWaterMark"]
        assert max(ends.values(), default=0) == highest + 1
        kept = actions[0]["commitInfo"].get("tags", {}).get("delta.rowTracking.preserved")
        assert kept in (None, str(not any("remove" in each for each in actions)).lower())
    assert len(ends) == len(begins)
    for begin, following in zip(sorted(ends), sorted(ends)[1:], strict=False):
        assert ends[begin] <= following


def test_moments_of_commits_only_grow(tmp_path: Path) -> None:
    """Each commit tells its own first, though a clock stands still."""
    table = lived(tmp_path, "inCommitTimestamp", marks=True)

    told = [actions[0]["commitInfo"]["inCommitTimestamp"] for _, actions in commits(table)]

    assert told == sorted({*told})


@pytest.mark.parametrize("marks", [False, True], ids=["files", "vectors"])
def test_each_file_of_a_clustered_table_has_statistics_of_what_it_is_clustered_by(
    tmp_path: Path, *, marks: bool
) -> None:
    """Though the table's own list of statistics leaves that column out."""
    table = lived(tmp_path, "clustering", marks=marks)

    assert clustering_columns(table.path, read_delta(table.path)) == ["name"]
    adds = [each["add"] for _, actions in commits(table) for each in actions if "add" in each]
    assert adds
    for add in adds:
        stats = json.loads(add["stats"])
        assert {"name", "id"} <= stats["minValues"].keys() & stats["nullCount"].keys()


def test_what_a_table_is_clustered_by_is_neither_renamed_nor_partitioned(tmp_path: Path) -> None:
    """An alter is refused, with the statement that lets it."""
    table = table_with(tmp_path, "clustering")
    found = table.columns()
    renamed = [replace(each, name="other") if each.name == "name" else each for each in found]
    for layout in (
        Layout(columns=renamed, found=found, renamed={"other": "name"}),
        Layout(columns=[each for each in found if each.name != "name"], found=found),
    ):
        with pytest.raises(RefusedError, match="clustered by name") as refused:
            table.reshape(layout, note(1))
        assert "CLUSTER BY NONE" in refused.value.remedy


def test_upkeep_merges_what_delta_rs_refuses(tmp_path: Path) -> None:
    """Nothing is left over that would be due again."""
    table = table_with(tmp_path, "rowTracking", marks=True)
    for seq in range(1, 5):
        commit(table, seq, change(table, inserted=dict.fromkeys(range(seq * 9, seq * 9 + 5), "a")))
    before, version = names(table), read_delta(table.path).version()

    for _ in range(2):
        compact(table.path, target_bytes=1 << 20)

    assert names(table) == before
    assert read_delta(table.path).version() == version + 1


def test_files_that_others_have_clustered_are_left_to_them(tmp_path: Path) -> None:
    """As the protocol demands; upkeep says which are its own, and a checkpoint keeps that."""
    table = table_with(tmp_path, "clustering", marks=True)
    for seq in range(1, 7):
        commit(table, seq, change(table, inserted=dict.fromkeys(range(seq * 9, seq * 9 + 5), "a")))
    log = table.path.path / "_delta_log"
    for version in (2, 3, 4):
        [file] = log.glob(f"{version:020d}.json")
        text = file.read_text().replace(
            '"dataChange"', '"clusteringProvider": "liquid", "dataChange"'
        )
        for each in log.glob(f"*{version:020d}.json*"):
            each.unlink()
        file.write_text(text)
    table.seal()
    log_files(table.path).forget()
    before = names(table)

    for _ in range(2):
        compact(table.path, target_bytes=1 << 20, is_clustered=True)

    found = [add.get(PROVIDER) for add in living_files(table.path, read_delta(table.path)).values()]
    assert sorted(found) == ["liquid"] * 3 + ["oncelake"]
    assert names(table) == before
    open_delta(table.path).create_checkpoint()
    log_files(table.path).forget()
    kept = [add.get(PROVIDER) for add in living_files(table.path, read_delta(table.path)).values()]
    assert sorted(kept) == sorted(found)


def test_a_rewind_leaves_features_on_and_brings_the_clustering_back(tmp_path: Path) -> None:
    """What somebody has turned on since, and clustered by since."""
    table = table_with(tmp_path, "inCommitTimestamp", "clustering", marks=True)
    off = {"delta.enableInCommitTimestamps": "false", "delta.note": "then"}
    put_metadata(table.path, read_delta(table.path), off)
    commit(table, 1, change(table, inserted={1: "a"}))
    then = read_delta(table.path).version()
    by_id = {"clusteringColumns": [["id"]], "domainName": "delta.clustering"}
    said = {"domain": "delta.clustering", "configuration": json.dumps(by_id), "removed": False}
    on = {"delta.enableInCommitTimestamps": "TRUE", "delta.note": "now"}
    put_metadata(table.path, read_delta(table.path), on, [{"domainMetadata": said}])
    commit(table, 2, change(table, updated={1: "b"}))
    begin = read_delta(table.path).version()

    table.restore(then, replace(note(3), kind="rewind"))
    commit(table, 4, change(table, updated={1: "c"}))

    found = read_delta(table.path)
    assert clustering_columns(table.path, found) == ["name"]
    assert found.metadata().configuration["delta.note"] == "then"
    told = {v: actions[0]["commitInfo"].get("inCommitTimestamp") for v, actions in commits(table)}
    late = [told[version] for version in sorted(told) if version >= begin]
    assert None not in late
    assert len(late) == 3
    assert late == sorted({*late})


def test_a_domain_of_others_is_none_of_ours(tmp_path: Path) -> None:
    """Whatever text it has."""
    table = table_with(tmp_path, "rowTracking")
    said = {"domain": "my.app", "configuration": "no JSON", "removed": False}
    put_metadata(table.path, read_delta(table.path), {}, [{"domainMetadata": said}])

    commit(table, 1, change(table, inserted={1: "a"}))

    assert names(table) == {1: "a"}


def test_a_feature_of_which_nothing_is_known_is_left_to_spark(tmp_path: Path) -> None:
    """Beside one that is known: nothing of the table is committed by this process then."""
    table = table_with(tmp_path, "clustering", "icebergCompatV2")

    assert unwritable_features(read_delta(table.path)) == ["icebergCompatV2"]
    with pytest.raises(DeltaError, match="Unsupported"):
        restore_version(table.path, open_delta(table.path), CommitProperties(), 0)
