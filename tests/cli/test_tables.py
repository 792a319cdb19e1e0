"""A table is read on the terminal that is there, and nothing of it is cut."""

from __future__ import annotations

import pytest

from oncelake.ingestion.cli import output

COLUMNS = ("reason", "records", "first", "last", "first seen (UTC)", "last seen (UTC)", "share")
ROW = (
    *("malformed_json", 1_234_567, "orders-0 offset 123", "orders-10 offset 12345"),
    *("2026-11-28 10:00:00", "2026-11-28 11:00:00", "33.1%"),
)


def printed(capsys: pytest.CaptureFixture[str], *rows: tuple[object, ...]) -> list[str]:
    """Print a table, and return its lines."""
    output.table(COLUMNS, rows, right=["records"])
    return capsys.readouterr().out.splitlines()


def words_of(lines: list[str]) -> list[str]:
    """Return the words of some lines, in no order."""
    return sorted(" ".join(lines).replace("─", " ").split())


@pytest.mark.parametrize("screen", [None, "90", "60", "40"])
def test_a_wide_table_stays_on_the_screen_and_keeps_all_words(
    screen: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal there are 80 columns; no word is cut, whatever the width."""
    if screen:
        monkeypatch.setenv("COLUMNS", screen)
    else:
        monkeypatch.delenv("COLUMNS", raising=False)

    lines = printed(capsys, ROW)

    assert max(map(len, lines)) <= int(screen or 80)
    shown = [f"{each:,}" if isinstance(each, int) else str(each) for each in ROW]
    assert words_of(lines) == sorted(" ".join((*COLUMNS, *shown)).split())


def test_a_table_that_fits_has_a_line_for_each_row(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what is too wide goes on in a next line."""
    monkeypatch.setenv("COLUMNS", "140")

    lines = printed(capsys, ROW, ROW)

    assert len(lines) == 4
    assert "2026-11-28 10:00:00   2026-11-28 11:00:00" in lines[2]


def test_a_screen_too_narrow_for_the_words_gets_a_line_for_each_cell(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each value stands beside its column's name, and rows are apart."""
    monkeypatch.setenv("COLUMNS", "60")

    lines = [line.rstrip() for line in printed(capsys, ROW, ROW)]

    assert lines[1] == "records           1,234,567"
    assert lines[len(COLUMNS)] == ""
    assert len(lines) == 2 * len(COLUMNS) + 1
