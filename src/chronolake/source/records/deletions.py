"""Fields that mark records as deleted: what their values mean.

Sources have booleans, times of the deletion, and numbers that are either, as databases and APIs
store them: zero means that the record was not deleted.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

#: Texts without white space, in lower case, that mark a record as not deleted, and as deleted.
IS_UNSET: Final = r"^(false|f|no|n|[-+]?0+([.]0*)?)?$"
IS_SET: Final = r"^(true|t|yes|y|[-+]?[0-9].*)$"


def are_marked(values: pa.Array) -> pa.Array | None:
    """Return which values mark a record as deleted; None if a text may mean either.

    Null, false, zero and an empty text mean that it was not deleted. A text is understood if it is
    empty, `true`, `yes`, `false` or `no`, the first letter of these, or begins with a digit, as
    numbers and times do.
    """
    kind = values.type
    if pa.types.is_boolean(kind):
        return pc.fill_null(values, False)
    is_decimal = pa.types.is_decimal(kind)
    if is_decimal or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        zero = pa.scalar(Decimal(0) if is_decimal else 0, kind)
        return pc.fill_null(pc.not_equal(values, zero), False)
    if not pa.types.is_string(kind):
        return pc.is_valid(values)
    texts = pc.utf8_lower(pc.utf8_trim_whitespace(pc.fill_null(values, "")))
    is_unset = pc.match_substring_regex(texts, IS_UNSET)
    is_set = pc.match_substring_regex(texts, IS_SET)
    if not pc.all(pc.or_(is_unset, is_set), min_count=0).as_py():
        return None
    return pc.invert(is_unset)
