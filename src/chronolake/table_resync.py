"""Re-syncs of history tables without a pipeline: from a query, from files, or from another table.

Source: `seeds/history-mode.txt` ("Re-syncs in history mode"). The rules are those of
`chronolake.core.reload`. This module reads the present rows, and checks them before the table
changes: columns, types, keys and times. The rows are computed once and stay in Spark.
"""

from __future__ import annotations

import re
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from chronolake import core
from chronolake.config import FileSettings
from chronolake.core.alter import convert_columns, is_lost
from chronolake.core.sql import cached_view, column_list
from chronolake.description import describe_loaded
from chronolake.errors import BatchError, SchemaError, SourceError, UnknownColumnError
from chronolake.frames import select
from chronolake.iceberg import jvm_ended, spark_words
from chronolake.query import run_query
from chronolake.source.files.formats import FileReader, format_of
from chronolake.source.files.path_template import PathTemplate
from chronolake.source.files.sftp import list_source, stage
from chronolake.source.jdbc import cell_expression, columns_of
from chronolake.storage import storage_error
from chronolake.types import (
    ACTIVE,
    DELETED,
    END,
    HASH,
    HISTORY_COLUMNS,
    PRESENT,
    START,
    SYNCED,
    VERSION,
    ColumnType,
    Kind,
    TableName,
    quote,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame

    from chronolake.config import FileFormat
    from chronolake.core import MissingRecords, ResyncPlan
    from chronolake.description import TableDescription
    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake

_QUERY: Final = re.compile(r"\s*(\(|(select|with|values|from|table)\b\s*\S)", re.IGNORECASE)
#: Columns that the re-sync computes.
_COMPUTED: Final = frozenset({*HISTORY_COLUMNS, SYNCED})
_TIME: Final = ColumnType(Kind.UTC_DATETIME)


class Origin(StrEnum):
    """The kind of source of a re-sync."""

    QUERY = "query"
    FILES = "files"
    TABLE = "table"


@dataclass(frozen=True)
class TableResync:
    """A re-sync whose rows were checked.

    Attributes:
        origin: the kind of its source.
        plan: its effects on the table as it is now.
        rows: the rows, with the table's types.
        planned_on: the state of the table before the source was read.
    """

    lake: Lake
    origin: Origin
    plan: ResyncPlan
    rows: DataFrame
    planned_on: IcebergTable

    def run(self) -> None:
        """Apply the re-sync in one published step; another run with the same time changes nothing.

        Raises:
            ConfigurationError: a pipeline fills the table.
            CommitError: the result could not be published, or another process has written to the
                table since the source was read; nothing has changed.
        """
        core.resync(
            self.lake,
            self.plan.table,
            self.rows,
            at_micros=self.plan.at_micros,
            batch=f"resync-{uuid4().hex}",
            gone=self.plan.gone,
            planned_on=self.planned_on,
        )


@contextmanager
def prepare(
    lake: Lake,
    name: TableName,
    source: str,
    *,
    base: Path,
    at_micros: int,
    gone: MissingRecords,
    start: str | None = None,
    format: FileFormat | None = None,  # noqa: A002 - as in chronolake.yml
) -> Iterator[TableResync]:
    """Read the present rows of a history table and check them; they are kept while the block runs.

    Args:
        name: a history table that no pipeline fills.
        source: a query of Spark SQL, another table of the lake, or a path of files: a file, a
            folder, or a path with `*`. A table takes precedence over a file with the same name.
        base: relative paths are resolved against it.
        at_micros: the start of the re-sync, in microseconds since 1970.
        gone: the treatment of active records that are missing from the rows.
        start: the column with the times since which rows have their values; None: the column
            `_fivetran_start`, if the rows have it.
        format: the format of files; None: by their ending.

    Raises:
        TableNotFoundError: the table does not exist, or `source` names neither a table nor files.
        BatchError: the table or the rows are not valid for a re-sync.
        UnknownColumnError: a column does not exist in the table, or the start not in the rows.
        QueryError: the query is not valid.
        SourceError: a file cannot be read.
    """
    planned_on = lake.catalog.find(name)
    if planned_on is None:
        raise lake.missing(name)
    description = describe_loaded(planned_on)
    with ExitStack() as stack:
        origin, found = _read(lake, description, source, _Files(base, format, stack))
        given = _renamed(found, description, start, origin)
        before = _check_columns(given, description)
        # The rows that were checked, and perhaps confirmed by a user, are those that are written.
        kept = stack.enter_context(cached_view(given))
        with _naming_files(source) if origin is Origin.FILES else nullcontext():
            rows = _with_types(lake.spark.table(kept), description, before)
        _expect_not_older(lake, description, at_micros)
        plan = core.plan_resync(lake, name, rows, at_micros=at_micros, gone=gone)
        yield TableResync(lake, origin, plan, rows, planned_on)


def _read(
    lake: Lake, description: TableDescription, source: str, files: _Files
) -> tuple[Origin, DataFrame]:
    """Return the rows of a source, with the columns that it has."""
    if _QUERY.match(source):
        return Origin.QUERY, run_query(lake, source).frame
    table = _table_of(source)
    if table is None or files.format is not None:
        return Origin.FILES, files.read(lake, source)
    if table == description.name:
        raise BatchError(
            "The table cannot be re-synced from itself.",
            table=str(table),
            hint="Name the source's rows: a query, files or another table.",
        )
    described = lake.describe(table)
    if described is not None:
        rows = _present_rows(lake, described)
        # Pipeline tables have columns of their own.
        return Origin.TABLE, rows.drop(*({DELETED, HASH, VERSION} - description.by_name.keys()))
    try:
        return Origin.FILES, files.read(lake, source)
    except SourceError:
        if files.has_listed or "/" in source or "*" in source:
            raise
        raise lake.missing(table) from None


@dataclass
class _Files:
    """Reads files that `--from` names.

    Attributes:
        base: relative paths are resolved against it.
        format: the files' format; None: by their ending.
        stack: keeps downloaded files.
        has_listed: whether there are such files.
    """

    base: Path
    format: FileFormat | None
    stack: ExitStack
    has_listed: bool = False

    def read(self, lake: Lake, path: str) -> DataFrame:
        """Return the rows of a file, of the files in a folder, or of those of a path with `*`.

        Raises:
            SourceError: there are no such files, or one cannot be read.
        """
        settings = FileSettings(format=self.format)
        template = PathTemplate(path.rstrip("/"), "UTC", "--from")
        storage = lake.config.object_storage
        listed = list_source(template.root, self.base, settings, storage)
        files = [file for file in listed if template.match(file.name) is not None]
        if not files:
            raise SourceError(
                "No file matches the path.",
                file=path,
                hint="Set --from to a file, a folder, a path with *, a table of the lake, or a "
                "query that begins with SELECT.",
            )
        self.has_listed = True
        files.sort(key=lambda file: file.name)
        local = self.stack.enter_context(stage(files, None, lake, is_hidden=False))
        found = format_of(files[0].name, settings, place="--from")
        with _naming_files(path):
            rows, _ = FileReader(lake.spark, found, settings, storage).read(local, ())
        return rows


@contextmanager
def _naming_files(path: str) -> Iterator[None]:
    """Raise an error that names the files if Spark fails to read them.

    Raises:
        SourceError: a file is damaged or has another format.
    """
    try:
        yield
    except Exception as failure:
        words = spark_words(failure)
        if words is None or storage_error(failure) or jvm_ended(failure):
            raise
        raise SourceError(
            f"The files of the re-sync cannot be read: {words}",
            file=path,
            hint="Check that they are complete and have the format of --format, or that of their "
            "ending. A path with * can leave out a damaged one. Nothing was written.",
        ) from failure


def _table_of(source: str) -> TableName | None:
    try:
        return TableName.parse(source)
    except SchemaError:
        return None


def _present_rows(lake: Lake, description: TableDescription) -> DataFrame:
    """Return the rows of a table that exist now, without what only its mode needs."""
    rows: DataFrame = lake.table(description.name).df
    return rows.where(PRESENT[description.mode]).drop(END, ACTIVE)


def _renamed(
    rows: DataFrame, description: TableDescription, start: str | None, origin: Origin
) -> DataFrame:
    """Return rows with their start as `_fivetran_start`, without the time of a sync.

    The start replaces the source's timestamp, unless the table has both.
    """
    table = str(description.name)
    columns = rows.columns
    if repeated := next((name for name in columns if columns.count(name) > 1), None):
        raise BatchError(
            "Two columns of the re-sync have the same name.",
            table=table,
            column=repeated,
            hint="Give each column another name (AS).",
        )
    for name in (END, ACTIVE):
        if name in columns:
            raise BatchError(
                f"The {origin} of the re-sync have a column that the re-sync computes."
                if origin is Origin.FILES
                else f"The {origin} of the re-sync has a column that the re-sync computes.",
                table=table,
                column=name,
                hint="Select the active versions only, and leave the column out.",
            )
    if start is not None and start not in columns:
        raise UnknownColumnError(
            "The re-sync does not have the column of --start.",
            table=table,
            column=start,
            hint=f"Its columns are {', '.join(columns)}.",
        )
    if DELETED in columns and DELETED not in description.by_name:
        raise BatchError(
            "The rows of a re-sync exist in the source: they are not marked as deleted.",
            table=table,
            column=DELETED,
            hint=f"Select the rows that are not deleted, and leave out {DELETED}.",
        )
    if start is None or start == START:
        return rows.drop(SYNCED)
    rows = rows.drop(SYNCED, START)
    if start in description.by_name:
        return select(rows, ["*", f"{quote(start)} AS {START}"])
    return rows.withColumnRenamed(start, START)


def _check_columns(rows: DataFrame, description: TableDescription) -> dict[str, ColumnType]:
    """Return the types of the rows' columns by name.

    Raises:
        BatchError: a column of the table is missing. Its values would be lost in records that have
            changed.
        UnknownColumnError: the table does not have a column.
    """
    table = str(description.name)
    given = {column.name: column.type for column in columns_of(rows.schema, (), table)}
    for name in given:
        if name not in description.by_name:
            raise UnknownColumnError(
                "The re-sync has a column that the table does not have.",
                table=table,
                column=name,
                hint="Leave it out, name it with --start if it is the time of a row's change, or "
                "add it with AlterTable before the re-sync.",
            )
    for column in description.columns:
        if column.name not in given and column.name not in _COMPUTED:
            is_key = column.name in description.record_key
            raise BatchError(
                f"The re-sync lacks a {'key ' if is_key else ''}column.",
                table=table,
                column=column.name,
                hint="Give every key column."
                if is_key
                else f"Give every column of the table, such as NULL AS {quote(column.name)}.",
            )
    return given


def _with_types(
    rows: DataFrame, description: TableDescription, before: dict[str, ColumnType]
) -> DataFrame:
    """Return rows with the table's types, after a check of every value.

    Raises:
        BatchError: values do not fit their column, or a row has no key or no start.
    """
    table = str(description.name)
    after = {name: description.by_name[name].type for name in before if name != START}
    if START in before:
        after[START] = _TIME
    plain = select(rows, [cell_expression(field) for field in rows.schema])
    changed = {name: kind for name, kind in before.items() if kind != after[name]}
    texts, new = convert_columns(plain, changed, {name: after[name] for name in changed})
    needed = [*description.record_key, *([START] if START in before else [])]
    lost = [
        f"count_if({is_lost(quote(name), value, before[name], after[name])})"
        for name, value in new.items()
    ]
    empty = [f"count_if({new.get(name, quote(name))} IS NULL)" for name in needed]
    (counts,) = select(texts, [f"{sql} AS c{n}" for n, sql in enumerate([*lost, *empty])]).collect()
    for name, count in zip(new, counts, strict=False):
        if count:
            raise BatchError(
                f"{count:,} {'value' if count == 1 else 'values'} of type {before[name]} "
                f"{'does' if count == 1 else 'do'} not fit the table's {after[name]}.",
                table=table,
                column=name,
                hint="Correct or CAST them in the source of the re-sync.",
            )
    for name, count in zip(needed, counts[len(lost) :], strict=True):
        if count:
            raise BatchError(
                f"{count:,} {'row' if count == 1 else 'rows'} of the re-sync "
                f"{'has' if count == 1 else 'have'} no {name}.",
                table=table,
                column=name,
                hint="Give every row its key"
                + (" and the time of its last change." if START in before else "."),
            )
    cells = {name: new.get(name, quote(name)) for name in before}
    return select(
        texts,
        [f"CAST({value} AS {after[name].sql}) AS {quote(name)}" for name, value in cells.items()],
    )


def _expect_not_older(lake: Lake, description: TableDescription, at_micros: int) -> None:
    """Refuse a re-sync from before the table's last sync: its missing records would not be found.

    Raises:
        BatchError: a row was synced later.
    """
    if SYNCED not in description.by_name:
        return
    rows: DataFrame = lake.table(description.name).df
    (newest,) = select(rows, [f"unix_micros(max({column_list([SYNCED])})) AS newest"]).collect()[0]
    if newest is not None and newest > at_micros:
        raise BatchError(
            "The table was synced after the time of the re-sync.",
            table=str(description.name),
            hint="Set --at to a time after its newest _fivetran_synced.",
        )
