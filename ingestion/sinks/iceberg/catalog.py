"""A stream's table as its Iceberg catalog knows it: how it is loaded, and committed to once.

A commit requires the very snapshot, columns, partitions and table that were loaded: pyiceberg's
own transactions would put a stale commit on top of whatever came between.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
from pyarrow.fs import FileSystem
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    ForbiddenError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    RESTError,
    UnauthorizedError,
    WaitingForLockException,
)
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent, ManifestFile
from pyiceberg.table import ManifestGroupPlanner, Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    AssertDefaultSortOrderId,
    AssertDefaultSpecId,
    AssertLastAssignedFieldId,
    AssertLastAssignedPartitionId,
    AssertTableUUID,
    TableUpdate,
)
from pyiceberg.typedef import Properties
from pyiceberg.utils.config import Config
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from oncelake.ingestion.declaration.sinks import IcebergSink
from oncelake.ingestion.errors import (
    AGAIN,
    DamagedTableError,
    DependencyError,
    IngestionError,
    InvalidSpecError,
    MissingRightError,
    RefusedError,
    SinkUnavailableError,
    TableBusyError,
    first_line,
)
from oncelake.ingestion.settings import variables_of
from oncelake.ingestion.sinks.iceberg import branches, names
from oncelake.ingestion.sinks.iceberg.files import DurableFileIO, LiveFile, is_live
from oncelake.ingestion.storage.location import Location
from oncelake.ingestion.tables.commit_log import UnknownOutcomeError

# How long one of two committing processes waits for the other.
_SQLITE_SECONDS: Final = 60
# How long a catalog may take to accept a connection, and to answer.
_REQUEST_SECONDS: Final = (5.0, 60.0)
_SHORTEST_SECRET: Final = 6
IDEMPOTENCY_KEY: Final = "Idempotency-Key"
# What names the moment at which credentials of a store end, in milliseconds.
_ENDS: Final = ("expires-at", "expiration-time")
# What credentials that a catalog lends are called, and how long those live at least that name no
# end: as long as AWS's shortest session.
_LENT: Final = ("s3.session-token", "gcs.oauth2.token", "adls.sas-token")
_LEAST_LIFE_SECONDS: Final = 900.0
# By these packages catalogs are asked that raise errors of their own.
_CLIENTS: Final = frozenset({"botocore", "thrift", "pydantic", "pydantic_core"})
# What a catalog raises that has certainly not committed: one that is busy may do so later.
_DENIALS: Final = (UnauthorizedError, ForbiddenError)
_REFUSALS: Final = (BadRequestError, *_DENIALS)
# What those say that have no class for it: AWS's services, and Arrow of a store.
_DENIED: Final = ("AccessDenied", "ACCESS_DENIED", "AccessControlException")
_HIVE: Final = ("hive", "thrift:")


class OvertakenError(TableBusyError):
    """Somebody else has committed before; the table is there to be looked at again."""


class ShownTable(Table):
    """A table, or what is shown of it as one.

    Attributes:
        stored: The metadata that the catalog has.
    """

    def __init__(self, table: Table, metadata: TableMetadata) -> None:
        """Show other metadata of a table that was loaded."""
        name, where, catalog = table.name(), table.metadata_location, table.catalog
        super().__init__(name, metadata, where, table.io, catalog, table.config)
        self.stored = table.metadata


@dataclass(kw_only=True)
class CatalogEntry:
    """The table of a stream in a catalog; it need not be there.

    Attributes:
        part: The branch or tag that has the table, as Spark writes it: ``branch_…`` or ``tag_…``.
        catalog: The catalog's name in pyiceberg's configuration.
        configuration: What that says of it.
        folder: Where the lake's own catalog is, if the configuration has none.
        is_for_spark: Whether columns are stored by names that Iceberg's library for Spark can read.
        table_id: Of the table that a log has read last, or that was made.
        files: Those of the table that was loaded last, where credentials for them are lent.
    """

    stream: str
    identifier: tuple[str, ...]
    part: str = ""
    catalog: str
    configuration: Mapping[str, Any] | None
    folder: Path | None
    is_for_spark: bool = False
    table_id: str | None = field(default=None, init=False)
    files: LentFileIO | None = field(default=None, init=False)

    @classmethod
    def of(cls, stream: str, sink: IcebergSink, lake: Location) -> CatalogEntry:
        """Find the catalog.

        Raises:
            InvalidSpecError: it is not in pyiceberg's configuration, and the lake, which would
                have one of its own, is not on this machine.
        """
        for variable, value in variables_of("PYICEBERG_").items():
            os.environ.setdefault(variable, value)
        config = Config()
        name = sink.catalog or config.get_default_catalog_name()
        configuration = config.get_catalog_config(name)
        if configuration is None and sink.catalog:
            known = ", ".join(config.get_known_catalogs()) or "none"
            raise InvalidSpecError(
                f"{stream}: pyiceberg's configuration has no catalog {name} (it has {known}). "
                f"Next: add it to .pyiceberg.yaml, or set PYICEBERG_CATALOG__{name.upper()}__URI"
            )
        if configuration is None and not lake.is_local:
            raise InvalidSpecError(
                f"{stream}: a lake in a store has no Iceberg catalog of its own. Next: configure "
                "one for pyiceberg, by .pyiceberg.yaml or PYICEBERG_CATALOG__DEFAULT__URI"
            )
        namespace, table, *part = sink.table_of(stream).split(".")
        return cls(
            stream=stream,
            identifier=(namespace, table),
            part="".join(part),
            catalog=name,
            configuration=configuration,
            folder=lake.path / ".iceberg" if configuration is None else None,
            is_for_spark=sink.spark_names,
        )

    @property
    def name(self) -> str:
        """Name the table as SQL does."""
        return ".".join([*self.identifier, *filter(None, [self.part])])

    @property
    def ref(self) -> str:
        """Name the branch or tag that has the table."""
        return self.part.partition("_")[2] or MAIN_BRANCH

    @property
    def where(self) -> str:
        """Name the table, and its catalog."""
        catalog = f"in {self.folder}" if self.folder else f"of catalog {self.catalog}"
        return f"{self.name} (Iceberg, {catalog})"

    @cached_property
    def _catalog(self) -> Catalog:
        if self.folder is None:
            configuration = self.configuration or {}
            _limit_requests()
            # As pyiceberg does, by its type or its address.
            if str(configuration.get("type", configuration.get("uri"))).startswith(_HIVE):
                _improve_hive()
            try:
                return load_catalog(self.catalog, **configuration)
            except (ValueError, NotInstalledError) as error:
                if _is_of_a_client(error):
                    raise  # Such as an answer that is not of a catalog.
                # What is wrong with an address may have a part of its password in it.
                is_safe = isinstance(error, NotInstalledError)
                why = self.reason(error) if is_safe else "its type or its uri cannot be read"
                raise InvalidSpecError(
                    f"{self.stream}: pyiceberg's configuration of catalog {self.catalog} is "
                    f"wrong: {why}. Next: correct it; an @ in a password is written %40"
                ) from error
        self.folder.mkdir(parents=True, exist_ok=True)
        uri = f"sqlite:///{self.folder}/catalog.db?timeout={_SQLITE_SECONDS}"
        durable = f"{DurableFileIO.__module__}.{DurableFileIO.__name__}"
        warehouse = f"{self.folder}/warehouse"
        properties = {"uri": uri, "warehouse": warehouse, PY_IO_IMPL: durable}
        # Another process may make the catalog's tables at the same moment.
        with suppress(OperationalError):
            return SqlCatalog("oncelake", **properties)
        return SqlCatalog("oncelake", **properties)

    @contextmanager
    def session(self) -> Iterator[Catalog]:
        """Speak to the catalog, with errors translated; no connection is left open."""
        with self.translated(), closing(self._catalog) as catalog:
            yield catalog

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Translate what the catalog, and the files that it leads to, raise.

        Raises:
            DependencyError: the catalog does not answer, or a file cannot be reached; or one of
                them does not let us.
            RefusedError: the catalog does not do what it is asked for.
            DamagedTableError: a file is missing, or is not what it should be.
            TableBusyError: somebody else has changed the table.
        """
        try:
            yield
        except CommitFailedException as error:
            raise self._refusal(error) from error
        except FileNotFoundError as error:
            raise self.damaged(f"a file is missing ({first_line(error)})") from error
        except pa.ArrowInvalid as error:
            raise self.damaged(f"a file cannot be read ({first_line(error)})") from error
        except (RESTError, SQLAlchemyError, OSError) as error:
            if isinstance(error, OSError) and self.folder:
                if error.errno is None:  # Of Parquet itself; one of the volume has a number.
                    raise self.damaged(f"a file cannot be read ({first_line(error)})") from error
                raise  # Whoever knows the volumes names the one that fails.
            raise self._unavailable(error) from error
        except Exception as error:
            if (other := self._translation_of(error)) is None:
                raise
            raise other from error

    def _translation_of(self, error: Exception) -> IngestionError | None:
        # Arrow has a kind of its own, of values.
        if type(error) is NotImplementedError:
            return RefusedError(
                self.stream,
                f"{self.where}: its catalog does not do that: {self.reason(error)}.",
                remedy="take one that does, or let it do so; then run the same command again",
            )
        return self._unavailable(error) if _is_of_a_client(error) else None

    def _unavailable(self, error: Exception) -> DependencyError:
        if isinstance(error, _DENIALS) or any(word in str(error) for word in _DENIED):
            return MissingRightError(
                f"{self.stream}: {self.where}: its catalog or store refuses us: "
                f"{self.reason(error)}. Next: grant the login of pyiceberg's configuration what "
                "docs/catalogs.md lists"
            )
        remedy = (
            "check that the catalog and its store are up, and pyiceberg's configuration of them"
        )
        if isinstance(error, OSError) and self.files and self.files.has_ended:
            remedy = (
                "let the catalog lend credentials for longer: those of a file ended while it was "
                "open; or let a batch have less, by max_offsets_per_trigger"
            )
        return SinkUnavailableError(
            f"{self.stream}: {self.where} does not answer as it should: {self.reason(error)}. "
            f"Next: {remedy}"
        )

    def reason(self, error: Exception) -> str:
        """Say what went wrong, without anything of the configuration that may be secret."""
        text = first_line(error) or type(error).__name__
        values = list(_values_in(self.configuration or {}))
        for value in values + [urlsplit(value).password or "" for value in values]:
            if len(value) >= _SHORTEST_SECRET:
                text = text.replace(value, "***")
        return text.rstrip(".")

    def damaged(self, what: str) -> DamagedTableError:
        """Return the error of a table that is not as it was written."""
        return DamagedTableError.of(self.stream, self.where, what)

    def offered_by(self, catalog: Catalog) -> set[str] | None:
        """Return what a server of REST says that it can do; another kind of catalog says nothing.

        The words are the names that pyiceberg's ``Capability`` has for them.
        """
        if not hasattr(catalog, "_supported_endpoints"):
            return None
        from pyiceberg.catalog.rest import Capability

        points = catalog._supported_endpoints
        named = {each: point for each, point in vars(Capability).items() if each.startswith("V1_")}
        return {each for each, point in named.items() if point in points}

    def load(self, *, as_stored: bool = False) -> ShownTable | None:
        """Load the table as it is now; to look makes no catalog.

        Args:
            as_stored: Whether its columns have the names of the catalog, and not our own.
        """
        if self.folder and not (self.folder / "catalog.db").exists():
            return None
        with self.session() as catalog, suppress(NoSuchTableError, NoSuchNamespaceError):
            table = catalog.load_table(self.identifier)
            given, own = table.io.properties, catalog.properties
            tokens = [name for name in given if name.startswith(_LENT)]
            lent = [name for name in tokens if given[name] != own.get(name)]
            if lent and type(table.io) is PyArrowFileIO:
                table.io = self.files = LentFileIO(given, self._renewed_credentials)
            metadata = branches.shown(table.metadata, self.ref)
            if metadata and not as_stored:
                metadata = names.with_own_names(metadata)
            return ShownTable(table, metadata) if metadata else None
        return None

    def _renewed_credentials(self) -> Properties:
        with self.session() as catalog, suppress(NoSuchTableError):
            return catalog.load_table(self.identifier).io.properties
        raise FileNotFoundError(f"{self.where} is not there")

    def loaded(self, *, as_stored: bool = False) -> ShownTable:
        """Load a table that must be there; see ``load``."""
        table = self.load(as_stored=as_stored)
        if table is None:
            raise FileNotFoundError(f"{self.where} is not there")
        return table

    def make_namespace(self, catalog: Catalog) -> None:
        """Make the namespace where it is not there: who may not needs one that somebody made."""
        namespace = self.identifier[:-1]
        if catalog.namespace_exists(namespace):
            return
        try:
            catalog.create_namespace_if_not_exists(namespace)
        except SQLAlchemyError:
            # Of two who make it at once, a database refuses the second.
            catalog.create_namespace_if_not_exists(namespace)

    def with_ending(self, ending: str) -> CatalogEntry:
        """Return the table of the same catalog whose name is this one's with an ending."""
        *namespace, name = self.identifier
        return replace(self, identifier=(*namespace, f"{name}{ending}"))

    def at(self, part: str) -> CatalogEntry:
        """Return the table that is in a branch or tag of this one; of none, the whole."""
        return replace(self, part=part)

    def rename(self, to: CatalogEntry) -> None:
        """Give the table the name of another of its catalog.

        Raises:
            RefusedError: the catalog cannot do that, or does not let us.
        """
        with self.session() as catalog:
            try:
                catalog.rename_table(self.identifier, to.identifier)
            except (NotImplementedError, *_REFUSALS) as error:
                raise RefusedError(
                    self.stream,
                    f"{self.where} cannot be renamed by its catalog: {self.reason(error)}.",
                    remedy="let the catalog do that, or take one that can; then run the same "
                    "command again",
                ) from error

    def set_aside(self) -> list[Table]:
        """Load the tables that were set aside, and may have their files beside this one's."""
        if self.folder is not None:
            return []
        *namespace, name = self.identifier
        with self.session() as catalog:
            tables = catalog.list_tables(tuple(namespace))
            return [catalog.load_table(each) for each in tables if each[-1].startswith(f"{name}__")]

    def new_location(self) -> str | None:
        """Return a folder that no table has had: one that was renamed keeps its own."""
        if self.folder is None:
            return None
        return "/".join([f"{self.folder}/warehouse", *self.identifier]) + f"-{uuid.uuid4().hex}"

    def data_files(self, table: Table, snapshot: Snapshot | None = None) -> list[LiveFile]:
        """List the data files of a snapshot, or of the current one, with what marks rows in them.

        Raises:
            RefusedError: rows are deleted by their values, of which no file says where they are.
        """
        snapshot = snapshot or table.current_snapshot()
        manifests = snapshot.manifests(table.io) if snapshot else []
        by_values = DataFileContent.EQUALITY_DELETES
        if any(each.content == by_values for each in self.delete_files(table, manifests)):
            raise RefusedError(
                self.stream,
                f"{self.where} has equality deletes, by which somebody else deletes rows without "
                "looking them up.",
                remedy=f"oncelake rebuild {self.stream}, which makes the table again of the topic; "
                "and let what writes them merge another way",
            )
        planner = ManifestGroupPlanner(table.metadata, table.io)
        tasks = planner.plan_files(manifests)
        return [LiveFile(task.file, frozenset(task.delete_files)) for task in tasks]

    def delete_files(self, table: Table, manifests: Iterable[ManifestFile]) -> Iterator[DataFile]:
        """List the delete files of a snapshot, also such as apply to no data file any more."""
        for manifest in manifests:
            if manifest.content == ManifestContent.DELETES and is_live(manifest):
                entries = manifest.fetch_manifest_entry(table.io)
                yield from (entry.data_file for entry in entries)

    def commit(
        self, table: ShownTable, updates: Sequence[TableUpdate], snapshot_id: int | None = None
    ) -> None:
        """Commit through the catalog, once, on top of exactly the table that was loaded.

        Args:
            snapshot_id: The snapshot that it brings, by which it is known whether it was made.

        Raises:
            TableBusyError: somebody else has changed the table. Nothing is visible.
            DependencyError: the catalog refuses. Nothing is visible.
            UnknownOutcomeError: no answer came.
        """
        stored, updates = table.stored, branches.translated(updates, table.stored, self.ref)
        if self.is_for_spark:
            updates = tuple(names.updates_for_spark(updates))
        required: tuple[Any, ...] = (
            *branches.requirements(updates, stored, self.ref),
            AssertTableUUID(uuid=stored.table_uuid),
            AssertLastAssignedFieldId(last_assigned_field_id=stored.last_column_id),
            AssertCurrentSchemaId(current_schema_id=stored.current_schema_id),
            AssertDefaultSpecId(default_spec_id=stored.default_spec_id),
            AssertDefaultSortOrderId(default_sort_order_id=stored.default_sort_order_id),
            AssertLastAssignedPartitionId(last_assigned_partition_id=stored.last_partition_id),
        )
        try:
            with closing(self._catalog) as catalog, _Idempotent(catalog):
                answer = catalog.commit_table(table, required, updates)
                if self.folder is not None:
                    # SQLite commits by removing its journal, of which only the folder tells.
                    Location.of(self.folder).sync()
                catalog._delete_old_metadata(table.io, stored, answer.metadata)
        except (CommitFailedException, *_REFUSALS) as error:
            # A retry of a commit without an answer is told that the table has changed.
            if not self._has(snapshot_id):
                raise self._refusal(error) from error
        # Every catalog has its own errors; whatever it is, files are kept that it may lead to.
        except Exception as error:
            raise self._unknown(error) from error

    def _refusal(self, error: Exception) -> TableBusyError | SinkUnavailableError:
        tail = f"({self.reason(error)}). Nothing was changed. Next: {AGAIN}"
        if isinstance(held := error.__cause__, WaitingForLockException):
            return TableBusyError(
                f"{self.stream}: {self.where}: its lock in the metastore is {self.reason(held)}. "
                "Nothing was changed. Next: wait until they are done; a lock of a client that died "
                f"ends, or is released, as docs/catalogs.md says; then {AGAIN}"
            )
        if isinstance(error, CommitFailedException):
            return OvertakenError(
                f"{self.stream}: {self.where}: somebody else changed the table meanwhile {tail}"
            )
        return SinkUnavailableError(
            f"{self.stream}: {self.where}: the catalog refused a commit {tail}"
        )

    def _has(self, snapshot_id: int | None) -> bool:
        try:
            table = self.load()
        except Exception as error:
            raise self._unknown(error) from error
        return table is not None and any(
            snapshot.snapshot_id == snapshot_id for snapshot in table.metadata.snapshots
        )

    def _unknown(self, error: Exception) -> UnknownOutcomeError:
        return UnknownOutcomeError.of(f"{self.stream}: {self.where}", self.reason(error))


