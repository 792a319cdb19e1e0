"""A lease: the lock of a store, and of a file system that has none of its own.

An object says who holds a stream. It is put only in the place of the one that was read, renewed
while its holder lives, and taken over when that has stopped: at once where it can be seen to be
dead, else when it was not renewed for as long as the object says. Each holder has a token that is
higher than the last one's.

It saves work; the promise does not depend on it: a run that slept past the end of its lease loses
the race for the next commit, which is put only where none is, and nothing else of it counts.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from pydantic import TypeAdapter

from oncelake.ingestion.errors import StreamLockedError
from oncelake.ingestion.storage.location import Location, ObjectChangedError, StoreError, Tag
from oncelake.ingestion.storage.processes import ProcessId, seconds_since_boot, this_machine

# How often a lease is renewed before it would expire.
_RENEWALS = 4
_ATTEMPTS = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Lease:
    """Who holds a stream, or was the last to do so.

    Attributes:
        token: One more than the last holder's.
        since: When it began, UTC, ISO 8601.
        seconds: How long it holds when it is not renewed.
        machine: Where its processes can be seen by their ids.
        workers: What may commit under it: the driver, then its JVM.
        renewed: How often it was renewed; a store's tag is the same for the same content.
        is_released: Whether its holder has let go of it.
    """

    token: int
    run_id: str
    host: str
    since: str
    seconds: float
    machine: str
    workers: tuple[ProcessId, ...]
    renewed: int = 0
    is_released: bool = False

    @property
    def is_here(self) -> bool:
        """Tell whether its processes can be seen from here."""
        return self.machine == this_machine()

    def living(self) -> tuple[ProcessId, ...]:
        """Return those of its processes that still run, seen from its own machine."""
        return tuple(worker for worker in self.workers if worker.is_alive())


_LEASE = TypeAdapter(Lease)


def read_lease(place: Location) -> Lease | None:
    """Return a stream's lease while somebody holds it."""
    lease = last_lease(place)
    return None if lease is None or _is_over(place, lease) else lease


def last_lease(place: Location) -> Lease | None:
    """Return a stream's lease, also when nobody holds it any more."""
    found = _read(place)
    return found and found[0]


def release(place: Location) -> None:
    """Release a lease for its holder, which is dead or reported dead."""
    if found := _read(place):
        with suppress(ObjectChangedError):
            place.replace(_LEASE.dump_json(replace(found[0], is_released=True)), found[1])


@contextmanager
def leased(place: Location, lease: Lease) -> Iterator[None]:
    """Hold a lease while the block runs, and renew it; the token is set here.

    Raises:
        StreamLockedError: another one holds it.
    """
    began = seconds_since_boot()
    lease, tag = _take(place, lease)
    held = _HELD[place] = _Renewal(place, lease, tag, began)
    held.start()
    try:
        yield
    finally:
        del _HELD[place]
        held.end()


def is_lost(place: Location) -> bool:
    """Tell whether this process held a lease for longer than it lasts without being renewed."""
    return place in _HELD and _HELD[place].is_lost


def _take(place: Location, lease: Lease) -> tuple[Lease, Tag]:
    """Take a lease that nobody has; who got in before may have let go of it already."""
    for _ in range(_ATTEMPTS):
        found = _read(place)
        if found and not _is_over(place, found[0]):
            break
        try:
            if found is None:
                return lease, place.create(_LEASE.dump_json(lease))
            before, tag = found
            lease = replace(lease, token=before.token + 1)
            return lease, place.replace(_LEASE.dump_json(lease), tag)
        except (FileExistsError, ObjectChangedError, StoreError) as error:
            if ours := _tag_of(place, lease):
                return lease, ours
            if isinstance(error, StoreError):
                raise
    raise StreamLockedError(str(place))


def _tag_of(place: Location, lease: Lease) -> Tag | None:
    """Return the tag of a lease that is there although its answer was lost; ``None`` of another.

    A client that got no answer puts it again, and is told that it was changed meanwhile.
    """
    found = _read(place)
    return found[1] if found and replace(found[0], renewed=lease.renewed) == lease else None


def _read(place: Location) -> tuple[Lease, Tag] | None:
    try:
        content, tag = place.read_tagged()
    except FileNotFoundError:
        return None
    return _LEASE.validate_json(content), tag


def _is_over(place: Location, lease: Lease) -> bool:
    """Tell whether a lease has ended; one of another machine by the store's clock."""
    if lease.is_released:
        return True
    if lease.is_here and not lease.living():
        return True
    try:
        return place.age_seconds() > lease.seconds
    except PermissionError:
        # Who may only read cannot ask for the store's time.
        return False


class _Renewal(threading.Thread):
    """Renews a lease until it is let go of."""

    def __init__(self, place: Location, lease: Lease, tag: Tag, began: float) -> None:
        super().__init__(name=f"lease of {lease.run_id}", daemon=True)
        self._is_taken_over = False
        self._renewed_at = began
        self._place, self._lease, self._tag = place, lease, tag
        self._ended = threading.Event()

    @property
    def is_lost(self) -> bool:
        """Tell whether another one may hold it; a process that slept learns it by the clock."""
        return self._is_taken_over or seconds_since_boot() - self._renewed_at > self._lease.seconds

    def run(self) -> None:
        """Renew it in time; where the store does not answer, try again the next time."""
        while not self._ended.wait(self._lease.seconds / _RENEWALS):
            with suppress(OSError):
                self._lease = replace(self._lease, renewed=self._lease.renewed + 1)
                self._put(self._lease)

    def end(self) -> None:
        """Let go of the lease, if it is still ours."""
        self._ended.set()
        self.join()
        # Where the store does not answer, it ends by itself.
        with suppress(OSError):
            self._put(replace(self._lease, is_released=True))

    def _put(self, lease: Lease) -> None:
        if self._is_taken_over:
            return
        began = seconds_since_boot()
        tag: Tag | None
        try:
            tag = self._place.replace(_LEASE.dump_json(lease), self._tag)
        except ObjectChangedError:
            tag = _tag_of(self._place, lease)
        self._is_taken_over = tag is None
        self._tag, self._renewed_at = tag or self._tag, began


# The leases that this process holds.
_HELD: dict[Location, _Renewal] = {}
