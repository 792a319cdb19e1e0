"""Volumes that fail, and file systems that lack what commits and locks need.

A full, read-only or failing volume comes as an ``OSError`` from Python, as a text from delta-rs and
Arrow, and as a stack trace from the JVM; here each becomes one sentence with the volume's path. A
file system is tried beside the stream's lock before a run writes.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from oncelake.ingestion.errors import (
    AGAIN,
    NOTHING_LOST,
    DependencyError,
    IngestionError,
    MissingRightError,
    SetupError,
    StorageError,
)
from oncelake.ingestion.storage.location import ECHOED, StoreError

_ADVICE: Final = {
    errno.ENOSPC: "make space there",
    errno.EDQUOT: "raise the quota, or make space there",
    errno.EROFS: "mount it for writing again",
    errno.EIO: "look into the kernel's log, and repair or replace the disk",
}
# The kernel's words, and the number that Rust puts behind them; some layers keep only one.
_WORDS: Final = {
    code: re.compile(rf"{os.strerror(code)}|\bos error {code}\b", re.IGNORECASE) for code in _ADVICE
}
_PATH: Final = re.compile(r"/[^\s'\":(){}\[\],;]+")


# How a store that fails is told of: by obstore and delta-rs, by Arrow, and by Spark.
_STORE: Final = re.compile(
    r"Generic (S3|GCS|MicrosoftAzure) error\b|\bAWS Error\b"
    r"|\bfs\.s3a\b|AWSS3IOException|SdkClientException"
    r"|The operation lacked (the necessary privileges|valid authentication)"
)
# A request that a store refuses to the keys that it was made with.
_REFUSED: Final = re.compile(
    r"Error performing (?P<verb>[A-Z]+) (?P<url>[^\s?]+)(?P<query>\S*) in .*?: "
    r"(?P<status>40[13] \w+)(?:.*?<Code>(?P<code>\w+))?",
    re.DOTALL,
)
_VERBS: Final = {"?list-type": "LIST", "?delete": "DELETE"}
# The same of a file of this machine, as delta-rs tells it.
_NO_PERMISSION: Final = re.compile(r"(/[^\s#:]+)[^\s:]*: Permission denied \(os error 13\)")
_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m|↳")


def is_storage_error(error: BaseException) -> bool:
    """Tell a failing volume, or store, from a file that is wrong."""
    return _code(error) is not None or is_store_error(error)


def is_store_error(error: BaseException) -> bool:
    """Tell a store that fails."""
    return isinstance(error, StoreError) or _STORE.search(str(error)) is not None


@contextmanager
def translate_disk_errors(stream: str, *folders: Path) -> Iterator[None]:
    """Translate what any layer raises when a volume is full, read-only or failing.

    Of the ``folders`` that the stream writes to, one is named where the failure names no path.

    Raises:
        StorageError: names the volume and what is free on it.
        MissingRightError: a store refuses a request.
        SetupError: this user may not use a file or a folder.
    """
    try:
        yield
    except IngestionError:
        raise
    except Exception as error:
        if (failure := failure_of_access(error, stream)) is not None:
            raise failure from error
        code = _code(error)
        if code is None:
            raise
        place = _place(error, folders)
        usage = shutil.disk_usage(place)
        at_or_above = (place.resolve(), *place.resolve().parents)
        mount = next(at for at in at_or_above if at.is_mount())
        raise StorageError(
            f"{stream}: {os.strerror(code)}: {mount} (holds {place}; {usage.free:,} of "
            f"{usage.total:,} bytes are free). {NOTHING_LOST} Next: {_ADVICE[code]}, then oncelake "
            f"run {stream}"
        ) from error


def failure_of_access(error: Exception, stream: str | None) -> IngestionError | None:
    """Translate the error of a store, or of a file that this user may not use; no other."""
    whose = f"{stream}: " if stream else ""
    if is_store_error(error):
        return _store_failed(whose, error)
    found = _NO_PERMISSION.search(str(error))
    place = found[1] if found else error.filename if isinstance(error, PermissionError) else None
    if not isinstance(place, str):
        return None
    return SetupError(
        f"{whose}{place}: no permission. Nothing is lost, and nothing is half done. Next: ls "
        f"-ld {_existing(Path(place))}, and let this user in (docs/rights.md, This machine)"
    )


def _store_failed(whose: str, error: Exception) -> DependencyError:
    words = ECHOED.sub("", _COLOURS.sub("", str(error))).partition("Debug source")[0]
    if refused := _REFUSED.search(words):
        meant = (verb for sign, verb in _VERBS.items() if refused["query"].startswith(sign))
        place = getattr(error, "filename", None) or refused["url"]
        why = " ".join(filter(None, refused.group("status", "code")))
        return MissingRightError(
            f"{whose}the store of the lake refuses {next(meant, refused['verb'])} {place} "
            f"({why}). {NOTHING_LOST} Next: give its keys the rights of docs/rights.md, then "
            f"{AGAIN}"
        )
    said = " ".join(words[found.start() if (found := _STORE.search(words)) else 0 :].split())
    return StorageError(
        f"{whose}the store of the lake failed: {said[:400]}. {NOTHING_LOST} Next: look at the "
        f"store, at its address and rights (docs/storage.md), then {AGAIN}"
    )


def _code(error: BaseException) -> int | None:
    number = getattr(error, "errno", None)
    if number in _ADVICE:
        return int(number)
    text = str(error)
    return next((code for code, words in _WORDS.items() if words.search(text)), None)


def _place(error: BaseException, folders: Iterable[Path]) -> Path:
    """Return the folder that the failure is about: the one it names, or the one in that state.

    The JVM's texts name many paths, and not always the one that failed.
    """
    named = getattr(error, "filename", None)
    if isinstance(named, str | bytes):
        return _existing(Path(os.fsdecode(named)))
    ours = [_existing(each) for each in folders]
    mentioned = [_existing(Path(match)) for match in _PATH.findall(str(error))]
    under = [at for at in mentioned if any(at.is_relative_to(each) for each in ours)]
    exhausted = [at for at in ours if _is_exhausted(at)]
    candidates = exhausted or under[:1] or ours
    return min(candidates, key=lambda at: (_is_writable(at), shutil.disk_usage(at).free))


def _is_exhausted(folder: Path) -> bool:
    usage = shutil.disk_usage(folder)
    return not _is_writable(folder) or usage.free * 100 < usage.total


def _existing(path: Path) -> Path:
    """Return the nearest folder at or above ``path`` that is there."""
    # Of what lies in a folder that this user may not search, `Path` would raise.
    return next((at for at in (path, *path.parents) if os.path.isdir(at)), Path("/"))


def _is_writable(folder: Path) -> bool:
    return not os.statvfs(folder).f_flag & os.ST_RDONLY


def refuse_read_only_volumes(*folders: Path) -> None:
    """Do nothing where each folder, which may not be there yet, lies on a volume for writing.

    Raises:
        OSError: one does not.
    """
    for folder in folders:
        if not _is_writable(_existing(folder)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(folder))


def make_folder(path: Path, what: str) -> None:
    """Make a folder that runs write in.

    Raises:
        SetupError: it cannot be written in.
        OSError: its volume is full, read-only or failing.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        problem = "" if is_writable_folder(path) else "no permission"
    except OSError as error:
        if is_storage_error(error):
            raise
        problem = str(error.strerror)
    file = next((at for at in (path, *path.parents) if os.path.isfile(at)), None)
    if file is not None:
        raise SetupError(f"{what} cannot be written in: {file} is a file. Next: ls -ld {file}")
    if problem:
        refuse_read_only_volumes(path)
        raise SetupError(
            f"{what} cannot be written in ({path}: {problem}). Next: ls -ld {_existing(path)}"
        )


def is_writable_folder(path: Path) -> bool:
    """Tell whether a folder, or the nearest one above it that is there, can be written in."""
    return os.access(_existing(path), os.W_OK | os.X_OK)
