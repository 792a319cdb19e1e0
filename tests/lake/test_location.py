"""One seam for storage: a folder of this machine and a store do the same, as far as both can."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from oncelake.ingestion.delta.files import is_delta, open_delta, read_delta, storage_options
from oncelake.ingestion.delta.log_files import log_files
from oncelake.ingestion.delta.vacuum import drop_log_before
from oncelake.ingestion.storage.location import Location, ObjectChangedError
from tests.support.http_server import Handler, served
from tests.support.store_proxy import StoreProxy

NOBODY = 65534
MOMENT = "Thu, 01 Jan 2026 00:00:00 GMT"


@pytest.fixture(params=["folder", "store"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Location:
    """A place for a test's own, here and in a store."""
    if request.param == "folder":
        return Location.of(tmp_path / "lake")
    return Location.of(request.getfixturevalue("bucket"))


@pytest.mark.parametrize(
    ("written", "shown", "uri"),
    [
        ("/mnt/a lake/", "/mnt/a lake", "file:///mnt/a%20lake"),
        ("/mnt/../lake", "/lake", "file:///lake"),
        ("s3://bucket/prefix/lake/", "s3://bucket/prefix/lake", "s3://bucket/prefix/lake"),
        ("abfss://container@account/lake", "abfss://container@account/lake", None),
    ],
)
def test_a_place_is_shown_as_it_is_written(written: str, shown: str, uri: str | None) -> None:
    """A path or a URL goes in and comes out, and places are equal where these are."""
    place = Location.of(written)

    assert (str(place), place.uri) == (shown, uri or shown)
    assert Location.of(str(place / "orders")) == place / "orders"
    assert (place / "orders").parent == place
    assert (place / "orders").with_name("x") == place / "x"
    assert (place / "orders").name == "orders"


def test_a_path_of_this_machine_is_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It means the same wherever the process goes, and Python's own functions take it."""
    monkeypatch.chdir(tmp_path)
    place = Location.of("lake")

    assert place.path == tmp_path / "lake"
    assert os.fspath(place) == str(tmp_path / "lake")


@pytest.mark.parametrize(
    "name",
    [
        "a b",
        "a%20b",
        "100%",
        "a#b",
        "a?b",
        "a+b&c=d",
        "[x]",
        "*",
        "ümlaut",
        "u\u0308",
        ".hidden",
        "_x",
    ],
)
def test_a_name_is_taken_as_it_is(lake: Location, name: str) -> None:
    """Nothing in it is a pattern, an escape or the beginning of something else."""
    (lake / name / name).put(b"1")

    assert (lake / name / name).read() == b"1"
    assert lake.files() == {f"{name}/{name}": 1}
    assert lake.folders() == (name,)
    (lake / name).copy_to(lake / "copy" / name)
    (lake / name).move_to(lake / "moved")
    assert lake.files() == {f"copy/{name}/{name}": 1, f"moved/{name}": 1}
    (lake / "moved" / name).delete()
    assert (lake / "copy" / name).exists()
    assert not (lake / "moved" / name).exists()
    if lake.is_local:
        assert (lake.path / "copy" / name / name).read_bytes() == b"1"


def test_an_object_is_created_once(lake: Location) -> None:
    """The second is refused, and the first stays."""
    (lake / "folder" / "object").create(b"first")

    with pytest.raises(FileExistsError) as refused:
        (lake / "folder" / "object").create(b"second")

    assert refused.value.errno == errno.EEXIST
    assert (lake / "folder" / "object").read() == b"first"


def test_an_object_is_replaced_only_by_who_has_read_it_last(lake: Location) -> None:
    """Whoever saw an older one, or one that is gone, is told so, and nothing is put there."""
    place = lake / "object"
    created = place.create(b"1")
    content, read = place.read_tagged()
    second = place.replace(b"2", read)

    with pytest.raises(ObjectChangedError):
        place.replace(b"3", created)
    assert (content, place.read()) == (b"1", b"2")
    third = place.replace(b"3", second)
    place.put(b"4")
    with pytest.raises(ObjectChangedError):
        place.replace(b"5", third)
    assert place.read() == b"4"
    gone = place.read_tagged()[1]
    place.delete()
    with pytest.raises(ObjectChangedError):
        place.replace(b"5", gone)
    assert not place.exists()


