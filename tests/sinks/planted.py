"""Bugs that a sink may have, as edits of the toy's own source, and the test that notices each."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

PACKAGE: Final = Path(__file__).parents[1] / "toys" / "sqlite_package"


@dataclass(frozen=True, kw_only=True, slots=True)
class Planted:
    """One bug.

    Attributes:
        name: What the sink does wrong.
        edits: Texts that are in the toy's table exactly once, and what each becomes.
        by: The end of the name of the test of the battery that notices it.
    """

    name: str
    edits: dict[str, str]
    by: str


_STEP: Final = "any_step_of_a_commit_may_fail"
_SWAP: Final = "any_step_of_a_swap_may_fail"
_TYPES: Final = "every_type_comes_back_as_it_was"
_ALIKE: Final = "keys_that_look_alike_are_others"
_NOTED: Final = (
    "        note = (self.seq, metadata.to_json(), *counts, time.time_ns() // 1_000_000)\n"
)
_COMMITTED: Final = f"""{_NOTED}\
        self.connection.execute(f"INSERT INTO {{self.table.kept}} VALUES (?, ?, ?, ?, ?, ?)", note)
        self.connection.execute("COMMIT")
"""
_BETWEEN: Final = """\
        self.connection.execute("COMMIT")
        self.connection.execute("BEGIN IMMEDIATE")
"""
_INSERT: Final = "                self.connection.executemany(insert, to_rows(rows))\n"
_ROW: Final = "str(value) if pa.types.is_decimal(type_) and value is not None else value"
_RENAMED: Final = """connection.execute(f'ALTER TABLE "{old}{end}" RENAME TO "{new}{end}"')\n"""
BUGS: Final = (
    Planted(
        name="rows and note are two transactions",
        edits={_NOTED: _BETWEEN + _NOTED},
        by=_STEP,
    ),
    Planted(
        name="the note comes before the rows",
        edits={
            "        if change is not None:\n": """\
        self.connection.execute(
            f"INSERT INTO {self.table.kept} VALUES (?, ?, 0, 0, 0, 0)",
            (self.seq, metadata.to_json()),
        )
        self.connection.execute("COMMIT")
        self.connection.execute("BEGIN IMMEDIATE")
        if change is not None:
""",
            'INSERT INTO {self.table.kept} VALUES (?, ?, ?, ?, ?, ?)", note)\n        '
            'self.connection.execute("COMMIT")\n\n    def erase': 'REPLACE INTO {self.table.kept} '
            'VALUES (?, ?, ?, ?, ?, ?)", note)\n        self.connection.execute("COMMIT")\n\n'
            "    def erase",
        },
        by=_STEP,
    ),
    Planted(
        name="a commit whose answer is lost is made again",
        edits={
            _COMMITTED: f"""{_COMMITTED[:_COMMITTED.rindex("        self.connection")]}\
        try:
            self.connection.execute("COMMIT")
            self.seq += 1
        except Exception:
            for rows in (change.inserted,) if change else ():
                self.connection.executemany(insert, to_rows(rows))
"""
        },
        by=_STEP,
    ),
    Planted(
        name="rows that fail are left out",
        edits={
            _INSERT: """\
                try:
                    self.connection.executemany(insert, to_rows(rows))
                except Exception:
                    continue
