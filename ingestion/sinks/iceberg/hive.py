"""What pyiceberg's client of Hive's metastore lacks: time-outs, and commits that need no lock.

pyiceberg commits under a lock. It ends while a process is suspended for longer than the metastore
lets a lock live, and it stays when a process is killed. So a commit also names the metadata that it
replaces, which the metastore compares in the same act (HIVE-26882: 2.3.10, 4.0 and newer), and a
lock that a dead process of ours has left is released.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Final

from hive_metastore import ThriftHiveMetastore
from hive_metastore.ttypes import (
    CheckLockRequest,
    LockRequest,
    LockResponse,
    LockState,
    MetaException,
    ShowLocksRequest,
    ShowLocksResponseElement,
    UnlockRequest,
)
from hive_metastore.ttypes import Table as HiveTable
from pyiceberg.catalog import METADATA_LOCATION, MetastoreCatalog, hive
from pyiceberg.exceptions import CommitFailedException, WaitingForLockException
from thrift.transport import TSocket

# By this name our locks are known again.
_OURS: Final = "oncelake"
# As long as a metastore by itself lets a lock live; pyiceberg renews none.
_LOCK_SECONDS: Final = 300
_MODIFIED: Final = "The table has been modified"


def improve_client(connect_seconds: float, answer_seconds: float) -> None:
    """Let pyiceberg's catalogs of this process reach metastores by this module."""

    class Socket(TSocket.TSocket):  # type: ignore[misc]
        def open(self) -> None:
            self.setTimeout(connect_seconds * 1000)
            super().open()
            self.setTimeout(answer_seconds * 1000)

    vars(hive)["TSocket"] = SimpleNamespace(TSocket=Socket)
    vars(hive)["Client"] = Client
    # As its other catalogs do that have no server of files.
    hive.HiveCatalog.purge_table = MetastoreCatalog.purge_table  # type: ignore[method-assign]


class Client(ThriftHiveMetastore.Client):  # type: ignore[misc]
    """One connection to a metastore, which is used for one act."""

    def get_table(self, dbname: str, tbl_name: str) -> HiveTable:
        """Read a table, and keep in mind which metadata it has."""
        table = super().get_table(dbname, tbl_name)
        self._read = (table.parameters or {}).get(METADATA_LOCATION)
        return table

    def alter_table_with_environment_context(self, **given: Any) -> None:
        """Alter a table if it has the metadata that was read.

        Raises:
            CommitFailedException: it has others.
        """
        expected: dict[str, Any] = {"expected_parameter_key": METADATA_LOCATION}
        expected["expected_parameter_value"] = self._read
        given["environment_context"].properties |= expected
        try:
            super().alter_table_with_environment_context(**given)
        except MetaException as error:
            if _MODIFIED not in str(error.message):
                raise
            raise CommitFailedException(error.message) from error

    def lock(self, rqst: LockRequest) -> LockResponse:
        """Ask for a table's lock, and release what dead processes of ours have left before it."""
        rqst.agentInfo, [self._locked] = _OURS, rqst.component
        answer = super().lock(rqst)
        if answer.state == LockState.WAITING:
            for other, seconds in self._locks_before(answer.lockid):
                if other.agentInfo == _OURS and seconds > _LOCK_SECONDS:
                    self.unlock(UnlockRequest(lockid=other.lockid))
        return answer

    def check_lock(self, rqst: CheckLockRequest) -> LockResponse:
        """Ask for a lock again, which others hold.

        Raises:
            WaitingForLockException: they still do; says who.
        """
        answer = super().check_lock(rqst)
        if answer.state == LockState.WAITING:
            holders = (
                f"{each.user} on {each.hostname} for {seconds:.0f} s (lock {each.lockid})"
                for each, seconds in self._locks_before(rqst.lockid)
            )
            raise WaitingForLockException(f"held by {', '.join(holders)}")
        return answer

    def _locks_before(self, lock: int) -> Iterator[tuple[ShowLocksResponseElement, float]]:
        """Return the locks of the table that came before ours, and how long nobody renewed them."""
        asked = ShowLocksRequest(dbname=self._locked.dbname, tablename=self._locked.tablename)
        locks: list[Any] = self.show_locks(asked).locks
        now = max((each.lastheartbeat for each in locks if each.lockid == lock), default=0)
        before = (each for each in locks if each.lockid < lock)
        return ((each, (now - each.lastheartbeat) / 1000) for each in before)