class OneObject(Handler):
    """Google's store of one object, of which each content has a generation."""

    contents: ClassVar[list[bytes]] = []

    def get(self) -> None:
        """Return the newest content."""
        self.answer(200, self.contents[-1], Last_Modified=MOMENT, **self._names())

    def put(self) -> None:
        """Take a content only in the place of the generation that is named."""
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["x-goog-if-generation-match"] != str(len(self.contents)):
            self.answer(412)
            return
        self.contents.append(content)
        self.answer(200, **self._names())

    def _names(self) -> dict[str, str]:
        return {"ETag": '"the same"', "x_goog_generation": str(len(self.contents))}


def test_an_object_of_google_is_replaced_by_its_generation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its etag is not looked at there: a lease is taken, renewed, and lost to another."""
    with served(OneObject) as url:
        account = {"gcs_base_url": url, "disable_oauth": True, "client_email": ""}
        account |= {"private_key": "", "private_key_id": ""}
        (tmp_path / "account.json").write_text(json.dumps(account))
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "account.json"))
        monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
        place = Location.of("gs://bucket-of-one-object/lease")
        created = place.create(b"1")
        second = place.replace(b"2", place.read_tagged()[1])

        with pytest.raises(FileExistsError):
            place.create(b"3")
        with pytest.raises(ObjectChangedError):
            place.replace(b"3", created)
        place.replace(b"3", second)
        assert OneObject.contents == [b"1", b"2", b"3"]


def test_what_is_not_there_is_missed_quietly_or_by_its_name(lake: Location) -> None:
    """Only who needs it gets an error; listing and deleting nothing is no work."""
    none = lake / "none"

    assert (none.read_if_there(), none.size(), none.exists()) == (None, None, False)
    assert (none.files(), none.folders()) == ({}, ())
    none.delete()
    none.delete_all()
    for ask in (none.read, none.age_seconds):
        with pytest.raises(FileNotFoundError) as missed:
            ask()
        assert (missed.value.errno, missed.value.filename) == (errno.ENOENT, str(none))
    assert lake.files() == {}


def test_files_are_listed_with_their_sizes_at_every_depth(lake: Location) -> None:
    """Hidden ones, too, and those of empty content; nothing of a folder with a longer name."""
    sizes = {"b": 1, ".hidden": 2, "_delta_log/.c.crc": 3, "deep/er/a": 0}
    for name, size in sizes.items():
        (lake / "table" / name).put(bytes(size))
    (lake / "table__ledger" / "x").put(b"")

    assert (lake / "table").files() == sizes
    assert (lake / "table").folders() == ("_delta_log", "deep")
    assert (lake / "table" / "b").size() == 1
    assert lake.folders() == ("table", "table__ledger")


def test_a_folder_is_there_when_something_is_in_it(lake: Location) -> None:
    """An object is, too; what only begins with the same letters is not."""
    (lake / "table" / "_delta_log" / "0").put(b"")

    there = [lake, lake / "table", lake / "table" / "_delta_log" / "0"]
    assert all(place.exists() for place in there)
    assert not any((lake / name).exists() for name in ("tab", "table__ledger", "table/_delta"))


def test_a_folder_is_deleted_with_all_that_is_in_it(lake: Location) -> None:
    """And nothing beside it."""
    for name in ("table/a", "table/.b", "table/deep/c", "table__ledger/a", "tables"):
        (lake / name).put(b"")

    (lake / "table").delete_all()

    assert not (lake / "table").exists()
    assert sorted(lake.files()) == ["table__ledger/a", "tables"]


def test_a_fingerprint_changes_with_every_file(lake: Location) -> None:
    """Whatever its name is, and when all are replaced by others of the same names."""
    log = lake / "_delta_log"
    seen = [log.fingerprint()]
    for name in ("0.json", "_last_checkpoint", "1.json"):
        (log / name).put(b"")
        seen.append(log.fingerprint())
    log.delete_all()
    for name in ("0.json", "_last_checkpoint", "1.json"):
        (log / name).put(b"other")
    seen.append(log.fingerprint())

    assert log.fingerprint() == seen[-1]
    assert len(set(seen)) == len(seen)


def test_the_age_of_an_object_leaves_nothing_behind(lake: Location) -> None:
    """The clock that is asked is that of the store, by an object that goes again."""
    (lake / "object").put(b"")

    assert 0 <= (lake / "object").age_seconds() < 30
    assert list(lake.files()) == ["object"]


def append(place: Location, commits: int) -> None:
    """Write as many commits of one row to a table."""
    options = storage_options(place)
    for value in range(commits):
        rows = pa.table({"id": [value]})
        write_deltalake(str(place), rows, mode="append", storage_options=options)
    log_files(place).forget()


def write_table(place: Location, commits: int = 3) -> None:
    """Write a table of some commits, and a checkpoint."""
    append(place, commits)
    open_delta(place).create_checkpoint()
    log_files(place).forget()


def ids(place: Location) -> list[int]:
    """Return a table's rows."""
    return sorted(open_delta(place).to_pyarrow_table()["id"].to_pylist())


