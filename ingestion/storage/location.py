"""A folder or an object of the lake, on this machine or in a store: the one way to reach either.

obstore stands on the Rust library that delta-rs stands on, so that tables and what lies beside them
are reached by one set of settings: each store's own standard variables of the environment. What two
writers may race for is put only if it is absent (``create``) or unchanged (``replace``). A local
folder has no such thing as *unchanged*, only the kernel's lock.
"""

from __future__ import annotations

import datetime as dt
import errno
import os
import re
import shutil
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, NamedTuple, cast

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import LocalStore, from_url

from oncelake.ingestion.errors import first_line

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutResult, UpdateVersion
    from obstore.store import ClientConfig, ObjectStore, RetryConfig

# What is tried again within a request, and how long that may take in all.
_RETRIES: Final[RetryConfig] = {"max_retries": 5, "retry_timeout": dt.timedelta(seconds=30)}
_CLIENT: Final[ClientConfig] = {"timeout": "30s", "connect_timeout": "5s"}
_ERRNO: Final = re.compile(r"\bos error (\d+)\)")
# What S3 repeats of a request whose signature is wrong, its session token included.
ECHOED: Final = re.compile(r"<(StringToSign|CanonicalRequest).*", re.DOTALL)
# Objects that are copied at the same time.
_JOBS: Final = 8
_DELETED_AT_ONCE: Final = 1000


class Tag(NamedTuple):
    """The version of an object, in two forms; a store uses one of them."""

    e_tag: str | None
    # Google's generation, without which it replaces nothing.
    version: str | None


@dataclass(frozen=True, slots=True)
class Entry:
    """An object as a listing shows it: its length in bytes, and its e_tag."""

    size: int
    tag: str | None


class StoreError(OSError):
    """A store did not do what it was asked for, within the time that it had."""


class StoreDeniedError(StoreError, PermissionError):
    """A store refuses what it was asked for, to the keys that it was asked with."""


class ObjectChangedError(Exception):
    """An object is not as it was when it was read, so that nothing was put in its place."""


