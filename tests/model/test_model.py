"""The protocol, tried against every fault that the model knows, in any order hypothesis finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import get_args

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.model import wrong_columns, wrong_offsets, wrong_steps
from tests.model.explore import apply_laws, explore
from tests.model.mutations import MUTATIONS, Mutation
from tests.model.oracle import Oracle
from tests.model.process_rules import Rule
from tests.model.rules import RULES
from tests.model.seams import simulated
from tests.model.verdict import settle
from tests.model.world import Locking, World
from tests.support.long import IS_LONG

DRAWN_AS_WEIGHED = [rule for rule, weight in RULES for _ in range(weight)]
DICE = st.randoms(use_true_random=False)
# The planted bug that hides best is found in schedule 9,642.
SCHEDULES = 20_000 if IS_LONG else 1_500
# The hardest mutation is found within a third of these.
ENOUGH = 20_000
# Those that take thousands of schedules; ``make mutants`` and ``LONG=1`` try them, too.
DEAR = {
    wrong_columns.columns_before_the_lock,
    wrong_offsets.cuts_looked_for_only_at_the_start,
    wrong_steps.files_of_the_living_removed,
    wrong_steps.projected_on_any_version,
    wrong_steps.rewind_leaves_the_marks,
    wrong_steps.rewind_undoes_what_follows,
    wrong_steps.vacuum_before_healing,
}
TRIED = [mutation for mutation in MUTATIONS if IS_LONG or mutation not in DEAR]


@pytest.fixture(autouse=True)
def _simulated() -> Iterator[None]:
    with simulated():
        yield


class Protocol(RuleBasedStateMachine):
    """A world in which anything may happen next, and after which everything must be well."""

    @initialize(
        partitions=st.integers(1, 3),
        locking=st.sampled_from(get_args(Locking)),
        follows=st.booleans(),
    )
    def begin(self, partitions: int, locking: Locking, follows: bool) -> None:
        """Begin with an empty topic."""
        self.world = World(partitions=partitions, locking=locking, follows=follows)
        self.oracle = Oracle(self.world)

    @rule(happens=st.sampled_from(DRAWN_AS_WEIGHED), dice=DICE)
    def something_happens(self, happens: Rule, dice: Random) -> None:
        """Apply any rule."""
        happens(self.world, dice)

    @invariant()
    def every_promise_holds(self) -> None:
        """Ask the oracle after every step."""
        if hasattr(self, "world"):
            apply_laws(self.world, self.oracle)

    def teardown(self) -> None:
        """Stop every fault: the stream must come to rest, whole."""
        if hasattr(self, "world"):
            settle(self.world, self.oracle)


def test_every_promise_holds_whatever_happens() -> None:
    """Runs, crashes, zombies and faults in any order lose nothing and double nothing."""
    run_state_machine_as_test(
        Protocol,
        settings=settings(
            max_examples=150,
            stateful_step_count=40,
            deadline=None,
            # The dice of ``python -m tests.model`` are for finding; these are for keeping.
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_seeded_schedules_hold() -> None:
    """The schedules that ``python -m tests.model`` draws hold, and every kind of fault occurs."""
    faults: Counter[str] = Counter()

    found = next(filter(None, (explore(seed, faults)[1] for seed in range(SCHEDULES))), None)

    assert found is None
    assert set(faults) >= {
        "accept",
        "adopt",
        "another writer",
        "leader changed",
        "log cut",
        "batch by local",
        "batch by spark",
        "batch repeated",
        "checkpoint spoilt",
        "clock set back",
        "commit overtaken",
        "commit: redrive",
        "commit: rewind",
        "commits aged out",
        "failure: hear of the commit",
        "failure: land the commit",
        "gap",
        "kill: hear of the commit",
        "kill: land the commit",
        "kill: project",
        "kill: write beside the table",
        "kill: write the ledger",
        "commit: erase",
        "ledger lost",
        "ledger rolled back",
        "maintain",
        "no lock",
        "open transaction",
        "partition added",
        "record doubled",
        "record skipped",
        "reordered",
        "retention",
        "topic re-created",
        "two at once",
        "winner dropped",
        "zombie",
    }


@pytest.mark.parametrize("mutation", TRIED, ids=lambda mutation: mutation.__name__)
def test_a_wrong_protocol_is_found_out(mutation: Mutation) -> None:
    """A protocol with one mistake has a counterexample among the first schedules."""
    with mutation():
        found = (explore(seed, Counter())[1] for seed in range(ENOUGH))

        assert any(found), f"{ENOUGH} schedules do not tell {mutation.__name__} from the protocol"