class _Idempotent:
    """Gives the requests of a block a key, by which a REST catalog knows one that comes twice.

    It is a UUID of version 7, as their specification asks, which Python has no function for. Errors
    of Thrift cannot pass through ``contextmanager``: they are immutable.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._headers = vars(catalog)["_session"].headers if "_session" in vars(catalog) else {}

    def __enter__(self) -> None:
        # What is random there has the variant where it belongs.
        moment, random = time.time_ns() // 10**6, uuid.uuid4().int & (1 << 76) - 1
        self._headers[IDEMPOTENCY_KEY] = str(uuid.UUID(int=moment << 80 | 7 << 76 | random))

    def __exit__(self, *error: object) -> None:
        del self._headers[IDEMPOTENCY_KEY]


class LentFileIO(PyArrowFileIO):
    """Files of a table whose catalog lends the credentials for them, and for a while only.

    Before a file is opened of which less than a third of their life is left, they are renewed.
    """

    def __init__(self, properties: Properties, renew: Callable[[], Properties]) -> None:
        super().__init__(properties)
        self._renew, self._begin, self._lock = renew, time.time(), Lock()
        self._store_of = cache(self._initialize_fs)
        self.fs_by_scheme = self._renewed_store_of

    def _renewed_store_of(self, scheme: str, host: str | None = None) -> FileSystem:
        with self._lock:
            if (self._end - time.time()) * 3 <= self._end - self._begin:
                self._take_new()
            if self.has_ended:
                raise OSError("the credentials that its catalog lends for its files have ended")
            return self._store_of(scheme, host)

    def _take_new(self) -> None:
        try:
            self.properties, self._begin = self._renew(), time.time()
        except DependencyError:
            # The next file asks again, as long as those that are there are good.
            if self.has_ended:
                raise
            return
        self._store_of = cache(self._initialize_fs)

    @property
    def _end(self) -> float:
        given = self.properties.items()
        named = [value for name, value in given if any(each in name for each in _ENDS)]
        ends = [int(value) / 1000 for value in named if str(value).isdigit()]
        return min(ends, default=self._begin + _LEAST_LIFE_SECONDS)

    @property
    def has_ended(self) -> bool:
        """Tell whether no credentials are left."""
        return self._end <= time.time()


def _is_of_a_client(error: Exception) -> bool:
    return bool(_CLIENTS & {each.__module__.partition(".")[0] for each in type(error).__mro__})


def _values_in(configuration: Mapping[str, Any]) -> Iterator[str]:
    for value in configuration.values():
        yield from _values_in(value) if isinstance(value, Mapping) else (str(value),)


@cache
def _limit_requests() -> None:
    """Give a time-out to pyiceberg's requests to a catalog, and for its tokens, which have none."""
    import requests
    from pyiceberg.catalog import rest
    from pyiceberg.catalog.rest import auth

    class Session(requests.Session):
        def request(self, *given: Any, **options: Any) -> requests.Response:
            return super().request(*given, **{"timeout": _REQUEST_SECONDS, **options})

    def post(*given: Any, **options: Any) -> requests.Response:
        with Session() as session:
            return session.post(*given, **options)

    vars(rest)["Session"] = Session
    vars(auth)["requests"] = SimpleNamespace(post=post)


def _improve_hive() -> None:
    with suppress(ImportError):  # pyiceberg says what is missing.
        from oncelake.ingestion.sinks.iceberg.hive import improve_client

        improve_client(*_REQUEST_SECONDS)