def test_a_table_is_copied_and_moved_whole(lake: Location) -> None:
    """Every version of it can be read where it is then, and no more where it was."""
    write_table(lake / "table")

    (lake / "table").copy_to(lake / ".restore" / "table")
    (lake / "table").move_to(lake / ".archive" / "now" / "table")

    log_files(lake / "table").forget()
    assert not is_delta(lake / "table")
    assert ids(lake / ".restore" / "table") == [0, 1, 2]
    moved = lake / ".archive" / "now" / "table"
    assert (ids(moved), read_delta(moved, 0).version()) == ([0, 1, 2], 0)
    assert (lake / ".restore" / "table").files() == moved.files()


@pytest.mark.parametrize("commits", [2, 7], ids=["a commit beyond", "a checkpoint below"])
def test_a_table_is_not_opened_with_what_is_left_of_another(
    bucket: str, tmp_path: Path, commits: int
) -> None:
    """The mirror may hold files without a tag: two processes fetched at once, or one was killed."""
    place = Location.of(bucket, cache=tmp_path) / "table"
    write_table(place, 5)
    assert read_delta(place).version() == 4
    next(tmp_path.glob("*/tags.json")).write_text("{}")
    place.delete_all()
    append(place, commits)

    opened = read_delta(place)

    there = {name for name in place.files() if name.endswith(".parquet")}
    assert opened.version() == commits - 1
    assert {*map(os.path.basename, opened.file_uris())} == there


def test_nothing_is_left_here_of_a_table_whose_older_versions_are_dropped(
    bucket: str, tmp_path: Path
) -> None:
    """Nor of another that was in its place, and had more of them."""
    place = Location.of(bucket, cache=tmp_path) / "table"
    write_table(place, 5)
    read_delta(place)
    place.delete_all()
    write_table(place, 2)

    drop_log_before(place, 1)

    (log,) = tmp_path.glob("*/_delta_log")
    assert {each.name for each in log.iterdir()} <= {*(place / "_delta_log").files()}


