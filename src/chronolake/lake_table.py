"""Tables of an open lake for reading: rows, history, state at a time, and differences.

Results are DataFrames that convert to Arrow, pandas or Polars without losing a value.
"""

from __future__ import annotations

import warnings
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.classic.dataframe import DataFrame

from chronolake import formatting
from chronolake.change_set import RESERVED
from chronolake.description import describe_loaded
from chronolake.errors import (
    BatchError,
    HistoryWarning,
    MissingRequirementError,
    TableNotFoundError,
    UnknownColumnError,
    ValueRefusedError,
)
from chronolake.instants import micros_of
from chronolake.parsing import clocks_of
from chronolake.session import CATALOG
from chronolake.types import (
    ACTIVE,
    DELETED,
    END,
    HASH,
    HISTORY_COLUMNS,
    START,
    SYNCED,
    TMIN_MICROS,
    VERSION,
    Kind,
    Mode,
    quote,
)

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame as AnyFrame
    from pyspark.sql import SparkSession

    from chronolake.description import TableDescription
    from chronolake.iceberg import Catalog
    from chronolake.types import ColumnType, TableName

    Instant = date | datetime | str


class LakeFrame(DataFrame):  # type: ignore[misc]  # PySpark's types are not read
    """A Spark DataFrame whose conversions support all times of a history table.

    Active versions end in the year 9999, and versions may start in the year 1. Python's `datetime`
    and pandas' nanoseconds do not support this range everywhere; Arrow's microseconds do.
    """

    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table; timestamps are microseconds in UTC."""
        table: pa.Table = self.toArrow()
        return table

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows as a pandas DataFrame.

        Timestamps are `datetime64[us, UTC]`. Integers and booleans have pandas' nullable types, so
        that nulls do not turn them into floats; decimals are `decimal.Decimal`.
        """
        return self.to_arrow().to_pandas(
            types_mapper=_nullable().get,
            # Within objects and lists, too, which have no nullable types.
            integer_object_nulls=True,
        )

    def to_polars(self) -> pl.DataFrame:
        """Return all rows as a Polars DataFrame.

        Raises:
            MissingRequirementError: Polars is not installed.
        """
        try:
            import polars  # noqa: ICN001, PLC0415 - not a dependency
        except ModuleNotFoundError as failure:
            raise MissingRequirementError(
                "Polars is not installed.", hint="Install it with `pip install polars`."
            ) from failure
        frame = polars.from_arrow(self.to_arrow())
        assert isinstance(frame, polars.DataFrame)  # noqa: S101 - a table never makes a Series
        return frame

    def toPandas(self) -> Any:  # noqa: N802 - PySpark's name
        """Return all rows as PySpark converts them.

        Raises:
            ValueRefusedError: a time is outside the range of pandas' nanoseconds.
        """
        try:
            return super().toPandas()
        # pandas' OutOfBoundsDatetime is a ValueError, as are the errors of Python's datetime.
        except (ValueError, OverflowError) as failure:
            raise ValueRefusedError(
                "toPandas() cannot represent a time of this table in nanoseconds, such as the "
                "end of an active version.",
                hint="Use to_pandas(), which keeps microseconds.",
            ) from failure


def lake_frame(frame: AnyFrame) -> LakeFrame:
    """Return a DataFrame with the conversions of `LakeFrame`; nothing is computed."""
    return LakeFrame(frame._jdf, frame.sparkSession)  # noqa: SLF001 - as PySpark creates them


def _nullable() -> dict[Any, Any]:
    import pandas as pd  # noqa: PLC0415 - slow to import
    import pyarrow as pa  # noqa: PLC0415 - slow to import, too

    return {
        pa.int8(): pd.Int8Dtype(),
        pa.int16(): pd.Int16Dtype(),
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
    }


_BEFORE: Final = f"{RESERVED}before"
_AFTER: Final = f"{RESERVED}after"


