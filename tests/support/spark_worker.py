"""A Spark that keeps tables in a store, in a process and a JVM of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.world import JARS, ROOT


class SparkWorker:
    """Does what it is told to, one command after the other; several work at the same time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Take the process, and let it start."""
        self._process = process

    @classmethod
    @contextmanager
    def started(cls, lake: str, state: Path, **environment: str) -> Iterator[SparkWorker]:
        """Start one for a lake; it ends with the block."""
        command = [sys.executable, "-m", "tests.support.spark_worker", lake, str(state)]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True
        ) as process:
            yield cls(process)
            assert process.stdin is not None
            process.stdin.close()

    def append(self, table: str, ids: range) -> list[int]:
        """Commit each id by itself, and return those that were acknowledged."""
        acknowledged: list[int] = self._do("append", table, ids.start, ids.stop)
        return acknowledged

    def merge(self, table: str, ids: range, value: str) -> None:
        """Give rows a value, or insert them with it."""
        self._do("merge", table, ids.start, ids.stop, value)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return a table's rows as Spark reads them, by id."""
        rows: list[dict[str, Any]] = self._do("rows", table)
        return rows

    def _do(self, *command: str | int) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(command), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, f"{command[0]}: the worker is dead; what it said is above"
        done = json.loads(answer)
        assert "failed" not in done, done["failed"]
        return done["answer"]


def work(lake: str, state: str) -> None:
    """Answer each command on stdin by a line on stdout."""
    from delta.tables import DeltaTable

    from oncelake.ingestion.pipeline.spark.session import start_session
    from oncelake.ingestion.settings import Settings

    settings = Settings(
        lake=lake, state=Path(state), jars=JARS, spark_master="local[1]", spark_driver_memory="1g"
    )
    spark = start_session(settings, backlog=1)

    def frame(start: int, end: int, value: str) -> Any:
        return spark.range(start, end).coalesce(1).selectExpr("id", f"'{value}' AS value")

    def append(table: str, start: int, end: int) -> list[int]:
        for id_ in range(start, end):
            frame(id_, id_ + 1, "new").write.format("delta").mode("append").save(table)
        return list(range(start, end))

    def merge(table: str, start: int, end: int, value: str) -> None:
        (
            DeltaTable.forPath(spark, table)
            .alias("t")
            .merge(frame(start, end, value).alias("s"), "t.id = s.id")
            .whenMatchedUpdateAll()
            .whenNotMatchedInsertAll()
            .execute()
        )

    def rows(table: str) -> list[dict[str, Any]]:
        return [row.asDict() for row in spark.read.format("delta").load(table).sort("id").collect()]

    commands = {each.__name__: each for each in (append, merge, rows)}
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer: dict[str, Any] = {"answer": commands[name](*arguments)}
        except Exception as error:  # noqa: BLE001 (the other process judges)
            answer = {"failed": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    work(*sys.argv[1:])
