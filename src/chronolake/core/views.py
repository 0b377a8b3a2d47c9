"""Views for SQL users: the current state of a history table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chronolake.core.sql import column_list
from chronolake.errors import SchemaError, TableExistsError
from chronolake.session import CATALOG, active
from chronolake.types import ACTIVE, HISTORY_COLUMNS, Mode, TableName

if TYPE_CHECKING:
    from chronolake.lake import Lake


#: Property that marks views created here: other views with such a name are left alone.
_MADE_FOR: Final = "chronolake.view"


def current_view_of(name: TableName) -> TableName:
    """Return the name of the view of a history table's active versions."""
    return TableName(name.schema, f"{name.table}_current")


def drop_current_view(lake: Lake, name: TableName) -> bool:
    """Drop the view that `create_current_view` created; return False if it does not exist."""
    return lake.catalog.drop_view(current_view_of(name), having=_MADE_FOR)


def create_current_view(lake: Lake, name: TableName) -> TableName:
    """Create or replace the view `<table>_current`: a history table's active versions.

    It has the table's current columns without the history columns, and always its current rows.
    After a change of the table's columns it has to be created again.

    Returns:
        The view's name.

    Raises:
        TableNotFoundError: the table does not exist.
        SchemaError: the table is not in history mode: it already is its own current state.
        TableExistsError: a table has the view's name.
    """
    view = current_view_of(name)
    with lake.writing(name):
        description = lake.describe(name)
        if description is None:
            raise lake.missing(name)
        if description.mode is not Mode.HISTORY:
            raise SchemaError(
                f"The table is in {description.mode} mode and already contains only the current "
                "state.",
                table=str(name),
                hint="Create views of history tables only.",
            )
        if lake.describe(view) is not None:
            raise TableExistsError(
                "A table with the view's name exists.",
                table=str(view),
                hint="Rename or drop that table first.",
            )
        columns = column_list(
            column.name for column in description.columns if column.name not in HISTORY_COLUMNS
        )
        with active(lake.spark):
            lake.spark.sql(
                f"CREATE OR REPLACE VIEW {CATALOG}.{view.sql} "
                f"TBLPROPERTIES ('{_MADE_FOR}' = 'current') AS SELECT {columns} "
                f"FROM {CATALOG}.{name.sql} WHERE {ACTIVE}"
            )
    return view
