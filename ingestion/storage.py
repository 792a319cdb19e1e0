"""Volumes that are full, read-only or failing: named, with what is left on them.

The same failure comes as an ``OSError`` from Python, as a text from delta-rs and from Arrow, and
as a stack trace from the JVM; here each becomes one sentence with the volume's path.
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

from ingestion.errors import IngestionError, StorageError

_ADVICE: Final = {
    errno.ENOSPC: "make space there",
    errno.EDQUOT: "raise the quota, or make space there",
    errno.EROFS: "mount it for writing again",
    errno.EIO: "look into the kernel's log, and mend or replace the disk",
}
# The kernel's words, and the number that Rust puts behind them; some layers keep only one.
_WORDS: Final = {
    code: re.compile(rf"{os.strerror(code)}|\bos error {code}\b", re.IGNORECASE) for code in _ADVICE
}
_PATH: Final = re.compile(r"/[^\s'\":(){}\[\],;]+")


def is_the_volumes_fault(error: BaseException) -> bool:
    """Tell a failing volume from a file that is wrong."""
    return _code(error) is not None


@contextmanager
def told_by_volume(stream: str, *folders: Path) -> Iterator[None]:
    """Translate what any layer raises when a volume is full, read-only or failing.

    Args:
        stream: The stream that was stopped.
        folders: Where it writes; one of them is named when the failure itself names no path.

    Raises:
        StorageError: names the volume and what is free on it.
    """
    try:
        yield
    except IngestionError:
        raise
    except Exception as error:
        code = _code(error)
        if code is None:
            raise
        raise _told(stream, code, _place(error, folders)) from error


def _told(stream: str, code: int, place: Path) -> StorageError:
    usage = shutil.disk_usage(place)
    return StorageError(
        f"{stream}: {os.strerror(code)}: {_mount(place)} (holds {place}; {usage.free:,} of "
        f"{usage.total:,} bytes are free). Nothing is lost, and nothing is half done: what was not "
        f"committed is read again. Next: {_ADVICE[code]}, then oncelake run {stream}"
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
    return min(exhausted or under[:1] or ours, key=lambda at: (_is_writable(at), _free(at)))


def _is_exhausted(folder: Path) -> bool:
    usage = shutil.disk_usage(folder)
    return not _is_writable(folder) or usage.free * 100 < usage.total


def _existing(path: Path) -> Path:
    """Return the nearest folder at or above ``path`` that is there."""
    return next((at for at in (path, *path.parents) if at.is_dir()), Path("/"))


def _is_writable(folder: Path) -> bool:
    return not os.statvfs(folder).f_flag & os.ST_RDONLY


def _free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def _mount(place: Path) -> Path:
    return next(at for at in (place.resolve(), *place.resolve().parents) if at.is_mount())
