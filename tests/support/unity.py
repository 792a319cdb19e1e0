"""A stand-in of Unity Catalog on loopback: its open API's tables, and the API of Delta tables.

It keeps to api/all.yaml and api/delta.yaml of unitycatalog/unitycatalog as far as an entry needs
them; it is no Unity Catalog.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from tests.support.http_server import Handler, served

TOKEN: Final = "a-token-of-tests"
_API: Final = "/api/2.1/unity-catalog"
_CAMEL: Final = re.compile('"(elementType|containsNull|keyType|valueType|valueContainsNull)":')
_OF_DELTA: Final = re.compile(r"/delta/v1/catalogs/(\w+)/schemas/(\w+)/tables/(\w+)")


@dataclass
class SmallUnity:
    """Tables by their names.

    Attributes:
        address: Where it answers.
        schemas: The schemas that there are.
        changes_columns: Whether it has the API of Delta tables, as servers of 2026 do.
        fails: The status by which everything is refused; 0 for none.
        requests: Method and path of each request.
        on_request: Called before each is answered.
    """

    address: str = ""
    schemas: set[str] = field(default_factory=lambda: {"main.sales"})
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    changes_columns: bool = True
    fails: int = 0
    requests: list[str] = field(default_factory=list)
    on_request: Callable[[], object] = lambda: None

    def columns(self, name: str) -> dict[str, str]:
        """Return the types of a table's columns."""
        columns = sorted(self.tables[name]["columns"], key=lambda column: column["position"])
        return {column["name"]: column["type_text"] for column in columns}


class _Answers(Handler):
    def __init__(self, unity: SmallUnity, *given: Any) -> None:
        self.unity = unity
        super().__init__(*given)

    def get(self) -> None:
        if self._is_refused():
            return
        found = self.unity.tables.get(self.path.removeprefix(f"{_API}/tables/"))
        self._say(*((200, found) if found else (404, {"message": "Table not found"})))

    def post(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self._is_refused():
            return
        path = self.path.removeprefix(_API)
        if path == "/tables":
            self._say(*self._made(body))
        elif (found := _OF_DELTA.fullmatch(path)) and self.unity.changes_columns:
            self._say(*self._updated(".".join(found.groups()), body))
        else:
            self._say(404, {"message": f"no {path}"})

    def delete(self) -> None:
        if not self._is_refused():
            del self.unity.tables[self.path.removeprefix(f"{_API}/tables/")]
            self._say(200, {})

    def _is_refused(self) -> bool:
        self.unity.requests.append(f"{self.command} {self.path.removeprefix(_API)}")
        self.unity.on_request()
        status = self.unity.fails
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            status = 401
        if status:
            # Some servers quote what they were sent.
            self._say(status, {"message": f"refused {self.headers['Authorization']}"})
        return bool(status)

    def _made(self, body: dict[str, Any]) -> tuple[int, Any]:
        schema = f"{body['catalog_name']}.{body['schema_name']}"
        name = f"{schema}.{body['name']}"
        if schema not in self.unity.schemas:
            return 404, {"message": f"Schema not found: {schema}"}
        if name in self.unity.tables:
            return 409, {"message": "already exists"}
        for at, column in enumerate(body["columns"]):
            assert {"name", "type_text", "type_json", "type_name", "nullable"} <= column.keys()
            assert column["position"] == at
        assert (body["table_type"], body["data_source_format"]) == ("EXTERNAL", "DELTA")
        self.unity.tables[name] = {**body, "table_id": str(uuid.uuid4()), "owner": "oncelake"}
        return 200, self.unity.tables[name]

    def _updated(self, name: str, body: dict[str, Any]) -> tuple[int, Any]:
        table = self.unity.tables[name]
        if body["requirements"] != [{"type": "assert-table-uuid", "uuid": table["table_id"]}]:
            return 409, {"message": "another table"}
        if found := _CAMEL.search(json.dumps(body)):
            return 400, {"message": f"unknown field {found[1]}"}
        for update in body["updates"]:
            _update(table, update)
        return 200, {"metadata": {}}

    def _say(self, status: int, body: Any) -> None:
        self.answer(status, json.dumps(body).encode())


def _update(table: dict[str, Any], update: dict[str, Any]) -> None:
    match update["action"]:
        case "set-columns":
            fields = update["columns"]["fields"]
            # It does not promise to show them in their order.
            table["columns"] = [_column(at, it) for at, it in enumerate(fields)][::-1]
        case "set-partition-columns":
            by = update["partition-columns"]
            for column in (it for it in table["columns"] if it["name"] in by):
                column["partition_index"] = by.index(column["name"])
        case "set-properties":
            table["properties"] |= update["updates"]
        case "remove-properties":
            for name in update["removals"]:
                del table["properties"][name]
        case "set-table-comment":
            table["comment"] = update["comment"]


def _column(at: int, field: dict[str, Any]) -> dict[str, Any]:
    """Keep a column as the API of tables shows it, whose types are named as in Delta's log."""
    text = json.dumps(field)
    for name in ("element-type", "contains-null", "key-type", "value-type", "value-contains-null"):
        first, *rest = name.split("-")
        text = text.replace(f'"{name}":', f'"{first}{"".join(map(str.title, rest))}":')
    return {
        "name": field["name"],
        "position": at,
        "type_text": json.dumps(field["type"]).strip('"'),
        "type_json": text,
        "comment": field["metadata"].get("comment"),
    }


@contextmanager
def small_unity() -> Iterator[SmallUnity]:
    """Serve an empty catalog until the block ends."""
    unity = SmallUnity()
    with served(partial(_Answers, unity)) as unity.address:
        yield unity
