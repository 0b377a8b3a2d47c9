"""DataFrames of a lake's tables that become Arrow, pandas or Polars without losing a value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.classic.dataframe import DataFrame

from chronolake.errors import MissingRequirementError, ValueRefusedError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from pyspark.sql import DataFrame as AnyFrame


class LakeFrame(DataFrame):  # type: ignore[misc]  # PySpark's types are not read
    """A Spark DataFrame with conversions that hold all times of a history table.

    Active versions end in the year 9999 and converted ones may start in the year 1. Python's
    `datetime` and pandas' nanoseconds hold neither everywhere; Arrow's microseconds hold both.
    """

    def to_arrow(self) -> pa.Table:
        """Return all rows as an Arrow table; timestamps are microseconds in UTC."""
        table: pa.Table = self.toArrow()
        return table

    def to_pandas(self) -> pd.DataFrame:
        """Return all rows as a pandas DataFrame.

        Timestamps are `datetime64[us, UTC]`. Whole numbers and booleans have pandas' nullable
        types, so that a null does not make floats of them; decimals are `decimal.Decimal`.
        """
        return self.to_arrow().to_pandas(types_mapper=_nullable().get)

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
            ValueRefusedError: a time is beyond what pandas holds in nanoseconds.
        """
        try:
            return super().toPandas()
        # pandas' OutOfBoundsDatetime is a ValueError, and so is what Python's datetime raises.
        except (ValueError, OverflowError) as failure:
            raise ValueRefusedError(
                "toPandas() cannot hold a time of this table in nanoseconds, such as the end of "
                "an active version.",
                hint="Use to_pandas(), which keeps microseconds.",
            ) from failure


def lake_frame(frame: AnyFrame) -> LakeFrame:
    """Return a DataFrame with the conversions of `LakeFrame`; nothing is computed."""
    return LakeFrame(frame._jdf, frame.sparkSession)  # noqa: SLF001 - how PySpark makes them itself


def _nullable() -> dict[Any, Any]:
    import pandas as pd  # noqa: PLC0415 - slow to import
    import pyarrow as pa  # noqa: PLC0415 - the same

    return {
        pa.int8(): pd.Int8Dtype(),
        pa.int16(): pd.Int16Dtype(),
        pa.int32(): pd.Int32Dtype(),
        pa.int64(): pd.Int64Dtype(),
        pa.bool_(): pd.BooleanDtype(),
    }