class LakeTable:
    """A table of an open lake, for reading."""

    def __init__(self, spark: SparkSession, catalog: Catalog, name: TableName) -> None:
        self._spark = spark
        self._catalog = catalog
        self.name = name

    def __repr__(self) -> str:
        return f"LakeTable({str(self.name)!r})"

    @property
    def df(self) -> LakeFrame:
        """Return the table's rows with all columns; the rows of a history table are versions."""
        return lake_frame(self._spark.table(f"{CATALOG}.{self.name.sql}"))

    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table; timestamps are microseconds in UTC."""
        return self.df.to_arrow()

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows as a pandas DataFrame, as `LakeFrame.to_pandas` does."""
        return self.df.to_pandas()

    def to_polars(self) -> pl.DataFrame:
        """Return all rows as a Polars DataFrame.

        Raises:
            MissingRequirementError: Polars is not installed.
        """
        return self.df.to_polars()

    def current(self) -> LakeFrame:
        """Return the records that exist now, without the columns that only describe their state.

        For a history table, these are its active versions without `_fivetran_start`,
        `_fivetran_end` and `_fivetran_active`; for a soft-delete table, the rows that are not
        deleted, without `_fivetran_deleted`; for a live table, all rows.
        """
        mode, rows = self.describe().mode, self.df
        if mode is Mode.HISTORY:
            return lake_frame(rows.where(ACTIVE).drop(*HISTORY_COLUMNS))
        if mode is Mode.SOFT_DELETE:
            is_deleted = F.coalesce(F.col(quote(DELETED)), F.lit(False))
            return lake_frame(rows.where(~is_deleted).drop(DELETED))
        return rows

    def describe(self) -> TableDescription:
        """Return the table's columns, key and mode."""
        table = self._catalog.find(self.name)
        if table is None:
            raise TableNotFoundError(
                "The table was dropped or renamed.",
                table=str(self.name),
                hint="`chronolake tables` lists the existing tables.",
            )
        return describe_loaded(table)

    def history(self, /, **key: Any) -> LakeFrame:
        """Return versions, ordered by key and start; of one record, if its key is given.

        Versions that were deleted before a table was switched to history begin and end in the year
        1. Not every such time fits Python's `datetime` (as in `collect()`): use `to_arrow()`,
        `to_pandas()` or `to_polars()`.

        If the table was switched to history mode, a `HistoryWarning` reports the time from which it
        has history.

        Args:
            key: values of key columns; None means null. A time of day may have any spelling.

        Raises:
            BatchError: the table is not in history mode.
            UnknownColumnError: a column is not part of the record's key.
            ValueRefusedError: a value is not valid for its column's type.
        """
        description = self._history_description()
        self._warn_before(TMIN_MICROS, description)
        rows: AnyFrame = self.df
        for column, value in key.items():
            if column not in description.record_key:
                raise UnknownColumnError(
                    "The column is not part of the record's key.",
                    table=str(self.name),
                    column=column,
                    hint=f"Name columns of the key: {', '.join(description.record_key)}.",
                )
            cell, of = F.col(quote(column)), description.by_name[column].type
            if of.kind is Kind.NAIVE_TIME and isinstance(value, str | time):
                found = cell.isin(clocks_of(str(value)))
            else:
                found = cell.eqNullSafe(self._literal(value, of, column))
            if of.kind in {Kind.FLOAT, Kind.DOUBLE} and value == 0:
                # Equal numbers, but different values in the statistics of files.
                found |= cell.eqNullSafe(F.lit(-0.0).cast(of.sql))
            rows = rows.where(found)
        order = (*description.record_key, START)
        return lake_frame(rows.orderBy(*(F.col(quote(column)) for column in order)))

    def as_of(self, at: Instant) -> LakeFrame:
        """Return each record's version at an instant: start <= `at` < end + epsilon.

        The result is computed from the table's rows, not from Iceberg's snapshots, which expire. If
        the table was switched to history mode after `at`, a `HistoryWarning` is issued.

        Args:
            at: an instant; a naive datetime is in UTC, a text is ISO 8601, a date is its first
                instant in UTC.

        Raises:
            BatchError: the table is not in history mode.
            ValueRefusedError: the text is not a valid time.
        """
        description = self._history_description()
        micros = micros_of(at, table=str(self.name))
        self._warn_before(micros, description)
        return lake_frame(self.df.where(_covers(micros, description.epsilon)))

    def diff(self, before: Instant, after: Instant) -> LakeFrame:
        """Return the records that differ between two instants.

        Records are compared by their values, without `_fivetran_synced`, `_chronolake_version` and
        the history columns: a version that changed nothing is not a difference. If `as_of` returns
        two versions of a record at an instant, because it was deleted and inserted again within
        epsilon, the later one is used.

        Args:
            before: an instant, as for `as_of`.
            after: a later instant.

        Returns:
            One row for each record that differs: `key`, a struct of the key columns; `change`, one
                of
            `inserted`, `changed` and `deleted`; `old` and `new`, structs of all compared columns,
            which are null if the record did not exist.

        Raises:
            BatchError: the table is not in history mode.
            ValueRefusedError: a text is not a valid time, or the first instant is after the second.
        """
        description = self._history_description()
        first, second = (
            micros_of(before, table=str(self.name)),
            micros_of(after, table=str(self.name)),
        )
        if first > second:
            raise ValueRefusedError(
                f"{formatting.instant(first)} is after {formatting.instant(second)}.",
                table=str(self.name),
                hint="Pass the earlier time first.",
            )
        self._warn_before(first, description)
        key = description.record_key
        if not key:
            raise BatchError(
                "The table has no primary key, so its records cannot be identified.",
                table=str(self.name),
                hint="Give it a key with AlterTable.",
            )
        hidden = {*HISTORY_COLUMNS, SYNCED, VERSION, HASH}
        shown = [column.name for column in description.columns if column.name not in hidden]
        state = F.expr(f"struct({', '.join(map(quote, shown))})")
        found = (
            self.df.withColumns(
                {
                    _BEFORE: _covers(first, description.epsilon),
                    _AFTER: _covers(second, description.epsilon),
                }
            )
            .where(F.col(_BEFORE) | F.col(_AFTER))
            # A version that was valid at both times is not a difference, unless another version was
            # valid at one of them, too: just before the first time, or if this version ended before
            # the second.
            .where(
                ~(F.col(_BEFORE) & F.col(_AFTER))
                | (F.col(START) > _instant_of(first - description.epsilon))
                | (F.col(END) <= _instant_of(second))
            )
            .groupBy(*(F.col(quote(name)) for name in key))
            .agg(
                F.max_by(state, F.when(F.col(_BEFORE), F.col(START))).alias(_BEFORE),
                F.max_by(state, F.when(F.col(_AFTER), F.col(START))).alias(_AFTER),
            )
            .where(f"NOT ({_BEFORE} <=> {_AFTER})")
        )
        change = (
            F.when(F.col(_BEFORE).isNull(), "inserted")
            .when(F.col(_AFTER).isNull(), "deleted")
            .otherwise("changed")
        )
        return lake_frame(
            found.select(
                F.struct(*(F.col(quote(name)) for name in key)).alias("key"),
                change.alias("change"),
                F.col(_BEFORE).alias("old"),
                F.col(_AFTER).alias("new"),
            )
        )

    def _warn_before(self, micros: int, description: TableDescription) -> None:
        since = description.history_since
        if since is None or micros >= since:
            return
        warnings.warn(
            f"{self.name} has history since {formatting.instant(since)}, when it was switched to "
            "history mode; its earlier states are not known.",
            HistoryWarning,
            # The caller of the public method.
            stacklevel=3,
        )

    def _literal(self, value: Any, of: ColumnType, column: str) -> Expression:
        """Return a value as a literal of a column's type; it is checked now, before Spark runs."""
        kind = of.sql
        # Integers of any size become literals if they are passed as text.
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        literal = F.lit(str(value) if is_whole else value)
        if value is not None and not self._fits(value, literal, kind):
            raise ValueRefusedError(
                f"{value!r} is not a valid {kind}.",
                table=str(self.name),
                column=column,
                hint=f"Give a value such as {formatting.EXAMPLES.get(of.kind, 'a text')}.",
            )
        return literal.try_cast(kind)

    def _fits(self, value: Any, literal: Expression, kind: str) -> bool:
        is_time, wants_time = isinstance(value, date), kind.startswith(("timestamp", "date"))
        if not isinstance(value, str) and kind != "string" and is_time != wants_time:
            # Numbers would be cast to times without a defined unit.
            return False
        if isinstance(value, bool) and kind != "boolean":
            return False
        row = self._spark.range(1).select(literal.alias("given"))
        given = F.col("given")
        try:
            fits = given.try_cast(kind).isNotNull()
            if not isinstance(value, int | str) and kind != "float":
                # A cast that changes the value does not fit: 1.5 is not 1.
                fits &= given.try_cast(kind).try_cast(row.schema[0].dataType).eqNullSafe(given)
            found = row.select(fits).first()
        except PySparkException:
            return False
        return found is not None and bool(found[0])

    def _history_description(self) -> TableDescription:
        description = self.describe()
        if description.mode is not Mode.HISTORY:
            raise BatchError(
                f"The table is in {description.mode} mode and keeps no history.",
                table=str(self.name),
                hint="Only history tables have versions and past states; `chronolake mode TABLE "
                "history` starts to keep them.",
            )
        return description


def _covers(micros: int, epsilon: int) -> Expression:
    """Return the condition that a version is valid at an instant.

    Both comparisons are between a column and a constant, so that files and row groups are skipped
    by their statistics.
    """
    return (F.col(START) <= _instant_of(micros)) & (F.col(END) > _instant_of(micros - epsilon))


def _instant_of(micros: int) -> Expression:
    return F.timestamp_micros(F.lit(micros))
