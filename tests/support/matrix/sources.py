"""One source of each kind with the same records, and the pipeline that reads it."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psycopg

from support.datalakes import DataLake, file_row
from support.declarative.apis import Api, ReceivedRequest, Reply
from support.engines import AT
from support.matrix.records import Records
from support.pipeline_model import LandedRow

_SECOND: Final = 1_000_000
_UPSERT: Final = (
    "INSERT INTO orders VALUES (%s, %s) ON CONFLICT (id) DO UPDATE SET name = excluded.name"
)
_TIME: Final = "%Y-%m-%dT%H:%M:%S.%fZ"
_MANIFEST: Final = """
version: 6.48.0
type: DeclarativeSource
check: {type: CheckStream, stream_names: [orders]}
streams:
  - type: DeclarativeStream
    name: orders
    primary_key: [id]
    retriever:
      type: SimpleRetriever
      requester: {type: HttpRequester, url_base: "{{ config['url'] }}", path: /orders}
      record_selector: {type: RecordSelector, extractor: {type: DpathExtractor, field_path: [data]}}
    incremental_sync:
      type: DatetimeBasedCursor
      cursor_field: updated_at
      datetime_format: "%Y-%m-%dT%H:%M:%S.%fZ"
      start_datetime: "2026-01-01T00:00:00.000000Z"
      start_time_option: {type: RequestOption, inject_into: request_parameter, field_name: since}
    schema_loader:
      type: InlineSchemaLoader
      schema:
        type: object
        properties:
          id: {type: integer}
          name: {type: string}
          updated_at: {type: string, format: date-time}
spec:
  type: Spec
  connection_specification: {properties: {url: {type: string}}}
"""


class RecordSource(ABC):
    """Records in a source.

    Attributes:
        records: the same records in plain Python.
        pipeline: the configuration of the pipeline that reads the source.
        stream: the name of the table.
        key: the column of keys.
        name: the column of names.
        needs_objects: whether pipelines need objects in the source, such as a replication slot.
    """

    stream = "orders"
    key = "id"
    name = "name"
    needs_objects = False

    def __init__(self, pipeline: dict[str, Any]) -> None:
        self.records = Records()
        self.pipeline: dict[str, Any] = {"mode": "history", **pipeline}

    def put(self, names: Mapping[int, str]) -> None:
        """Insert or update records."""
        self._put(names)
        self.records.put(names)

    def delete(self, *keys: int) -> None:
        """Delete records."""
        self._delete(keys)
        self.records.delete(keys)

    @abstractmethod
    def _put(self, names: Mapping[int, str]) -> None: ...

    @abstractmethod
    def _delete(self, keys: Iterable[int]) -> None: ...


class PostgresRecords(RecordSource):
    """A table of a PostgreSQL database, whose log or rows are read."""

    def __init__(self, address: str, method: str) -> None:
        # Names of slots are those of the whole server.
        slot = f"slot_{address.rpartition('/')[2]}"
        source = {"type": "postgres", "dsn": address, "method": method, "slot": slot}
        super().__init__({"source": source})
        self.needs_objects = method == "logical_replication"
        self._address = address
        self.execute("CREATE TABLE orders (id INT PRIMARY KEY, name TEXT)")

    def _put(self, names: Mapping[int, str]) -> None:
        for key, name in names.items():
            self.execute(_UPSERT, (key, name))

    def _delete(self, keys: Iterable[int]) -> None:
        for key in keys:
            self.execute("DELETE FROM orders WHERE id = %s", (key,))

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> None:
        """Run a statement in its own transaction."""
        with psycopg.connect(self._address, autocommit=True) as connection:
            connection.execute(statement.encode(), values)


class JdbcRecords(RecordSource):
    """A table of a SQLite file that Spark reads over JDBC."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "orders.db"
        url = f"jdbc:sqlite:{self._file}"
        super().__init__(
            {"source": {"type": "jdbc", "url": url, "tables": {"orders": {"key": ["id"]}}}}
        )
        self._execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT)", [()])

    def _put(self, names: Mapping[int, str]) -> None:
        self._execute("INSERT OR REPLACE INTO orders VALUES (?, ?)", names.items())

    def _delete(self, keys: Iterable[int]) -> None:
        self._execute("DELETE FROM orders WHERE id = ?", [(key,) for key in keys])

    def _execute(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        with closing(sqlite3.connect(self._file)) as connection, connection:
            connection.executemany(statement, rows)


class ApiRecords(RecordSource):
    """An HTTP API with a cursor; complete reads find what was deleted."""

    def __init__(self, folder: Path, api: Api) -> None:
        (folder / "api.yaml").write_text(_MANIFEST)
        source = {"type": "declarative", "manifest": "api.yaml", "config": {"url": api.url}}
        # Less than a second may pass between two syncs.
        super().__init__({"source": source, "detect_deletes": "PT0.001S"})
        self._stored: dict[int, dict[str, Any]] = {}
        api.on("/orders", self._answer)

    def _put(self, names: Mapping[int, str]) -> None:
        for key, name in names.items():
            now = datetime.now(UTC).strftime(_TIME)
            self._stored[key] = {"id": key, "name": name, "updated_at": now}

    def _delete(self, keys: Iterable[int]) -> None:
        for key in keys:
            del self._stored[key]

    def _answer(self, asked: ReceivedRequest) -> Reply:
        since = asked.params.get("since", "")
        stored = list(self._stored.values())
        return Reply({"data": [row for row in stored if row["updated_at"] >= since]})


class DataLakeRecords(RecordSource):
    """A Data Lake v2 that another system writes."""

    stream = "Account"
    key = "Id"
    name = "Name"

    def __init__(self, location: str, folder: Path) -> None:
        """Create an empty data lake.

        Args:
            location: where pipelines find it.
            folder: where its files are written.
        """
        super().__init__({"source": {"type": "data_lake_v2", "path": location, "org": "X"}})
        self._lake = DataLake(folder)
        self._rows: dict[int, LandedRow] = {}
        self._clock = AT

    def _put(self, names: Mapping[int, str]) -> None:
        self._clock += _SECOND
        for key, name in names.items():
            self._rows[key] = self._row(key, self._clock, {"Name": name})
        self._write(names)

    def _delete(self, keys: Iterable[int]) -> None:
        self._clock += _SECOND
        for key in keys:
            old = self._rows[key]
            self._rows[key] = self._row(key, old.modified, old.fields, deleted=self._clock)
        self._write(keys)

    def _row(
        self, key: int, modified: int, fields: dict[str, Any], *, deleted: int | None = None
    ) -> LandedRow:
        return LandedRow(
            str(key), modified, str(self._clock), (0, 0), deleted=deleted, fields=fields
        )

    def _write(self, keys: Iterable[int]) -> None:
        rows = [self._rows[key] for key in keys]
        self._lake.write("Account", [file_row(row, **row.fields) for row in rows])