"""
        },
        by=_STEP,
    ),
    Planted(
        name="the note of an attempt that failed is kept for the next",
        edits={
            "class SqliteTransaction(": "NOTES: dict[Any, str] = {}\n\n\nclass SqliteTransaction(",
            _NOTED: _NOTED.replace(
                "metadata.to_json()",
                "NOTES.setdefault((self.table.file, self.seq), metadata.to_json())",
            ),
        },
        by=_STEP,
    ),
    Planted(
        name="an erase and its note are two transactions",
        edits={
            "        gone = self._delete(keys)\n": f"        gone = self._delete(keys)\n{_BETWEEN}"
        },
        by="any_step_of_an_erase_may_fail",
    ),
    Planted(
        name="a decimal is a double, where a double has some of its digits",
        edits={
            _ROW: "(f'{float(value):.{type_.scale}f}' if type_.precision < 38 else str(value)) "
            "if pa.types.is_decimal(type_) and value is not None else value"
        },
        by=_TYPES,
    ),
    Planted(
        name="moments are nanoseconds",
        edits={
            'column = column.cast(pa.timestamp("us", type_.tz)).cast(pa.int64())':
            'column = column.cast(pa.timestamp("ns", type_.tz), safe=False).cast(pa.int64())',
            'return pa.array(values, pa.int64()).cast(pa.timestamp("us", type_.tz))':
            'found = pa.array(values, pa.int64()).cast(pa.timestamp("ns", type_.tz))\n'
            '        return found.cast(type_, safe=False)',
        },
        by=_TYPES,
    ),
    Planted(
        name="a text ends with its first NUL",
        edits={_ROW: f"value.partition(chr(0))[0] if isinstance(value, str) else {_ROW}"},
        by=_TYPES,
    ),
    Planted(
        name="a text of half a million characters is cut",
        edits={_ROW: f"value[:500_000] if isinstance(value, str) else {_ROW}"},
        by="a_long_text_is_kept",
    ),
    Planted(
        name="keys are compared without their case",
        edits={
            '        return equal(names, "t", "k")\n': '        return " AND ".join('
            'f"lower(t.{identifier(n)}) = lower(k.{identifier(n)})" for n in names)\n'
        },
        by=_ALIKE,
    ),
    Planted(
        name="of rows that share an offset one is kept",
        edits={
            '            connection.execute(f"CREATE TABLE IF NOT EXISTS {self.about} ': """\
            connection.execute(
                f"CREATE UNIQUE INDEX IF NOT EXISTS {self.name}_i ON {self.rows} (_seq, _offset)"
            )
            connection.execute(f"CREATE TABLE IF NOT EXISTS {self.about} """,
            'f"INSERT INTO {self.table.rows} ({names})': 'f"REPLACE INTO {self.table.rows} '
            "({names})",
        },
        by=_ALIKE,
    ),
    Planted(
        name="a thousand keys are looked up",
        edits={"to_rows(stored))": "list(to_rows(stored))[:1_000])"},
        by="a_key_is_all_of_its_columns",
    ),
    Planted(
        name="a swap is one transaction for each table",
        edits={
            f"                    for end in ends:\n                        {_RENAMED}": f"""\
                    for end in ends:
                        {_RENAMED}\
                    connection.execute("COMMIT")
                    connection.execute("BEGIN IMMEDIATE")
"""
        },
        by=_SWAP,
    ),
    Planted(
        name="a swap takes the rows, and not the notes",
        edits={'ends = f"{self.name}__{entry}", ("", "__notes", "__about")':
               'ends = f"{self.name}__{entry}", ("",)'},
        by="a_table_takes_the_place_of_another",
    ),
    Planted(
        name="a table beside is never put in the place",
        edits={"if is_replaced else []\n": "if not entry else []\n"},
        by="a_table_takes_the_place_of_another",
    ),
    Planted(
        name="a table outside the lake is not set aside",
        edits={
            "return aside if aside in there or (self.name in there and is_ours) else None":
            "return None"
        },
        by="a_table_that_is_set_aside_leaves_its_name",
    ),
    Planted(
        name="erased bytes stay in the file",
        edits={"secure_delete = ON": "secure_delete = OFF", '"VACUUM"': '"SELECT 1"'},
        by="what_is_erased_is_gone",
    ),
    Planted(
        name="a change without rows is no commit",
        edits={
            "        if change is not None:\n": """\
        if change is not None and not any(change.counts.values()):
            return
        if change is not None:
"""
        },
        by="an_empty_batch_is_a_note",
    ),
    Planted(
        name="the first seq is always taken",
        edits={
            "or seq != (-1 if last is None else last) + 1:":
            "or seq not in (0, (-1 if last is None else last) + 1):",
            _COMMITTED: _COMMITTED.replace("INSERT INTO", "REPLACE INTO"),
        },
        by="what_is_there_is_not_committed_again",
    ),
    Planted(
        name="any stream's table is taken",
        edits={
            " or stream != table.stream\n": "\n",
            'app_id(self.about[1] or "")': "app_id(self.table.stream)",
        },
        by="a_table_of_another_stream_stays_as_it_is",
    ),
    Planted(
        name="a log looks when it is opened",
        edits={
            "        return SqliteLog(self)\n": "        log = SqliteLog(self)\n"
            "        _ = log.about\n        return log\n"
        },
        by="a_table_made_anew_takes_nothing_meant_for_the_old",
    ),
    Planted(
        name="nobody reads while a transaction is open",
        edits={
            'self.connection.execute("BEGIN IMMEDIATE")':
            'self.connection.execute("BEGIN EXCLUSIVE")',
            "timeout=30": "timeout=1",
        },
        by="a_log_is_read_while_a_transaction_is_open",
    ),
    Planted(
        name="a begin that is refused keeps the place locked",
        edits={
            "            self.close()\n            raise seq_conflict":
            "            raise seq_conflict"
        },
        by="a_writer_that_is_killed_leaves_whole_commits",
    ),
)  # fmt: skip


def plant(bug: Planted, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy the toy to a folder, with the bug, and let it be the one that is imported."""
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    file = folder / "oncelake_sqlite" / "table.py"
    text = file.read_text("utf-8")
    for old, new in bug.edits.items():
        assert text.count(old) == 1, f"{bug.name}: {text.count(old)} times: {old!r}"
        text = text.replace(old, new)
    file.write_text(text, "utf-8")
    for name in [name for name in sys.modules if name.partition(".")[0] == "oncelake_sqlite"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(folder)
