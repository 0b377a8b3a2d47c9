"""Transact-SQL statements, and the base class of both methods of reading a table.

Each statement is one SELECT without ORDER BY or WITH, because Spark uses it as a subquery. Binary
log sequence numbers (LSNs) are converted to and from the format `0x0000002A000001230003`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from chronolake.change_set import RESERVED
from chronolake.landing import landed_micros

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, Row, SparkSession

    from chronolake.config import SqlServerSource
    from chronolake.landing import ObjectFolder
    from chronolake.source.jdbc import Reader


KEY: Final = f"{RESERVED}key_"
START: Final = f"{RESERVED}start"
SEQVAL: Final = f"{RESERVED}seqval"
OPERATION: Final = f"{RESERVED}operation"
COMMAND: Final = f"{RESERVED}command"

_CLOCK: Final = "DATEDIFF_BIG(MICROSECOND, '1970-01-01', {})"
_NOW: Final = f"{_CLOCK.format('SYSUTCDATETIME()')} AS at_micros"


def identifier(name: str) -> str:
    """Return a name quoted for Transact-SQL."""
    return f"[{name.replace(']', ']]')}]"


def relation(stream: str) -> str:
    """Return the quoted table of a stream, whose name is schema.table."""
    schema, _, table = stream.partition(".")
    return f"{identifier(schema)}.{identifier(table)}"


def tracking_state(stream: str) -> str:
    """Return a query for change tracking's `version`, its `oldest` valid one, and the time.

    `version` is null if the database does not track changes, `oldest` if the table does not.
    """
    return (
        "SELECT CHANGE_TRACKING_CURRENT_VERSION() AS version, "
        f"CHANGE_TRACKING_MIN_VALID_VERSION({_object(relation(stream))}) AS oldest, {_NOW}"
    )


def tracked_changes(stream: str, key: Sequence[str], *, after: int) -> str:
    """Return a query for rows changed after a version: keys, and present values or nulls."""
    keys = ", ".join(f"ct.{identifier(name)} AS [{KEY}{n}]" for n, name in enumerate(key))
    matched = " AND ".join(f"t.{identifier(name)} = ct.{identifier(name)}" for name in key)
    return (
        f"SELECT {keys}, t.* FROM CHANGETABLE(CHANGES {relation(stream)}, {after}) AS ct "
        f"LEFT OUTER JOIN {relation(stream)} AS t ON {matched}"
    )


def capture_instances(stream: str) -> str:
    """Return a query for capture instances: `name`, `oldest` retained LSN, and creation time.

    `oldest` is zero if the capture job has not begun, or the user may not see the changes.
    """
    return (
        "SELECT capture_instance AS name, "
        f"{_lsn('sys.fn_cdc_get_min_lsn(capture_instance)')} AS oldest, "
        f"{_CLOCK.format('create_date')} AS made_micros "
        f"FROM cdc.change_tables WHERE source_object_id = {_object(relation(stream))}"
    )


def captured_columns(instance: str) -> str:
    """Return a query for the columns of a capture instance: `name` and `ordinal`.

    Computed columns are omitted: they are null in all changes.
    """
    return (
        "SELECT c.column_name AS name, c.column_ordinal AS ordinal FROM cdc.captured_columns AS c "
        "INNER JOIN cdc.change_tables AS t ON t.object_id = c.object_id "
        f"WHERE t.capture_instance = {_text(instance)} AND c.is_computed = 0"
    )


def cdc_enabled() -> str:
    """Return a query for whether the database captures changes at all: `enabled`."""
    return (
        "SELECT CAST(is_cdc_enabled AS int) AS enabled FROM sys.databases "
        "WHERE database_id = DB_ID()"
    )


def newest_capture() -> str:
    """Return a query for the `newest` captured LSN, the server's time, and its UTC offset."""
    return (
        f"SELECT {_lsn('sys.fn_cdc_get_max_lsn()')} AS newest, {_NOW}, "
        "DATEDIFF(MINUTE, SYSUTCDATETIME(), SYSDATETIME()) AS offset_minutes"
    )


def commits(*, after: str, upto: str) -> str:
    """Return a query for transactions: their LSN, and their end by the server's local clock."""
    return (
        f"SELECT {_lsn('start_lsn')} AS [{START}], "
        f"{_CLOCK.format('tran_end_time')} AS local_micros FROM cdc.lsn_time_mapping "
        f"WHERE start_lsn > {after} AND start_lsn <= {upto} AND tran_id <> 0x00"
    )


def changes(instance: str, key: Sequence[str], *, after: str, upto: str) -> str:
    """Return a query for captured changes: deletes (1), inserts (2), and new rows of updates (4).

    Old rows of updates (3) are included if the update has changed the key. The function does not
    return the order of statements within a transaction; the change table does.
    """
    name = _text(instance)
    key_changed = " OR ".join(
        f"sys.fn_cdc_has_column_changed({name}, {_text(column)}, c.[__$update_mask]) = 1"
        for column in key
    )
    function = f"cdc.{identifier('fn_cdc_get_all_changes_' + instance)}"
    return (
        f"SELECT {_lsn('c.[__$start_lsn]')} AS [{START}], {_lsn('c.[__$seqval]')} AS [{SEQVAL}], "
        f"c.[__$operation] AS [{OPERATION}], d.[__$command_id] AS [{COMMAND}], c.* "
        f"FROM {function}(sys.fn_cdc_increment_lsn({after}), {upto}, N'all update old') AS c "
        f"LEFT OUTER JOIN cdc.{identifier(instance + '_CT')} AS d "
        "ON d.[__$start_lsn] = c.[__$start_lsn] AND d.[__$seqval] = c.[__$seqval] "
        "AND d.[__$operation] = c.[__$operation] "
        f"WHERE c.[__$operation] <> 3 OR {key_changed}"
    )


def _lsn(value: str) -> str:
    return f"CONVERT(varchar(22), {value}, 1)"


def _object(name: str) -> str:
    return f"OBJECT_ID({_text(name)})"


def _text(value: str) -> str:
    return "N'" + value.replace("'", "''") + "'"


@dataclass(frozen=True)
class TableRead:
    """One table in one run of a pipeline.

    Attributes:
        spark: the session that reads.
        reader: the database reader.
        pipeline: the pipeline's name.
        name: the table's name.
        config: the database's configuration.
        landing: the folder where the table's changes land.
    """

    spark: SparkSession
    reader: Reader
    pipeline: str
    name: str
    config: SqlServerSource
    landing: ObjectFolder

    @cached_property
    def landed_micros(self) -> int:
        """Return the latest time that has landed, in microseconds since 1970, or 0.

        It may be later than the offset's time: after a crash, only the landed files contain it. It
        is only needed for rows with a time of the run's own; changes have their commit times.

        Raises:
            SourceError: the landed files cannot be read.
        """
        return landed_micros(self.landing)

    @property
    def key(self) -> Sequence[str]:
        """Return the configured key columns."""
        return self.config.tables[self.name].key

    def all_rows(self) -> DataFrame:
        """Return all rows of the table."""
        split_by = self.config.tables[self.name].split_by
        return self.reader.table(self.spark, relation(self.name), split_by=split_by)

    def query(self, statement: str) -> DataFrame:
        """Return the result of one SELECT."""
        return self.reader.query(self.spark, statement)

    def fetch_rows(self, statement: str) -> list[Row]:
        """Return the rows of one SELECT with a small result."""
        rows: list[Row] = self.query(statement).collect()
        return rows
