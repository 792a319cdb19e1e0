"""Protocols that are wrong in one place: the model must find out about each of them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from tests.model import wrong_columns, wrong_offsets, wrong_steps

Mutation = Callable[[], AbstractContextManager[Any]]

MUTATIONS: tuple[Mutation, ...] = (
    wrong_steps.projected_before_the_commit,
    wrong_steps.every_file_projected,
    wrong_steps.crashes_projected_by_nobody,
    wrong_steps.projected_again,
    wrong_steps.projected_on_any_version,
    wrong_steps.ledger_before_the_projection,
    wrong_steps.rewind_leaves_the_side_tables,
    wrong_steps.rewind_leaves_the_marks,
    wrong_steps.rewind_undoes_what_follows,
    wrong_steps.marks_before_the_commit,
    wrong_steps.files_not_named,
    wrong_steps.vacuum_before_healing,
    wrong_steps.files_of_the_living_removed,
    wrong_steps.no_txn_fence,
    wrong_steps.no_look_for_the_txn,
    wrong_steps.no_read_back,
    wrong_steps.ledger_before_commit,
    wrong_steps.tombstones_not_remembered,
    wrong_steps.heal_omitted,
    wrong_offsets.position_from_the_checkpoint,
    wrong_offsets.unknown_partition_starts_at_its_end,
    wrong_offsets.topic_id_ignored,
    wrong_offsets.topic_id_asked_only_at_the_start,
    wrong_offsets.last_records_not_looked_for,
    wrong_offsets.cuts_looked_for_only_at_the_start,
    wrong_offsets.end_offset_off_by_one,
    wrong_offsets.repeated_batches_not_recognised,
    wrong_offsets.red_forgotten,
    wrong_offsets.books_not_looked_at,
    wrong_offsets.gaps_not_proven,
    wrong_columns.schemas_not_compared,
    wrong_columns.alteration_left_to_who_wrote_the_file,
    wrong_columns.columns_of_the_file_alone,
    wrong_columns.columns_before_the_lock,
)