def test_a_move_that_was_cut_short_is_done_again(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a store some files are there twice then, and some only where they shall go."""
    lake = Location.of(bucket)
    write_table(lake / "table")
    whole = (lake / "table").files()

    def delete_some(place: Location, *_: object) -> None:
        for name in sorted(place.files())[::2]:
            (place / name).delete()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Location, "delete_all", delete_some)
        with pytest.raises(KeyboardInterrupt):
            (lake / "table").move_to(lake / "other")
    left = (lake / "table").files()
    (lake / "table").move_to(lake / "other")

    assert 0 < len(left) < len(whole)
    assert (lake / "other").files() == whole
    assert not (lake / "table").exists()
    assert ids(lake / "other") == [0, 1, 2]


def test_the_log_of_a_table_is_copied_last(bucket: str, store_proxy: StoreProxy) -> None:
    """Commit after commit: whatever part of a copy is there, no reader misses a file."""
    lake = Location.of(bucket)
    write_table(lake / "table")
    with store_proxy.counted() as requests:
        (lake / "table").copy_to(lake / "copy")

    copied = [request.target for request in requests if request.kind == "PUT"]
    names = [re.sub(r"^/[^/]+/lake/copy/", "", target) for target in copied]
    data = [name for name in names if not name.startswith("_delta_log/")]
    log = names[len(data) :]
    assert set(names) == (lake / "table").files().keys()
    assert len(data) == 3
    assert [name.partition("/")[0] for name in log] == ["_delta_log"] * len(log)
    assert log == sorted(log)


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda file: (file / "x").put(b""), id="put"),
        pytest.param(lambda file: (file / "x").create(b""), id="create"),
        pytest.param(lambda file: (file / "x").read(), id="read"),
        pytest.param(lambda file: (file / "x").files(), id="files"),
        pytest.param(lambda file: (file / "x").size(), id="size"),
    ],
)
def test_a_file_where_a_folder_should_be_is_an_error_of_the_file_system(
    tmp_path: Path, act: Callable[[Location], object]
) -> None:
    """With the kernel's number and the path, as Python's own functions say it."""
    file = Location.of(tmp_path / "file")
    file.put(b"a file")

    with pytest.raises(NotADirectoryError) as refused:
        act(file)

    assert refused.value.errno == errno.ENOTDIR
    assert str(file) in str(refused.value)
    assert file.read() == b"a file"


def test_a_folder_where_a_file_should_be_is_an_error_of_the_file_system(tmp_path: Path) -> None:
    """What is in it stays."""
    folder = Location.of(tmp_path / "folder")
    (folder / "x").put(b"x")

    for act in (lambda: folder.put(b""), folder.delete):
        with pytest.raises(IsADirectoryError) as refused:
            act()
        assert refused.value.errno == errno.EISDIR
    assert (folder / "x").read() == b"x"


@contextmanager
def closed(folder: Path) -> Iterator[None]:
    """Take from this process, be it root's, every right to a folder."""
    is_root = os.geteuid() == 0
    folder.chmod(0)
    if is_root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o700)


@pytest.mark.parametrize(
    "act",
    [
        pytest.param(lambda folder: (folder / "x").read(), id="read"),
        pytest.param(lambda folder: (folder / "x").read_if_there(), id="read if there"),
        pytest.param(lambda folder: (folder / "x").put(b""), id="put"),
        pytest.param(lambda folder: (folder / "new").create(b""), id="create"),
        pytest.param(lambda folder: (folder / "x").delete(), id="delete"),
        pytest.param(lambda folder: folder.files(), id="files"),
        pytest.param(lambda folder: folder.folders(), id="folders"),
        pytest.param(lambda folder: folder.delete_all(), id="delete all"),
    ],
)
def test_a_missing_permission_is_an_error_of_the_file_system(
    tmp_path: Path, act: Callable[[Location], object]
) -> None:
    """Nothing passes for empty or for done that may not be looked at."""
    folder = Location.of(tmp_path / "folder")
    (folder / "x").put(b"x")

    with closed(tmp_path / "folder"), pytest.raises(PermissionError) as refused:
        act(folder)

    assert refused.value.errno == errno.EACCES
    assert str(folder) in str(refused.value)
    assert folder.files() == {"x": 1}
