"""Everything that a doctor can find: the sentence, and the command that puts it right.

The examinations, those of Dagster in ``assets`` included, gather facts and choose from this list.
"""

from __future__ import annotations

from dataclasses import dataclass

from oncelake.ingestion.errors import DONE, UNREACHABLE, WRONG


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that a person should know.

    Attributes:
        about: The stream it befell, or the part of the installation.
        evidence: What shows it: ids, processes, times.
        exit_code: Code it ends the command with; 0 for a note, which is nobody's fault.
    """

    about: str
    what: str
    evidence: str
    command: str
    exit_code: int


@dataclass(frozen=True, slots=True)
class FindingKind:
    """A finding with blanks for the facts, ``{about}`` among them."""

    what: str
    command: str
    exit_code: int = WRONG

    def of(self, about: str, evidence: str, **facts: object) -> Finding:
        """Fill in the blanks."""
        return Finding(
            about=about,
            what=self.what.format(about=about, **facts),
            evidence=evidence,
            command=self.command.format(about=about, **facts),
            exit_code=self.exit_code,
        )


_NEXT_RUN = "oncelake run {about}"

# The machine.
UNFIT_JAVA = FindingKind(
    "Spark needs Java 17 or newer, and this is not it",
    "install a JDK, version 17, 21 or 25, and point JAVA_HOME to it",
)
MISSING_JARS = FindingKind("jars are not there, and cannot be fetched", "oncelake jars")
JARS_TO_FETCH = FindingKind("jars are fetched by the first that needs them", "oncelake jars", DONE)
UNWRITABLE_FOLDER = FindingKind("{folder} cannot be written in", "ls -ld {path}")
FULL_VOLUME = FindingKind("{folder} is on a volume that is almost full", "df -h {path}")

# What a run of a stream would meet.
SILENT_KAFKA = FindingKind("{problem}", "{remedy}", UNREACHABLE)
FAILING_RUN = FindingKind("{problem}", "{remedy}")
LOW_RETENTION = FindingKind("records may be lost before they are read", "oncelake run {about}")

# The catalog of a stream's Iceberg table.
SILENT_CATALOG = FindingKind(
    "its Iceberg catalog {catalog} does not answer as it should",
    "check that it is up, and pyiceberg's configuration of it",
    UNREACHABLE,
)
CLOSED_CATALOG = FindingKind(
    "its Iceberg catalog {catalog} does not let the login see the tables of {namespace}",
    "grant it the rights that docs/catalogs.md lists",
)
CATALOG_WITHOUT_COMMITS = FindingKind(
    "its Iceberg catalog {catalog} takes no commits",
    "name another catalog in sink, or let this one take them",
)
CATALOG_WITHOUT_RENAMES = FindingKind(
    "its Iceberg catalog {catalog} renames no table, so that reset is refused",
    "leave it, or name another catalog in sink",
    DONE,
)
NO_NAMESPACE = FindingKind(
    "the namespace {namespace} is not there, and Iceberg catalog {catalog} lets no client make one",
    "make the namespace {namespace}, as the catalog's own documentation says",
)
NEW_NAMESPACE = FindingKind(
    "the namespace {namespace} is not in Iceberg catalog {catalog} yet; the first run makes it",
    "oncelake run {about}",
    DONE,
)

# The entry of a stream's Delta table in a catalog.
WRONG_ENTRY = FindingKind("the entry {entry} {what}", "oncelake alter {about}, which writes it")
SILENT_ENTRY = FindingKind(
    "the entry {entry} cannot be compared with the table",
    "check that the catalog is up, and the login and its rights (docs/rights.md)",
    UNREACHABLE,
)
IMPOSSIBLE_ENTRY = FindingKind(
    "the entry {entry} cannot be written",
    "put right what the evidence says, then oncelake alter {about}",
)

# What the runs of a stream left.
RUN_UNDER_WAY = FindingKind("a run holds this stream", "wait for it to end", DONE)
RUN_ELSEWHERE = FindingKind(
    "a run holds this stream; it is on another machine", "wait for it to end", DONE
)
DEAD_HOLDER = FindingKind(
    "a run whose driver process has ended still holds this stream", "{release}"
)
UNRECORDED_COMMITS = FindingKind(
    "commits without a ledger row: a run died in between, or the ledger was lost", _NEXT_RUN
)
UNKNOWN_BATCHES = FindingKind(
    "batches of which neither the ledger, nor its copy, nor the table's log tells",
    "restore the ledger from a backup, or oncelake rebuild {about}",
)
OLD_GENERATIONS = FindingKind(
    "more generations of its Spark checkpoint than the one that a run leaves", _NEXT_RUN
)
COSTLY_MERGES = FindingKind(
    "merges copy many more rows than they change", "set deletion_vectors: true, or leave it", DONE
)
ORPHANED_CACHE = FindingKind(
    "a Spark checkpoint, or a key index, of a stream that is not declared", "rm -r {path}", DONE
)

# Dagster.
NO_DAGSTER = FindingKind(
    "no Dagster instance here", "set DAGSTER_HOME, if Dagster runs the streams", DONE
)
UNREADABLE_DAGSTER = FindingKind(
    "Dagster's instance at {home} cannot be read, so nothing is known of its runs",
    "DAGSTER_HOME={home} {command}",
)
DEAD_RUN = FindingKind("run {run} is {status}, and its process is gone", "{terminate}")
RUN_NOT_BEGUN = FindingKind("run {run} is {status}, and its process never began", "{terminate}")
QUEUED_BEHIND_ITS_STREAM = FindingKind(
    "run {run} has been waiting in the queue for run {other} of the same stream",
    "wait for it",
    DONE,
)
QUEUED_BEHIND_OTHERS = FindingKind(
    "run {run} has been waiting in the queue",
    "raise concurrency.runs.max_concurrent_runs in dagster.yaml",
)
LEAKED_SLOT = FindingKind(
    "the slot of pool {about} is claimed by run {run}, which is {status}", "{free}"
)
NO_DAEMON = FindingKind(
    "no daemon is running, and something waits for one",
    "{prefix}dagster-daemon run {workspace}",
)
TWO_LOCATIONS = FindingKind(
    "runs of several code locations take turns at this stream",
    "declare it in one of them alone, or set sensor: false in the others",
    DONE,
)
SENSOR_OFF = FindingKind(
    "nothing starts its runs: the sensor is off, no schedule is declared, and no automation "
    "condition did, which default_automation_condition_sensor evaluates once it is on",
    "{prefix}dagster sensor start {sensor} {workspace}",
    DONE,
)
UNTRIED_DAGSTER = FindingKind(
    "this Dagster is outside of the versions that Oncelake allows",
    "leave it, or install one of them (docs/tried.md)",
    DONE,
)
