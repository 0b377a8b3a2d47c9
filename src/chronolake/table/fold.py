"""What the folds of a batch over a table have in common: complete rows, count leftovers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F  # noqa: N812

from chronolake.changes import RESERVED
from chronolake.table.incoming import col

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column as Expression
    from pyspark.sql.window import WindowSpec

#: Column of a folded frame: whether the row is an update that nothing could complete.
IGNORED: Final = f"{RESERVED}ignored"
_SAMPLE_LENGTH: Final = 200


def completed(name: str, *, given: Expression, known: Expression, window: WindowSpec) -> Expression:
    """A column with the cells that a row leaves as they are taken from the row before it.

    Args:
        name: the column.
        given: whether a row brings a value of its own (null is a value); never null.
        known: whether a row's own values may be taken by later rows; never null.
        window: the rows before and including the row, by key, in their order.
    """
    own = F.struct(col(name).alias("value"))
    before = F.last(F.when(given & known, own), ignorenulls=True).over(window)
    return F.when(given, col(name)).otherwise(before.getField("value")).alias(name)


def sample_of(key: Sequence[str], which: Expression) -> Expression:
    """An aggregate: the key of some row of `which` as `column=value, …`, or null."""
    parts = [
        F.concat(F.lit(f"{name}="), F.coalesce(col(name).cast("string"), F.lit("NULL")))
        for name in key
    ]
    text = F.substring(F.concat_ws(", ", *parts), 1, _SAMPLE_LENGTH)
    return F.min(F.when(which, text))
