"""SQL types, names and literals of the reference destination."""

from __future__ import annotations

import csv

from chronolake.protos import common_pb2 as common

START, END, ACTIVE = "_fivetran_start", "_fivetran_end", "_fivetran_active"
SYNCED, DELETED = "_fivetran_synced", "_fivetran_deleted"
TMAX, TMIN = "TIMESTAMP '9999-12-31 23:59:59.999'", "TIMESTAMP '0001-01-01 00:00:00'"
MILLI = "INTERVAL 1 MILLISECOND"
csv.field_size_limit(2**30)

_TYPES = {
    common.BOOLEAN: "BOOLEAN",
    common.SHORT: "SMALLINT",
    common.INT: "INTEGER",
    common.LONG: "BIGINT",
    common.FLOAT: "FLOAT",
    common.DOUBLE: "DOUBLE",
    common.NAIVE_DATE: "DATE",
    common.NAIVE_DATETIME: "TIMESTAMP",
    common.UTC_DATETIME: "TIMESTAMP",
    common.BINARY: "BLOB",
}


class Refused(Exception):  # noqa: N818 - an answer, not an error
    """An error that the customer can correct: returned as a task."""


def ident(name):
    return '"' + name.replace('"', '""') + '"'


def text(value):
    return "'" + value.replace("'", "''") + "'"


def sql_type(column):
    if column.type == common.DECIMAL:
        return f"DECIMAL({column.params.decimal.precision},{column.params.decimal.scale})"
    return _TYPES.get(column.type, "VARCHAR")


def settled(column):
    """Return the column, with the default precision if it is a DECIMAL without one."""
    copy = common.Column()
    copy.CopyFrom(column)
    if copy.type == common.DECIMAL and not copy.HasField("params"):
        copy.params.decimal.precision, copy.params.decimal.scale = 38, 10
    return copy


def new_column(name, kind, *, key=False):
    return settled(common.Column(name=name, type=kind, primary_key=key))
