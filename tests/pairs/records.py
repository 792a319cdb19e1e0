"""Random records: few keys, late ones, null values, repetitions, and some that are bad."""

from __future__ import annotations

import json
import random
from dataclasses import replace

from tests.pairs.plan import FIRST_MS, Message, Plan, Row

BATCHES = 3
PER_BATCH = 11
IDS = range(1, 7)


def messages_of(plan: Plan, dice: random.Random) -> list[list[Message]]:
    """Return the records of each batch, in the order in which they are sent."""
    draft = plan.draft or drafts
    batches = []
    for batch in range(BATCHES):
        made = draft(plan, dice, batch)
        for message in made:
            write_fields(plan, message, dice)
        batches.append(made)
    return batches


def drafts(plan: Plan, dice: random.Random, batch: int) -> list[Message]:
    """Draw the records of a batch."""
    made = list[Message]()
    for nth in range(PER_BATCH):
        clock = batch * PER_BATCH + nth
        row = draw_row(dice, clock)
        if made and dice.random() < 0.15:
            row = dict(dice.choice(made).row)
        late = 0 if plan.is_ordered else dice.choice([0, 0, 0, dice.randrange(20_000)])
        message = message_of(plan, row, FIRST_MS + clock * 1_000 - late, batch)
        if dice.random() < 0.15:
            message.value = None
        elif dice.random() < 0.12:
            spoil(plan, message, dice)
        made.append(message)
    return made


def message_of(plan: Plan, row: Row, time_ms: int, batch: int) -> Message:
    """Return the record of a row, whose value is still to be written."""
    place = row["id"]
    return Message(
        row=row,
        value=dict(row),
        time_ms=time_ms,
        batch=batch,
        partition=place % plan.partitions,
        topic=topic_of(plan, place),
    )


def topic_of(plan: Plan, id: int) -> str:
    """Return the topic in which the records of a key are."""
    return plan.topics[id // 2 % len(plan.topics)]


def draw_row(dice: random.Random, clock: int) -> Row:
    """Draw a row: by ``at`` it may be late, or as old as another."""
    return {
        "id": dice.choice(IDS),
        "name": dice.choice(["a", "b", "c", None]),
        "at": max(0, clock - dice.choice([0, 0, 0, 1, dice.randrange(12)])),
        "amount": dice.choice([None, *range(8)]),
        "state": dice.choice(["open", "open", "open", "closed", "gone"]),
    }


def spoil(plan: Plan, message: Message, dice: random.Random) -> None:
    """Make a record bad in one way, and in no other."""
    message.is_spoiled = True
    message.row |= {"state": "open", "amount": 5}
    message.value = dict(message.row)
    way = dice.choice(["type", "key", "bytes"])
    if way == "type":
        message.value["amount"] = message.row["amount"] = "much"
    elif way == "key":
        message.value["id"] = None
    else:
        message.fault = plan.broken[1]


def write_fields(plan: Plan, message: Message, dice: random.Random) -> None:
    """Let each field write its part, key and headers included."""
    for write in (*plan.writes, *plan.last_writes):
        write(plan, message, dice)
        if message.before is not None:
            # The row before is written as the row itself is; headers are those of the record.
            shadow = replace(message, value=message.before, row=message.before, headers={})
            write(plan, shadow, dice)
            assert isinstance(shadow.value, dict)
            message.before = shadow.value
    if message.key is None:
        message.key = {name: message.row.get(name) for name in plan.kafka_key}


def bytes_of(plan: Plan, message: Message) -> tuple[bytes | None, bytes | None]:
    """Return the key and the value of a record as they are sent."""
    key, value = message.key, message.value
    if isinstance(key, dict):
        encode_key = plan.encode_key or (lambda plan, row: json.dumps(row).encode())
        key = encode_key(plan, key)
    if message.fault and value is not None:
        value = value if isinstance(value, bytes) else plan.broken[0]
    elif isinstance(value, dict):
        encode = plan.encode or (lambda plan, message: json.dumps(message.value).encode())
        value = encode(plan, message)
    return key, value
