"""How a process may end, and how a world must end: judged once the process, or the fault, is gone.

A refusal is right only where a person's word is needed; and when faults stop, two runs must do.
"""

from __future__ import annotations

from oncelake.ingestion.errors import (
    DependencyError,
    InvalidSpecError,
    OffsetHoleError,
    OffsetsExpiredError,
    RecordsMissedError,
    RefusedError,
    RewindError,
    SchemaChangedError,
    SideTableIncompleteError,
    StreamLockedError,
    TableBusyError,
    TopicRecreatedError,
    TopicTruncatedError,
    UnbalancedBatchError,
)
from oncelake.ingestion.pipeline.report import RunReport
from tests.model.cluster import TOPIC
from tests.model.evolution import HOSTS
from tests.model.oracle import Oracle, expect
from tests.model.process import CallFailedError, Crash, Process
from tests.model.world import World

# A topic made again, then a red batch, then a loss: more cannot have come together.
ENOUGH_WORDS = 4
_TRANSIENT = (StreamLockedError, TableBusyError, DependencyError, CallFailedError, Crash)


def judge(world: World, oracle: Oracle, process: Process) -> None:
    """Make sure that a process ended as it may.

    Raises:
        ViolationError: it ended otherwise.
    """
    outcome = process.outcome
    if isinstance(outcome, RunReport):
        expect(not outcome.is_balanced or outcome.seq <= oracle.seq, "a report of a seq to come")
    elif isinstance(outcome, BaseException) and not isinstance(outcome, _TRANSIENT):
        # A zombie, and who works beside one, decides by what has changed since: it may stop.
        stops = isinstance(outcome, RefusedError) and bool(world.zombies)
        is_due = stops or _is_due(world, oracle, outcome)
        expect(is_due, "{} ended by {!r}", process.name, outcome)


def _is_due(world: World, oracle: Oracle, error: BaseException) -> bool:
    """Tell whether something in the world justifies an error that is not transient."""
    known = [each for each in oracle.metadata.values() if each.kind != "schema" or each.seq == 0]
    topic_ids = {metadata.identity.topic_ids[TOPIC] for metadata in known[-1:]}
    match error:
        case TopicRecreatedError() | TopicTruncatedError():
            return world.cluster.topic_id not in topic_ids or oracle.is_cut
        case OffsetsExpiredError():
            return bool(_lost(world, oracle))
        case OffsetHoleError():
            # A partition that came after the start, and had lost its first records before it did.
            grown = {"topic re-created", "partition added"} & world.taken.keys()
            return bool(grown) and "retention" in world.taken
        case UnbalancedBatchError():
            return bool(world.spoiled.keys() - oracle.accepted)
        case SideTableIncompleteError():
            # A record that came twice is in quarantine twice, which a person has accepted.
            return bool(world.spoiled)
        case RecordsMissedError():
            # One that is made again, or cut, while its gaps are proven is not what was read.
            return bool({"record skipped", "topic re-created", "log cut"} & world.taken.keys())
        case RewindError():
            return True
        case SchemaChangedError():
            # Whoever made the table knew more columns, and died before it could note them.
            return not known
        case InvalidSpecError():
            return _answers_a_person(error)
        case _:
            return False


def _answers_a_person(error: InvalidSpecError) -> bool:
    """Tell the answer to a person who decides what needs no decision."""
    answers = ("nothing to a", "no table yet", "there is no savepoint")
    return any(answer in str(error) for answer in answers)


def _lost(world: World, oracle: Oracle) -> list[int]:
    return [
        number
        for number, part in enumerate(world.cluster.partitions)
        if part.first > oracle.next.get(number, 0)
    ]


def settle(world: World, oracle: Oracle) -> None:
    """Stop every fault, and run until nothing is left to read.

    Raises:
        ViolationError: two runs in a row do not do, or what they leave is not what must be.
    """
    for process in world.processes:
        process.kill()
    world.sweep()
    world.zombies.clear()
    world.armed.clear()
    for part in world.cluster.partitions:
        part.open_from = None
    runs = words = 0
    while True:
        outcome = _alone(world, oracle, world.start_run())
        if isinstance(outcome, RefusedError):
            _decide(world, oracle, outcome)
            runs, words = 0, words + 1
            expect(words <= ENOUGH_WORDS, "a person was asked {} times: {}", words, outcome)
            continue
        runs += 1
        expect(isinstance(outcome, RunReport), "a run without faults ended by {!r}", outcome)
        if outcome.lag == 0:
            break
        expect(runs < 2, "after {} runs without faults {} offsets are unread", runs, outcome.lag)
    _check_the_end(world, oracle)


def _alone(world: World, oracle: Oracle, process: Process) -> object:
    process.finish()
    world.sweep()
    oracle.look()
    judge(world, oracle, process)
    return process.outcome


def _decide(world: World, oracle: Oracle, refusal: RefusedError) -> None:
    """Give a person's word, which must be enough."""
    if isinstance(refusal, SchemaChangedError):
        assert world.paths.data.table is not None
        world.files = world.paths.data.table.columns[-1:] * HOSTS
        return
    is_adopt = isinstance(refusal, TopicRecreatedError | TopicTruncatedError)
    process = world.start_adopt() if is_adopt else world.start_accept()
    said = _alone(world, oracle, process)
    expect(not isinstance(said, Exception), "a person's word was not taken: {!r}", said)


def _check_the_end(world: World, oracle: Oracle) -> None:
    """Everything is read, every commit has its ledger row, and another run does nothing."""
    for number, part in enumerate(world.cluster.partitions):
        at = oracle.next.get(number, 0)
        expect(
            at == part.stable_end, "partition {} ends at {}, not {}", number, part.stable_end, at
        )
    table = world.paths.data.table
    assert table is not None
    known = sorted(seq for _, seq in world.ledger)
    expect(known == sorted(set(oracle.metadata) - {0}), "the ledger holds seqs {}", known)
    versions = len(table.commits)
    outcome = _alone(world, oracle, world.start_run())
    idle = len(table.commits) == versions and isinstance(outcome, RunReport) and not outcome.batches
    expect(idle, "a run with nothing to read committed something")
