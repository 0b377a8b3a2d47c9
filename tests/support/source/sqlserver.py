"""Simulated answers of SQL Server, as the vendor documents its functions: no server runs here.

Each kind of statement has its own pattern, so that a statement that is not as documented is
refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from chronolake.errors import SourceError

Row = dict[str, Any]

_LSN = "0x[0-9A-F]{20}"
_NOW = "DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME()) AS at_micros"


def lsn(number: int) -> str:
    """Return a log sequence number as `CONVERT(varchar(22), …, 1)` writes it."""
    return f"0x{number:020X}"


def _pattern(statement: str, **parts: str) -> re.Pattern[str]:
    """Return the pattern of a statement in which each `<name>` is a named group."""
    text = re.escape(statement)
    for name, part in parts.items():
        text = text.replace(f"<{name}>", f"(?P<{name}>{part})", 1)
    return re.compile(text)


@dataclass
class Change:
    """A row of a change table.

    Attributes:
        commit: the transaction's place in the log.
        seqval: the change's place.
        operation: delete (1), insert (2), update: the row before (3), the row after (4).
        row: the captured columns.
        changed: for updates, the columns that have changed.
        command: the statement's place in its transaction, if the change table has that column.
    """

    commit: int
    seqval: int
    operation: int
    row: Row
    changed: frozenset[str] = frozenset()
    command: int | None = 1


@dataclass
class Instance:
    """A capture instance: its columns, the oldest place that it keeps, and its change table.

    Computed columns are null in all changes.
    """

    name: str
    columns: Sequence[str]
    oldest: int
    made_micros: int = 0
    changes: list[Change] = field(default_factory=list)
    computed: frozenset[str] = frozenset()


@dataclass
class Server:
    """A database with one table, `dbo.items`.

    Attributes:
        ddl: the table's columns with Spark's types, as its JDBC reader returns them.
        key: the names of its primary key.
        rows: the table's rows.
        at_micros: the server's clock.
        version: of change tracking; None: it is off.
        oldest: the first version for which the table's changes are known; None: the table is not
            tracked.
        tracked: for each key the version of its last change.
        instances: the capture instances of the table.
        commits: the end of each captured transaction, by the server's own clock.
        offset_minutes: how much later than UTC that clock is.
        is_capturing: whether the database captures changes.
        is_cleaned_while_read: whether change tracking loses all changes just before they are read.
        queries: the statements that were run.
    """

    ddl: Mapping[str, str]
    key: Sequence[str]
    rows: list[Row] = field(default_factory=list)
    at_micros: int = 0
    version: int | None = 0
    oldest: int | None = 0
    tracked: dict[tuple[Any, ...], int] = field(default_factory=dict)
    instances: list[Instance] = field(default_factory=list)
    commits: dict[int, int] = field(default_factory=dict)
    offset_minutes: int = 0
    is_capturing: bool = True
    is_cleaned_while_read: bool = False
    queries: list[str] = field(default_factory=list)

    def put(self, **row: Any) -> None:
        """Insert or update a row, under change tracking."""
        self.rows = [other for other in self.rows if self._key(other) != self._key(row)] + [row]
        self._note(self._key(row))

    def delete(self, *key: Any) -> None:
        """Delete a row, under change tracking."""
        self.rows = [row for row in self.rows if self._key(row) != key]
        self._note(key)

    def _key(self, row: Row) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.key)

    def _note(self, key: tuple[Any, ...]) -> None:
        assert self.version is not None
        self.version += 1
        self.tracked[key] = self.version

    def table(self, spark: SparkSession, name: str, *, split_by: str | None = None) -> DataFrame:
        assert (name, split_by) == ("[dbo].[items]", None)
        return self._frame(spark, self.rows, self.ddl)

    def read_error(self, what: str, failure: Exception) -> SourceError:
        return SourceError(f"{what} cannot be read: {failure}")

    def query(self, spark: SparkSession, statement: str) -> DataFrame:
        self.queries.append(statement)
        for pattern, answer in self._answers:
            if reported := pattern.fullmatch(statement):
                rows, ddl = answer(**reported.groupdict())
                return self._frame(spark, rows, ddl)
        raise AssertionError(f"not as it is documented: {statement}")

    @property
    def _answers(self) -> list[tuple[re.Pattern[str], Callable[..., tuple[list[Row], Any]]]]:
        keys = ", ".join(
            f"ct.[{name}] AS [__chronolake_key_{number}]" for number, name in enumerate(self.key)
        )
        matched = " AND ".join(f"t.[{name}] = ct.[{name}]" for name in self.key)
        moved = " OR ".join(
            f"sys.fn_cdc_has_column_changed(N'<instance{number}>', N'{name}', "
            "c.[__$update_mask]) = 1"
            for number, name in enumerate(self.key)
        )
        return [
            (
                _pattern(
                    "SELECT CHANGE_TRACKING_CURRENT_VERSION() AS version, "
                    "CHANGE_TRACKING_MIN_VALID_VERSION(OBJECT_ID(N'[dbo].[items]')) AS oldest, "
                    + _NOW
                ),
                self._tracking,
            ),
            (
                _pattern(
                    f"SELECT {keys}, t.* FROM CHANGETABLE(CHANGES [dbo].[items], <after>) AS ct "
                    f"LEFT OUTER JOIN [dbo].[items] AS t ON {matched}",
                    after="[0-9]+",
                ),
                self._changetable,
            ),
            (
                _pattern(
                    "SELECT capture_instance AS name, CONVERT(varchar(22), "
                    "sys.fn_cdc_get_min_lsn(capture_instance), 1) AS oldest, "
                    "DATEDIFF_BIG(MICROSECOND, '1970-01-01', create_date) AS made_micros "
                    "FROM cdc.change_tables WHERE source_object_id = OBJECT_ID(N'[dbo].[items]')"
                ),
                self._instances,
            ),
            (
                _pattern(
                    "SELECT c.column_name AS name, c.column_ordinal AS ordinal "
                    "FROM cdc.captured_columns AS c "
                    "INNER JOIN cdc.change_tables AS t ON t.object_id = c.object_id "
                    "WHERE t.capture_instance = N'<instance>' AND c.is_computed = 0",
                    instance="[a-z_0-9]+",
                ),
                self._columns,
            ),
            (
                _pattern(
                    "SELECT CAST(is_cdc_enabled AS int) AS enabled FROM sys.databases "
                    "WHERE database_id = DB_ID()"
                ),
                lambda: ([{"enabled": int(self.is_capturing)}], {"enabled": "INT"}),
            ),
            (
                _pattern(
                    "SELECT CONVERT(varchar(22), sys.fn_cdc_get_max_lsn(), 1) AS newest, "
                    + _NOW
                    + ", DATEDIFF(MINUTE, SYSUTCDATETIME(), SYSDATETIME()) AS offset_minutes"
                ),
                self._captured,
            ),
            (
                _pattern(
                    "SELECT CONVERT(varchar(22), start_lsn, 1) AS [__chronolake_start], "
                    "DATEDIFF_BIG(MICROSECOND, '1970-01-01', tran_end_time) AS local_micros "
                    "FROM cdc.lsn_time_mapping WHERE start_lsn > <after> AND start_lsn <= <upto> "
                    "AND tran_id <> 0x00",
                    after=_LSN,
                    upto=_LSN,
                ),
                self._commits,
            ),
            (
                _pattern(
                    "SELECT CONVERT(varchar(22), c.[__$start_lsn], 1) AS [__chronolake_start], "
                    "CONVERT(varchar(22), c.[__$seqval], 1) AS [__chronolake_seqval], "
                    "c.[__$operation] AS [__chronolake_operation], "
                    "d.[__$command_id] AS [__chronolake_command], c.* "
                    "FROM cdc.[fn_cdc_get_all_changes_<instance>]"
                    "(sys.fn_cdc_increment_lsn(<after>), <upto>, N'all update old') AS c "
                    "LEFT OUTER JOIN cdc.[<table>_CT] AS d "
                    "ON d.[__$start_lsn] = c.[__$start_lsn] AND d.[__$seqval] = c.[__$seqval] "
                    "AND d.[__$operation] = c.[__$operation] "
                    "WHERE c.[__$operation] <> 3 OR " + moved,
                    instance="[a-z_0-9]+",
                    after=_LSN,
                    upto=_LSN,
                    table="[a-z_0-9]+",
                    **{f"instance{number}": "[a-z_0-9]+" for number in range(len(self.key))},
                ),
                self._changes,
            ),
        ]

    def _tracking(self) -> tuple[list[Row], Any]:
        row = {"version": self.version, "oldest": self.oldest, "at_micros": self.at_micros}
        return [row], dict.fromkeys(row, "BIGINT")

    def _changetable(self, after: str) -> tuple[list[Row], Any]:
        if self.is_cleaned_while_read:
            self.tracked.clear()
            self.oldest = self.version
        by_key = {self._key(row): row for row in self.rows}
        gone: Row = dict.fromkeys(self.ddl)
        rows = []
        for key, version in self.tracked.items():
            if version > int(after):
                reported = {f"__chronolake_key_{n}": value for n, value in enumerate(key)}
                rows.append({**reported, **by_key.get(key, gone)})
        types = {f"__chronolake_key_{n}": self.ddl[name] for n, name in enumerate(self.key)}
        return rows, {**types, **self.ddl}

    def _instances(self) -> tuple[list[Row], Any]:
        rows = [
            {
                "name": instance.name,
                "oldest": lsn(instance.oldest),
                "made_micros": instance.made_micros,
            }
            for instance in self.instances
        ]
        return rows, {"name": "STRING", "oldest": "STRING", "made_micros": "BIGINT"}

    def _columns(self, instance: str) -> tuple[list[Row], Any]:
        (found,) = (candidate for candidate in self.instances if candidate.name == instance)
        rows = [
            {"name": name, "ordinal": n}
            for n, name in enumerate(found.columns, start=1)
            if name not in found.computed
        ]
        return rows[::-1], {"name": "STRING", "ordinal": "INT"}

    def _captured(self) -> tuple[list[Row], Any]:
        newest = lsn(max(self.commits)) if self.commits else None
        row = {
            "newest": newest,
            "at_micros": self.at_micros,
            "offset_minutes": self.offset_minutes,
        }
        return [row], {"newest": "STRING", "at_micros": "BIGINT", "offset_minutes": "INT"}

    def _commits(self, after: str, upto: str) -> tuple[list[Row], Any]:
        rows = [
            {"__chronolake_start": lsn(place), "local_micros": micros}
            for place, micros in self.commits.items()
            if after < lsn(place) <= upto
        ]
        return rows, {"__chronolake_start": "STRING", "local_micros": "BIGINT"}

    def _changes(self, instance: str, after: str, upto: str, **same: str) -> tuple[list[Row], Any]:
        assert set(same.values()) == {instance}
        (found,) = (candidate for candidate in self.instances if candidate.name == instance)
        # An error of the server: "An insufficient number of arguments were supplied …".
        assert lsn(found.oldest) <= lsn(int(after, 16) + 1) <= upto
        rows = [
            {
                "__chronolake_start": lsn(change.commit),
                "__chronolake_seqval": lsn(change.seqval),
                "__chronolake_operation": change.operation,
                "__chronolake_command": change.command,
                "__$operation": change.operation,
                **{
                    name: None if name in found.computed else change.row.get(name)
                    for name in found.columns
                },
            }
            for change in found.changes
            if after < lsn(change.commit) <= upto
            and (change.operation != 3 or change.changed & set(self.key))
        ]
        ddl = {
            "__chronolake_start": "STRING",
            "__chronolake_seqval": "STRING",
            "__chronolake_operation": "INT",
            "__chronolake_command": "INT",
            "__$operation": "INT",
            **{name: self.ddl[name] for name in found.columns},
        }
        return rows[::-1], ddl

    @staticmethod
    def _frame(spark: SparkSession, rows: Sequence[Row], ddl: Mapping[str, str]) -> DataFrame:
        schema = ", ".join(f"`{name}` {kind}" for name, kind in ddl.items())
        values = [tuple(row.get(name) for name in ddl) for row in rows]
        return spark.createDataFrame(values, schema)
