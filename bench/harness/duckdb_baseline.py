"""The single-machine limit: the same changes by DuckDB, in a database file of its own.

Batch files are decrypted, decompressed and parsed by cryptography, zstandard and PyArrow; cells
arrive in DuckDB as texts and are cast there.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa
import pyarrow.csv as pc
import zstandard

from chronolake.change_set import Op
from chronolake.types import Column
from harness.batches import NULL, UNMODIFIED, Batch, unsealed
from harness.customers import HISTORY, LIVE

_SYSTEM: Final = ("_fivetran_synced", "_fivetran_start", "_fivetran_end", "_fivetran_active")
_SQL: Final = {"timestamp": "TIMESTAMPTZ"}

DecodedBatch = dict[Op, pa.Table]


def decoded(batch: Batch) -> DecodedBatch:
    """Decode a batch's rows; all cells are texts."""
    tables = {}
    for file in batch.files:
        content = unsealed(Path(file.path).read_bytes(), file.key or b"")
        plain = zstandard.ZstdDecompressor().decompressobj().decompress(content)
        names = plain.partition(b"\n")[0].decode().split(",")
        kinds = dict.fromkeys(names, pa.string())
        options = pc.ConvertOptions(column_types=kinds, strings_can_be_null=False)
        tables[file.op] = pc.read_csv(pa.py_buffer(plain), convert_options=options)
    return tables


class Duck:
    """A DuckDB database with copies of tables."""

    def __init__(self, folder: Path) -> None:
        self._connection = duckdb.connect(folder / "duck.db")
        self._connection.execute("SET TimeZone = 'UTC'")

    def load(self, name: str, files: Sequence[str]) -> None:
        """Make a native table of Parquet files."""
        self._connection.execute(
            f"CREATE TABLE {name} AS SELECT * FROM read_parquet({list(files)!r})"
        )
        self._connection.execute("CHECKPOINT")

    def upsert(self, name: str, rows: DecodedBatch) -> None:
        """Upsert rows into a live table."""
        self._run(
            rows,
            f"""MERGE INTO {name} t USING ({_typed(Op.REPLACE, LIVE)}) s ON t.id = s.id
            WHEN MATCHED THEN UPDATE SET {_assigned(LIVE)}
            WHEN NOT MATCHED THEN INSERT VALUES ({_list(LIVE, "s.")})""",
        )

    def update(self, name: str, rows: DecodedBatch) -> None:
        """Update rows of a live table."""
        self._run(
            rows,
            f"""UPDATE {name} SET {_assigned(LIVE)} FROM (
                SELECT {_completed(LIVE)} FROM {_view(Op.UPDATE)} u
                JOIN {name} b ON b.id = CAST(u.id AS BIGINT)) s WHERE {name}.id = s.id""",
        )

    def history(self, name: str, rows: DecodedBatch, since: str) -> None:
        """Apply a history batch, by the documents' statements in one transaction."""
        earliest = f"""SELECT CAST(id AS BIGINT) AS id,
            CAST(_fivetran_start AS TIMESTAMPTZ) AS start FROM {_view(Op.EARLIEST)}"""
        deletes = f"""SELECT CAST(id AS BIGINT) AS id,
            CAST(_fivetran_end AS TIMESTAMPTZ) AS stop FROM {_view(Op.DELETE)}"""
        self._run(
            rows,
            f"""CREATE TEMP TABLE completed AS SELECT {_completed(HISTORY)}
            FROM {_view(Op.UPDATE)} u
            JOIN {name} b ON b.id = CAST(u.id AS BIGINT) AND b._fivetran_active""",
            f"""DELETE FROM {name} t USING ({earliest}) s
            WHERE t.id = s.id AND t._fivetran_start >= s.start AND t._fivetran_start >= {since}""",
            f"""UPDATE {name} SET _fivetran_active = false,
            _fivetran_end = s.start - INTERVAL 1 MILLISECOND
            FROM ({earliest}) s WHERE {name}.id = s.id AND _fivetran_active""",
            f"INSERT INTO {name} BY NAME SELECT * FROM completed",
            f"INSERT INTO {name} BY NAME {_typed(Op.REPLACE, HISTORY)}",
            f"""UPDATE {name} SET _fivetran_active = false, _fivetran_end = s.stop
            FROM ({deletes}) s WHERE {name}.id = s.id AND _fivetran_active""",
            "DROP TABLE completed",
        )

    def sums(self, sql: str) -> tuple[object, ...] | None:
        """Return the only row of a query's result."""
        return self._connection.execute(sql).fetchone()

    def _run(self, rows: DecodedBatch, *statements: str) -> None:
        for op, table in rows.items():
            self._connection.register(_view(op), table)
        self._connection.execute("BEGIN")
        for statement in statements:
            self._connection.execute(statement)
        self._connection.execute("COMMIT")


def _view(op: Op) -> str:
    return f"rows_{op.name.lower()}"


def _cast(column: Column, prefix: str = "") -> str:
    kind = _SQL.get(column.type.sql, column.type.sql)
    cell = f"{prefix}{column.name}"
    return f"TRY_CAST(CASE WHEN {cell} <> '{NULL}' THEN {cell} END AS {kind})"


def _typed(op: Op, columns: Sequence[Column]) -> str:
    cells = ", ".join(f"{_cast(column)} AS {column.name}" for column in columns)
    return f"SELECT {cells} FROM {_view(op)}"


def _completed(columns: Sequence[Column]) -> str:
    """Return the cells of update rows `u`, completed from stored rows `b`."""
    cells = []
    for column in columns:
        cell = _cast(column, "u.")
        if column.name not in ("id", *_SYSTEM):
            stored = f"b.{column.name}"
            cell = f"CASE WHEN u.{column.name} = '{UNMODIFIED}' THEN {stored} ELSE {cell} END"
        cells.append(f"{cell} AS {column.name}")
    return ", ".join(cells)


def _assigned(columns: Sequence[Column]) -> str:
    return ", ".join(f"{column.name} = s.{column.name}" for column in columns[1:])


def _list(columns: Sequence[Column], prefix: str = "") -> str:
    return ", ".join(prefix + column.name for column in columns)
