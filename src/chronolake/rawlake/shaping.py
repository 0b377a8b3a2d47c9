"""Record versions as the rows of a file of our own, in Arrow."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronolake.changes import (
    DELETED_AT,
    MODIFIED,
    OPERATED,
    PURGED_AT,
    SEQUENCE,
    TELLS,
    UNTOLD,
)
from chronolake.rawlake import fields as lake_fields
from chronolake.rawlake.declared import IS_MARK, OPERATION, UNMODIFIED
from chronolake.rawlake.spelling import identifiers_of, json_texts, texts_of
from chronolake.types import Kind

if TYPE_CHECKING:
    from chronolake.rawlake.declared import Declaration

_MICROS: Final = pa.timestamp("us", tz="UTC")
#: The rows of a file that only declares columns.
EMPTY: Final = pa.schema(
    [
        (lake_fields.ID, pa.string()),
        (lake_fields.MODIFIED, _MICROS),
        (lake_fields.SEQUENCE, pa.string()),
    ]
).empty_table()
#: The types in which such files have numbers.
_WIDE: Final = {Kind.SHORT: pa.int64(), Kind.INT: pa.int64(), Kind.FLOAT: pa.float64()}


def rows_of_file(versions: pa.RecordBatch, declaration: Declaration) -> pa.RecordBatch:
    """The rows of a file that stand for some record versions.

    Args:
        versions: record versions as `writing.land` takes them.
        declaration: the fields, and the columns of files that hold them.
    """
    given = set(versions.schema.names)
    values = {
        one.column.name: versions[one.column.name].cast(one.column.type.arrow)
        for one in declaration
    }
    purged = versions[PURGED_AT]
    tells, deleted = pc.is_null(purged), versions[DELETED_AT]
    key = [one.column for one in declaration if one.column.primary_key]
    key_texts = {one.name: texts_of(values[one.name], one.type.kind) for one in key}
    rows = {
        lake_fields.ID: identifiers_of(key, key_texts),
        lake_fields.MODIFIED: versions[MODIFIED].cast(_MICROS),
        lake_fields.SEQUENCE: versions[SEQUENCE].cast(pa.string()),
    }
    if TELLS in given:
        is_deletion = pc.and_(pc.invert(versions[TELLS]), tells)
        rows[IS_MARK] = pc.if_else(is_deletion, True, pa.scalar(None, pa.bool_()))
        # A deletion has one time.
        deleted = pc.if_else(is_deletion, versions[MODIFIED], deleted)
        tells = pc.and_(versions[TELLS], tells)
    rows[lake_fields.DELETED] = deleted.cast(_MICROS)
    rows[lake_fields.PURGED] = purged.cast(_MICROS)
    if UNTOLD in given:
        others = [one.column.name for one in declaration if not one.column.primary_key]
        rows[UNMODIFIED] = _left_out(versions[UNTOLD], others)
    if OPERATED in given:
        rows[OPERATION] = versions[OPERATED].cast(pa.string())
    # A mark says nothing but whose it is.
    all_tell = pc.all(tells, min_count=0).as_py()
    for one in declaration:
        if one.text == lake_fields.ID:
            continue
        name, kind = one.column.name, one.column.type.kind
        value = values[name]
        if not (all_tell or one.column.primary_key):
            value = pc.if_else(tells, value, pa.scalar(None, value.type))
        rows[one.text] = key_texts[name] if name in key_texts else texts_of(value, kind)
        if one.typed is not None:
            rows[one.typed] = value.cast(_WIDE.get(kind, value.type))
    return pa.RecordBatch.from_pydict(rows)


def _left_out(untold: pa.Array, fields: list[str]) -> pa.Array:
    """For each row the fields of which it says nothing as a JSON array, or null."""
    if untold.null_count == len(untold):
        return pa.nulls(len(untold), pa.string())
    names = pc.list_flatten(untold)
    which = pc.index_in(names, pa.array(fields, pa.string()))
    is_field = pc.is_valid(which)
    parents = pc.list_parent_indices(untold).filter(is_field).to_numpy()
    counts = np.bincount(parents, minlength=len(untold))
    offsets = np.zeros(len(untold) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    escaped = json_texts(pa.array(fields, pa.string())).take(which.filter(is_field))
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), escaped), '","')
    told = pc.binary_join_element_wise('["', joined, '"]', "")
    return pc.if_else(pa.array(counts > 0), told, pa.scalar(None, pa.string()))


def incomplete(rows: pa.Table) -> int:
    """How many rows of a file lack what every row has."""
    lacking = [pc.is_null(rows[name]) for name in lake_fields.GUARANTEED]
    found: int = pc.sum(reduce(pc.or_, lacking)).as_py()
    return found
