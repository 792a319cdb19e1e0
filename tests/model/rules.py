"""What may happen next: the rules that a schedule draws from, in the two ways of drawing.

A rule is a function of a world and dice, and returns whether it did anything. ``explore`` draws
them by ``random.Random``, quickly; ``test_model`` lets hypothesis draw and shrink them.
"""

from __future__ import annotations

from tests.model.lake_rules import (
    commit_by_somebody_else,
    let_commits_age,
    lose_the_ledger,
    set_the_clock_back,
    spoil_the_checkpoint,
)
from tests.model.process_rules import (
    Rule,
    accept,
    adopt,
    arm,
    change_the_batch_size,
    erase,
    fail,
    finish,
    go_on,
    kill,
    lose_the_lock,
    maintain,
    redrive,
    rewind,
    start_a_run,
)
from tests.model.topic_rules import (
    add_a_partition,
    change_the_leader,
    cut_a_log,
    end_a_transaction,
    leave_a_gap,
    move_the_schema,
    open_a_transaction,
    produce,
    recreate_the_topic,
    retain_less,
)

# Each rule and its weight: how often a schedule draws it.
RULES: tuple[tuple[Rule, int], ...] = (
    (produce, 12),
    (leave_a_gap, 3),
    (move_the_schema, 4),
    (open_a_transaction, 2),
    (end_a_transaction, 2),
    (add_a_partition, 2),
    (retain_less, 1),
    (recreate_the_topic, 2),
    (change_the_leader, 2),
    (cut_a_log, 1),
    (start_a_run, 14),
    (accept, 1),
    (adopt, 1),
    (redrive, 8),
    (rewind, 2),
    (maintain, 2),
    (erase, 1),
    (go_on, 24),
    (finish, 8),
    (kill, 7),
    (fail, 4),
    (lose_the_lock, 4),
    (lose_the_ledger, 2),
    (let_commits_age, 1),
    (set_the_clock_back, 1),
    (commit_by_somebody_else, 2),
    (spoil_the_checkpoint, 2),
    (arm("batch repeated", "reordered", "record skipped", "record doubled", "winner dropped"), 3),
    (change_the_batch_size, 2),
)