@dataclass(frozen=True, slots=True, order=True)
class Location(os.PathLike[str]):
    """A place of the lake.

    Attributes:
        root: The store, such as ``s3://bucket``; empty on this machine.
        key: Where in it: names joined by ``/``, none at either end.
        cache: A folder of this machine for what never changes there.
    """

    root: str
    key: str
    cache: Path | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, place: str | os.PathLike[str], *, cache: Path | None = None) -> Location:
        """Return the location of a URL, or of a path of this machine."""
        if isinstance(place, Location):
            return place
        scheme, found, rest = os.fspath(place).partition("://")
        if not found:
            return cls("", os.path.abspath(place).strip("/"))
        host, _, key = rest.partition("/")
        return cls(f"{scheme}://{host}", key.strip("/"), cache)

    def __truediv__(self, name: str) -> Location:
        """Return a place below this one."""
        return replace(self, key=f"{self.key}/{name}" if self.key else name)

    def __str__(self) -> str:
        """Write it as a person does: a path, or a URL."""
        return f"{self.root}/{self.key}"

    def __fspath__(self) -> str:
        """Return the path, for what reads local files only."""
        return str(self.path)

    @property
    def is_local(self) -> bool:
        """Tell whether it is on this machine."""
        return not self.root

    @property
    def path(self) -> Path:
        """Its path on this machine."""
        assert self.is_local, f"{self} is not on this machine"
        return Path(str(self))

    @property
    def uri(self) -> str:
        """Its URL, which a path of this machine has, too."""
        return self.path.as_uri() if self.is_local else str(self)

    @property
    def name(self) -> str:
        """The last of its names."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> Location:
        """The folder that it is in."""
        return replace(self, key=self.key.rpartition("/")[0])

    def with_name(self, name: str) -> Location:
        """Return another place in the same folder."""
        return self.parent / name

    def read(self) -> bytes:
        """Return an object's content.

        Raises:
            FileNotFoundError: there is none.
        """
        return self.read_tagged()[0]

    def read_if_there(self) -> bytes | None:
        """Return an object's content, or ``None`` where there is none."""
        try:
            return self.read()
        except FileNotFoundError:
            return None

    def read_tagged(self) -> tuple[bytes, Tag]:
        """Return an object's content, and its version."""
        with self._translated():
            found = obstore.get(self._store, self.key)
            return bytes(found.bytes()), _tag_of(found.meta)

    def exists(self) -> bool:
        """Tell whether there is an object, or a folder with anything in it."""
        if self.is_local:
            return self.path.exists()
        with self._translated():
            return (
                any(map(len, obstore.list(self._store, self.key, chunk_size=1)))
                or self.size() is not None
            )

    def fingerprint(self) -> object:
        """Return what changes whenever a file of this folder comes or goes."""
        if not self.is_local:
            return tuple(self.entries().items())
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_ino, found.st_mtime_ns

    def size(self) -> int | None:
        """Return the length of an object in bytes; ``None`` where there is none."""
        with self._translated():
            try:
                return int(obstore.head(self._store, self.key)["size"])
            except FileNotFoundError:
                return None

    def age_seconds(self) -> float:
        """Return how long ago an object was put, by the clock of what it is put into.

        Raises:
            FileNotFoundError: there is none.
        """
        clock = self.with_name(f"{self.name}.{uuid.uuid4().hex}.clock")
        clock.put(b"")
        try:
            with self._translated():
                now, then = (
                    obstore.head(self._store, at.key)["last_modified"] for at in (clock, self)
                )
        finally:
            clock.delete()
        return (now - then).total_seconds()

    def put(self, content: bytes) -> None:
        """Put an object there, whatever was there before."""
        with self._translated(is_put=True):
            obstore.put(self._store, self.key, content)

    def upload(self, file: IO[bytes]) -> None:
        """Put what a file holds there, whatever was there before; much of it in parts."""
        file.seek(0)
        with self._translated(is_put=True):
            obstore.put(self._store, self.key, file)

    def put_durably(self, content: bytes) -> None:
        """Put an object there, whole and on the disk before it gets this name; see ``create``."""
        if not self.is_local:
            self.put(content)
            return
        with self._draft(content) as draft:
            draft.replace(self.path)

    def sync(self) -> None:
        """Write a file, or the names in a folder, to the disk; a store has done so."""
        if self.is_local:
            opened = os.open(self.path, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)

    def create(self, content: bytes) -> Tag:
        """Put an object there if there is none; it outlives a power cut.

        Raises:
            FileExistsError: there is one.
        """
        if self.is_local:
            with self._draft(content) as draft:
                os.link(draft, self.path)
            return self.read_tagged()[1]
        with self._translated(is_put=True):
            try:
                return _tag_of(obstore.put(self._store, self.key, content, mode="create"))
            except AlreadyExistsError as error:
                # A put whose answer was lost is repeated, and then refused for what it put itself.
                if (found := self.read_tagged())[0] == content:
                    return found[1]
                raise self._failure(errno.EEXIST) from error

    def replace(self, content: bytes, tag: Tag) -> Tag:
        """Put another object in the place of one that is as it was read; see ``create``.

        Raises:
            ObjectChangedError: it is not.
        """
        if self.is_local:
            # Two that do this at once may both succeed: what hangs on it here is a courtesy.
            if not self.exists() or self.read_tagged()[1] != tag:
                raise ObjectChangedError(str(self))
            self.put_durably(content)
            return self.read_tagged()[1]
        unchanged = {name: value for name, value in tag._asdict().items() if value is not None}
        mode = cast("UpdateVersion", unchanged)
        with self._translated():
            try:
                return _tag_of(obstore.put(self._store, self.key, content, mode=mode))
            except (PreconditionError, FileNotFoundError) as error:
                raise ObjectChangedError(str(self)) from error

    def rename_to(self, other: Location) -> None:
        """Give an object another name in the same store."""
        with self._translated():
            obstore.rename(self._store, self.key, other.key)

    def delete(self) -> None:
        """Delete an object, if there is one."""
        with self._translated():
            try:
                obstore.delete(self._store, self.key)
            except FileNotFoundError:
                return

    def files(self) -> dict[str, int]:
        """List the objects below, by their names from here on, with their length in bytes."""
        return {name: entry.size for name, entry in self.entries().items()}

    def entries(self) -> dict[str, Entry]:
        """List the objects below, by their names from here on."""
        with self._translated():
            chunks = obstore.list(self._store, self.key, chunk_size=1000)
            found = [each for chunk in chunks for each in chunk]
        begin = len(self.key) + 1 if self.key else 0
        return {each["path"][begin:]: Entry(each["size"], each["e_tag"]) for each in found}

    def folders(self) -> tuple[str, ...]:
        """List the names of the folders directly below."""
        with self._translated():
            found = obstore.list_with_delimiter(self._store, self.key)["common_prefixes"]
        return tuple(sorted(each.rpartition("/")[2] for each in found))

    def delete_all(self, before_each: Callable[[], None] = lambda: None) -> None:
        """Delete a folder with all that is in it, if it is there.

        ``before_each`` request to a store is called, and may end it by raising.
        """
        if self.is_local:
            if self.exists():
                shutil.rmtree(self)
            return
        keys = [f"{self.key}/{name}" for name in self.files()]
        for at in range(0, len(keys), _DELETED_AT_ONCE):
            before_each()
            with self._translated():
                obstore.delete(self._store, keys[at : at + _DELETED_AT_ONCE])

    def copy_to(self, other: Location, before_each: Callable[[], None] = lambda: None) -> None:
        """Copy a folder to another place of the same store, where there is none.

        ``before_each``: see ``delete_all``.
        """
        if self.is_local:
            shutil.copytree(self, other)
            for copied in (other.path, *other.path.rglob("*")):
                Location.of(copied).sync()
            return

        def copy(name: str) -> None:
            before_each()
            obstore.copy(self._store, f"{self.key}/{name}", f"{other.key}/{name}")

        with self._translated():
            # A table is there when its log is: that comes last, and in order.
            names = sorted(self.files(), key=lambda name: ("_delta_log/" in f"/{name}", name))
            data = [name for name in names if "_delta_log/" not in name]
            with ThreadPoolExecutor(_JOBS) as pool:
                list(pool.map(copy, data))
            for name in names[len(data) :]:
                copy(name)

    def move_to(self, other: Location, before_each: Callable[[], None] = lambda: None) -> None:
        """Move a folder to another place of the same store, where there is none.

        In a store it is copied and then deleted: done again after a crash, it ends the same.
        ``before_each``: see ``delete_all``.
        """
        if self.is_local:
            if other.exists():
                raise self._failure(errno.EEXIST)
            other.parent.path.mkdir(parents=True, exist_ok=True)
            shutil.move(self, other)
            return
        self.copy_to(other, before_each)
        self.delete_all(before_each)

    @contextmanager
    def _draft(self, content: bytes) -> Iterator[Path]:
        """Write a file that is whole, and on the disk, before it gets this name."""
        draft = self.with_name(f"{self.name}.{uuid.uuid4().hex}.draft")
        draft.put(content)
        try:
            draft.sync()
            yield draft.path
            draft.parent.sync()
        finally:
            draft.delete()

    def _failure(self, code: int) -> OSError:
        return OSError(code, os.strerror(code), str(self))

    @property
    def _store(self) -> ObjectStore:
        return _store(self.root)

    @contextmanager
    def _translated(self, *, is_put: bool = False) -> Iterator[None]:
        """Translate obstore's errors into those of files, or of a store that does not answer."""
        try:
            yield
        except FileNotFoundError as error:
            if is_put and not self.is_local:
                raise StoreError(errno.EREMOTEIO, "there is no such bucket", self.root) from error
            raise self._failure(errno.ENOENT) from error
        except BaseError as error:
            found, said = _ERRNO.search(str(error)), ECHOED.sub("", first_line(error))
            if found and self.is_local:
                raise self._failure(int(found[1])) from error
            if isinstance(error, PermissionDeniedError | UnauthenticatedError):
                denied = PermissionError if self.is_local else StoreDeniedError
                raise denied(errno.EACCES, said, str(self)) from error
            raise StoreError(errno.EREMOTEIO, said, str(self)) from error


def _tag_of(found: ObjectMeta | PutResult) -> Tag:
    return Tag(found["e_tag"], found["version"])


@cache
def _store(root: str) -> ObjectStore:
    if not root:
        return LocalStore()
    # Options given here stand in for the one of the environment.
    client: ClientConfig = {**_CLIENT, "allow_http": os.environ.get("AWS_ALLOW_HTTP") == "true"}
    store: ObjectStore = from_url(root, client_options=client, retry_config=_RETRIES)
    return store
