"""One file, a stream and a table of its own for each of its topics."""

from __future__ import annotations

from pathlib import Path

import pytest

from oncelake.ingestion.declaration.files.loader import find_stream, load_streams, reload_stream
from oncelake.ingestion.errors import InvalidSpecError

EACH = """\
topics: [eu.paid, US-paid]
table_per_topic: true
schema: id BIGINT NOT NULL
keys: [id]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A streams' folder with one such file."""
    (tmp_path / "orders.yaml").write_text(EACH)
    return tmp_path


def test_a_stream_is_read_again_until_nothing_declares_it(folder: Path) -> None:
    """One of several in a file, too; once its topic, or the whole of its file, is gone, none is."""
    (paid, _) = load_streams(folder)

    same = reload_stream(paid)
    (folder / "orders.yaml").write_text(EACH.replace("eu.paid", "eu.sent"))
    without = reload_stream(paid)
    (folder / "orders.yaml").unlink()

    assert same == paid
    assert without is None
    assert reload_stream(paid) is None


def test_every_topic_becomes_a_stream(folder: Path) -> None:
    """The file's name is the prefix, and offsets to begin at go where they belong."""
    offsets = "starting: {offsets: {eu.paid: {0: 5}, US-paid: {0: 7}}}\n"
    (folder / "orders.yaml").write_text(EACH + offsets)

    found = load_streams(folder)

    assert [each.name for each in found] == ["orders_eu_paid", "orders_us_paid"]
    assert [each.spec and each.spec.subscribed for each in found] == [("eu.paid",), ("US-paid",)]
    us = find_stream(folder, "orders_us_paid")
    assert us.starting.offsets == {"US-paid": {0: 7}}
    with pytest.raises(InvalidSpecError, match="did you mean `orders_"):
        find_stream(folder, "orders")


@pytest.mark.parametrize(
    ("topics", "says"),
    [
        pytest.param("topics: [a.b, a_b]", "and so is topic 'a.b'", id="one name for two"),
        pytest.param("topics: [paid]", "and so is orders_paid.yaml", id="another file"),
        pytest.param(f"topics: [{'x' * 120}]", "at most 100 characters", id="long"),
        pytest.param("topic: a", "Write `topics: [a, b]`", id="one topic"),
        pytest.param("topic_pattern: a.*", "Next: oncelake discover orders", id="not known"),
    ],
)
def test_a_topic_without_a_name_of_its_own_is_refused(folder: Path, topics: str, says: str) -> None:
    """Two tables never share a name, and the file that would do it takes no other down."""
    (folder / "orders.yaml").write_text(EACH.replace("topics: [eu.paid, US-paid]", topics))
    (folder / "orders_paid.yaml").write_text("topic: t\nschema: id BIGINT NOT NULL\nkeys: id\n")

    by_name = {each.name: each for each in load_streams(folder)}

    assert by_name["orders_paid"].spec is not None
    assert says in str(by_name["orders"].error)


def test_a_table_of_a_topic_has_a_name_that_its_sink_takes(folder: Path) -> None:
    """What the topic makes too long is refused with the file, and a shorter topic is not."""
    (folder / "orders.yaml").write_text(f"{EACH}sink: postgres\n".replace("eu.paid", "x" * 48))

    (declared, *_) = load_streams(folder)

    assert "orders.yaml:5: sink: the table orders_xxx" in str(declared.error)
    assert "has 55 bytes, and may have 54" in str(declared.error)
    (folder / "orders.yaml").write_text(f"{EACH}sink: postgres\n".replace("eu.paid", "x" * 47))
    assert all(each.spec for each in load_streams(folder))
