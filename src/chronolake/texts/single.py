"""Single values that come as text outside a batch file, read as a batch file's cells are."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from chronolake.errors import ValueRefusedError
from chronolake.texts import cells
from chronolake.texts.columns import CellRefusedError, typed

if TYPE_CHECKING:
    from chronolake.types import ColumnType

#: Where a zero is missing before an hour of one digit.
_SHORT_HOUR: Final = re.compile(r"^\s*(?=[0-9]:)")


def value_of(text: str, kind: ColumnType) -> pa.Scalar:
    """The value of a text, as an Arrow scalar of `kind.arrow`.

    An empty text is null, but for columns of text or bytes.

    Raises:
        ValueRefusedError: the text is no value of the type.
    """
    try:
        return typed(pa.array([text], pa.string()), kind, Counter())[0]
    except CellRefusedError as refused:
        raise ValueRefusedError(
            f"The value is no {kind}: {refused.reason}.",
            hint="Write it as it would stand in a batch file.",
        ) from None


def clocks_of(text: str) -> set[str]:
    """What a time of day, such as a key's, may stand as in a table.

    Args:
        text: the time as a person writes it: its hour may have one digit.

    Returns:
        Its one spelling (`cells.clock`), and the text itself: other engines spell times their own
        way, and PostgreSQL has a 24:00:00, which is no time of day in a batch file.
    """
    try:
        return {cells.clock(_SHORT_HOUR.sub("0", text)), text}
    except cells.RefusedError:
        return {text}
