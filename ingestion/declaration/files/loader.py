"""The declared streams: the files of one folder.

A broken file never takes another down: it is listed with its error, and the caller that wanted all
of them decides what to do about it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from oncelake.ingestion.declaration.files.drafts import (
    Draft,
    file_name_problem,
    read_draft,
    shown_path,
)
from oncelake.ingestion.declaration.files.outlines import Outline
from oncelake.ingestion.declaration.files.streams import Outcome, drafts_of, outlines_of, streams_of
from oncelake.ingestion.declaration.files.topics import SUFFIX
from oncelake.ingestion.declaration.names import nearest_allowed, suggest
from oncelake.ingestion.declaration.sinks import SinkSpec
from oncelake.ingestion.declaration.spec import StreamSpec
from oncelake.ingestion.errors import BadFieldError, InvalidSpecError

Part = TypeVar("Part")


@dataclass(frozen=True, kw_only=True, slots=True)
class DeclaredStream:
    """One file of the streams' folder: a stream, or what is wrong with it.

    The name is one like the file's, and unique, where the file's own is not allowed.
    """

    name: str
    path: Path
    spec: StreamSpec | None
    error: InvalidSpecError | None

    @property
    def sink(self) -> SinkSpec | None:
        """The sink of its rows; ``None`` of a broken file."""
        return self.spec.sink if self.spec else None

    def require_spec(self) -> StreamSpec:
        """Return the stream.

        Raises:
            InvalidSpecError: the file is broken.
        """
        if self.spec is None:
            raise self.error or InvalidSpecError(str(self.path))
        return self.spec


def load_streams(folder: Path) -> tuple[DeclaredStream, ...]:
    """Read every declaration of a folder, the broken ones too; none when there is no folder.

    Raises:
        InvalidSpecError: ``folder`` is something else than a folder.
    """
    files = files_in(folder)
    taken = {path.stem: path for path in files if file_name_problem(path) is None}
    streams = list[DeclaredStream]()
    for path in files:
        is_named_well = file_name_problem(path) is None
        name = path.stem if is_named_well else nearest_allowed(path.stem, taken)
        declared = _streams_of(path, name, taken)
        taken |= {name: path, **{stream.name: path for stream in declared}}
        streams += declared
    return tuple(sorted(streams, key=lambda stream: stream.name))


class StreamFolder:
    """The declarations of a folder, read again when a file has come, gone or changed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: object = None
        self._declared: tuple[DeclaredStream, ...] = ()

    def read(self) -> tuple[DeclaredStream, ...]:
        """Return what is declared now."""
        stamp = sorted(filter(None, map(_stamp_of, self._path.glob("*"))))
        if stamp != self._stamp:
            self._declared, self._stamp = load_streams(self._path), stamp
        return self._declared


def find_stream(folder: Path, name: str) -> StreamSpec:
    """Read the declaration of one stream; the other files may be broken.

    Raises:
        InvalidSpecError: there is no such stream, or its file is broken.
    """
    by_name = {stream.name: stream for stream in load_streams(folder)}
    if name not in by_name:
        for stream in by_name.values():
            # A stream of a file of several is not known while that is broken.
            if stream.error and name.startswith(f"{stream.path.stem}_"):
                raise stream.error
        how = f"declare it in {shown_path(folder)}/<stream>.yaml"
        hint = suggest(name, by_name) if by_name else how
        raise InvalidSpecError(f"no stream is called {name!r} in {shown_path(folder)}; {hint}")
    return by_name[name].require_spec()


def load_stream(path: Path) -> StreamSpec:
    """Read one declaration, which has its topics and columns itself.

    Raises:
        InvalidSpecError: the file is broken; one line for each problem, with file, line, field
            and what to write instead.
    """
    return read_draft(path).spec()


def read_outlines(path: Path) -> list[Outline]:
    """Read what a file says of streams whose topics, or columns, stand in a file beside it.

    Raises:
        InvalidSpecError: the file is broken.
    """
    return outlines_of(read_draft(path))


def outlines_in(folder: Path) -> Iterator[Outline]:
    """Return those of the files of a folder that are sound."""
    return _parts_in(folder, outlines_of)


def reload_stream(declared: DeclaredStream) -> DeclaredStream | None:
    """Read a stream's file again; ``None`` when it declares that stream no longer."""
    path = declared.path
    if not path.exists():
        return None
    taken = {other.stem: other for other in files_in(path.parent)}
    streams = _streams_of(path, path.stem, taken)
    return next((stream for stream in streams if stream.name == declared.name), None)


@contextmanager
def locating_problems(folder: Path) -> Iterator[None]:
    """Give a problem with a field, which Spark has found, the file and line of that field.

    Raises:
        InvalidSpecError: instead of a ``BadFieldError``, where the stream's file is there.
    """
    try:
        yield
    except BadFieldError as error:
        drafts = _parts_in(folder, drafts_of)
        draft = next((each for each in drafts if each.name == error.stream), None)
        if draft is None:
            raise
        raise draft.problem(error.field, error.problem) from error


def _parts_in(folder: Path, parts_of: Callable[[Draft], list[Part]]) -> Iterator[Part]:
    """Yield the parts of the files of a folder that are sound."""
    for path in files_in(folder):
        with suppress(InvalidSpecError):
            yield from parts_of(read_draft(path))


def _stamp_of(file: Path) -> tuple[object, ...]:
    try:
        at = file.stat()
    except OSError:
        return ()
    return file.name, at.st_ino, at.st_mtime_ns, at.st_size


def files_in(folder: Path) -> list[Path]:
    """List the declarations, `.yml` before `.yaml` so that the right one of a pair wins."""
    if not folder.exists():
        return []
    if not folder.is_dir():
        raise InvalidSpecError(f"{shown_path(folder)} is not a folder; correct ONCELAKE_STREAMS")
    files = (path for path in folder.iterdir() if path.suffix.lower() in {".yaml", ".yml"})
    visible = (p for p in files if not p.name.startswith(".") and not p.name.endswith(SUFFIX))
    return sorted(visible, key=lambda path: (path.stem, path.suffix == ".yaml", path.name))


def _streams_of(path: Path, name: str, taken: Mapping[str, Path]) -> list[DeclaredStream]:
    """Read one file: its streams, or what is wrong with it, under a name that is allowed."""
    others = {stream: other.name for stream, other in taken.items() if other != path}
    try:
        outcomes = streams_of(read_draft(path), others)
    except InvalidSpecError as error:
        outcomes = {name: error}
    return [_declared(path, name, outcome) for name, outcome in outcomes.items()]


def _declared(path: Path, name: str, outcome: Outcome) -> DeclaredStream:
    if isinstance(outcome, StreamSpec):
        return DeclaredStream(name=name, path=path, spec=outcome, error=None)
    return DeclaredStream(name=name, path=path, spec=None, error=outcome)


def siblings_of(streams: Iterable[DeclaredStream]) -> list[list[DeclaredStream]]:
    """Put the streams of one routed file together, in the order of the first of each."""
    groups: dict[object, list[DeclaredStream]] = {}
    for each in streams:
        is_routed = each.spec is not None and each.spec.route is not None
        groups.setdefault(each.path if is_routed else each.name, []).append(each)
    return list(groups.values())
