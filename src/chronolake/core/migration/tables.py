"""Table migrations: drop, rename, copy.

Source: `specs/partner-sdk.md` 4.8. Every operation is one step of the catalog and idempotent.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final

import structlog
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from chronolake.cancellation import raise_if_cancelled
from chronolake.change_set import expect_unreserved
from chronolake.containment import files_elsewhere
from chronolake.core.history_only import expect_mode
from chronolake.core.migration.modes import convert_to
from chronolake.core.publish import expect_destination_table, publish_with_retries
from chronolake.core.rewrite import drop_abandoned
from chronolake.core.sql import column_list
from chronolake.core.table_swap import publish_new, publish_replacement
from chronolake.core.views import drop_current_view
from chronolake.description import describe_loaded
from chronolake.errors import SchemaError, TableExistsError, TableNotFoundError
from chronolake.failpoints import reach
from chronolake.iceberg import java_message_of
from chronolake.session import CATALOG
from chronolake.types import EPSILON_PROPERTY, HISTORY_SINCE_PROPERTY, Mode

log = structlog.get_logger(__name__)

#: The identity of the table from which a copy was made.
COPIED_FROM_PROPERTY: Final = "chronolake.copied-from"
#: Properties that a copy needs for the versions that it gets.
_OF_VERSIONS: Final = (HISTORY_SINCE_PROPERTY, EPSILON_PROPERTY)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from chronolake.iceberg import IcebergTable
    from chronolake.lake import Lake
    from chronolake.types import Column, TableName

    _Rows = tuple[tuple[Column, ...], str, dict[str, str]]


def drop_table(lake: Lake, name: TableName) -> bool:
    """Remove a table, its files and its view; return False if it does not exist.

    Files that a crash left in its folder, or that belonged to it in another mode, are removed with
    it if this lake created the folder. Files that its metadata lists in other folders are kept.

    Raises:
        ConfigurationError: a pipeline fills the table.
        LakeLocationError: the table is outside the opened lake.
    """
    with lake.writing(name):
        table = lake.catalog.find(name)
        purge = True
        if table is not None:
            expect_destination_table(table)
            lake.containment.expect_inside(table)
            purge = _has_all_files(table)
        reach("publish.before-commit")
        raise_if_cancelled()
        dropped = lake.catalog.drop(name, purge=purge)
        reach("publish.after-commit")
        drop_current_view(lake, name)
        if table is not None and lake.made_location(table.location):
            lake.catalog.delete_folder(table)
    return dropped


def _has_all_files(table: IcebergTable) -> bool:
    """Return whether every file that a table lists is in its folder, as far as it can be read."""
    try:
        return next(files_elsewhere([table]), None) is None
    except (Py4JError, PySparkException) as failure:
        log.warning("files_kept", table=str(table.name), reason=java_message_of(failure))
        return False


def rename_table(lake: Lake, name: TableName, new_name: TableName) -> bool:
    """Rename a table; its data and key do not change.

    Returns:
        False if only the new name exists: the table was renamed before.

    Raises:
        TableNotFoundError: neither name exists.
        TableExistsError: both names exist; nothing has changed.
        ConfigurationError: a pipeline fills the table.
        LakeLocationError: the table is outside the opened lake.
        SchemaError: the new schema is reserved, or a table with the new name can only be in history
            mode.
    """
    expect_unreserved(new_name)
    with _lock_tables(lake, name, new_name):
        table = lake.catalog.find(name)
        if table is None:
            if lake.catalog.find(new_name) is not None:
                # An earlier rename may have crashed before this.
                drop_current_view(lake, name)
                return False
            raise TableNotFoundError(
                "The table to rename does not exist.", table=str(name), hint="Create it first."
            )
        expect_destination_table(table)
        expect_mode(lake.config, new_name, describe_loaded(table).mode)
        lake.containment.expect_inside(table)
        reach("publish.before-commit")
        raise_if_cancelled()
        lake.catalog.rename(name, new_name)
        reach("publish.after-commit")
        # The view would query the old name.
        drop_current_view(lake, name)
    return True


def copy_table(lake: Lake, name: TableName, new_name: TableName) -> None:
    """Create a table with the columns, key and rows of another, which does not change.

    If the new name belongs to a copy of this table that has not been written since, the copy gets
    the rows again: the request was sent before.

    Raises:
        TableNotFoundError: the table does not exist.
        TableExistsError: the new name belongs to a table that is not such a copy; nothing has
            changed.
        SchemaError: the new schema is reserved, or a table with the new name can only be in history
            mode.
        CommitError: the copy could not be published.
    """

    def as_it_is(source: IcebergTable) -> _Rows:
        columns = describe_loaded(source).columns
        query = f"SELECT {column_list(column.name for column in columns)} FROM {CATALOG}.{name.sql}"
        reported = {name: source.property_of(name) for name in _OF_VERSIONS}
        return (
            columns,
            query,
            {name: value for name, value in reported.items() if value is not None},
        )

    _copy(lake, name, new_name, as_it_is)


def copy_table_to_history(
    lake: Lake, name: TableName, new_name: TableName, *, markers: Sequence[str]
) -> None:
    """Create a history table from a soft-delete or live table, which does not change.

    Args:
        name: the table to copy.
        new_name: the history table.
        markers: the columns that mark deleted rows; empty: no row is deleted.

    Raises:
        TableNotFoundError: the table does not exist.
        TableExistsError: the new name belongs to a table that is not such a copy; nothing has
            changed.
        SchemaError: the table has no key, or a conflicting column.
        UnknownColumnError: none of the markers exists.
        CommitError: the copy could not be published.
    """

    def as_history(source: IcebergTable) -> _Rows:
        description = describe_loaded(source)
        if description.mode is Mode.HISTORY:
            raise SchemaError(
                "The table to copy is already in history mode.",
                table=str(name),
                hint="Copy the table without switching its mode.",
            )
        conversion = convert_to(lake.spark, description, Mode.HISTORY, markers=markers)
        return conversion.columns, conversion.query, conversion.properties

    _copy(lake, name, new_name, as_history)


def _copy(
    lake: Lake, name: TableName, new_name: TableName, rows_of: Callable[[IcebergTable], _Rows]
) -> None:
    drop_abandoned(lake)

    def attempt(source: IcebergTable) -> None:
        columns, query, properties = rows_of(source)
        copied_from = str(source.metadata.uuid())
        properties = {**properties, COPIED_FROM_PROPERTY: copied_from}
        target = lake.catalog.find(new_name)
        if target is None:
            publish_new(lake, new_name, columns, query, properties)
        elif target.property_of(COPIED_FROM_PROPERTY) == copied_from and target.is_unwritten:
            publish_replacement(lake, target, columns, query, properties)
        else:
            raise TableExistsError(
                "A table with the new name exists, and it is not an unchanged copy of this table.",
                table=str(new_name),
                hint="Choose another name, or drop the table first.",
            )

    with _lock_tables(lake, name, new_name):
        publish_with_retries(lake, name, attempt, allow_pipeline_table=True)


@contextmanager
def _lock_tables(lake: Lake, *names: TableName) -> Iterator[None]:
    """Lock several tables, always in the same order, which prevents deadlocks."""
    with ExitStack() as held:
        for name in sorted(set(names)):
            held.enter_context(lake.writing(name))
        yield
