"""Files of a raw lake as record versions, read by Spark.

The files' footers tell their schemas; files that agree are read together, by Spark's own reader.
One pass tells what forms the fields have, which decides the types of the table; another reads the
rows in these types.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from chronolake.changes import (
    DELETED_AT,
    LANDED_FILE,
    LANDED_ROW,
    MODIFIED,
    PURGED_AT,
    RESERVED,
    SEQUENCE,
)
from chronolake.errors import SourceError
from chronolake.rawlake import fields as lake_fields
from chronolake.rawlake.fields import GUARANTEED, Field, Group, fields_of, grouped, is_field
from chronolake.rawlake.forms import Form, Seen, of_integers, type_of
from chronolake.types import Column, ColumnType, Kind, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from chronolake.rawlake.layout import DataFile

#: The column that identifies a record.
KEY: Final = Column(lake_fields.ID, ColumnType(Kind.STRING), primary_key=True)
#: When the source says that a record was modified: a column where no history column tells it.
SOURCE_TIME: Final = Column(lake_fields.MODIFIED, ColumnType(Kind.UTC_DATETIME))

_FOOTERS: Final = "number int, schema binary, problem string"
_FOOTERS_PER_TASK: Final = 50
_SIMPLE: Final = {
    Form.TEXT: Seen.TEXT,
    Form.BOOLEAN: Seen.BOOLEAN,
    Form.FLOAT: Seen.FLOAT,
    Form.TIMESTAMP: Seen.TIMESTAMP,
    Form.TIME: Seen.TIME,
    Form.DATE: Seen.DATE,
}
_FORM_OF: Final = {
    Kind.BOOLEAN: Form.BOOLEAN,
    Kind.INT: Form.INTEGER,
    Kind.LONG: Form.INTEGER,
    Kind.UTC_DATETIME: Form.TIMESTAMP,
    Kind.NAIVE_DATE: Form.DATE,
}

SeenByField = dict[str, frozenset[Seen]]


@dataclass(frozen=True)
class Landing:
    """Files that are applied together.

    Attributes:
        files: in the order of their writing.
        groups: the files that are read together, and what their columns mean.
        seen: what forms every field has in these files; fields without any value are left out.
        rows: how many rows the files have.
    """

    spark: SparkSession
    files: tuple[DataFile, ...]
    groups: tuple[Group, ...]
    seen: SeenByField
    rows: int

    @property
    def watermark(self) -> str:
        """The last of the files."""
        return self.files[-1].mark

    def versions(self, columns: Sequence[Column]) -> DataFrame:
        """The rows as record versions (`chronolake.changes`).

        Args:
            columns: the data columns with types that hold what was seen, `KEY` among them, and
                `SOURCE_TIME` if it is wanted.
        """
        frames = [self._versions_of(group, columns) for group in self.groups]
        return reduce(lambda one, other: one.unionByName(other), frames)

    def _versions_of(self, group: Group, columns: Sequence[Column]) -> DataFrame:
        by_name = _by_field(group)
        system = {
            MODIFIED: _time(by_name, lake_fields.MODIFIED),
            SEQUENCE: f"CAST({quoted(lake_fields.SEQUENCE)} AS STRING)",
            DELETED_AT: _time(by_name, lake_fields.DELETED),
            PURGED_AT: _time(by_name, lake_fields.PURGED),
            LANDED_FILE: "_metadata.file_name",
            LANDED_ROW: "_metadata.row_index",
        }
        data = {
            column.name: _value(by_name.get(column.name, {}), column.type) for column in columns
        }
        data[KEY.name] = f"CAST({quoted(KEY.name)} AS STRING)"
        if SOURCE_TIME.name in data:
            data[SOURCE_TIME.name] = f"timestamp_micros({system[MODIFIED]})"
        chosen = (f"{value} AS {quoted(name)}" for name, value in {**data, **system}.items())
        return _read(self.spark, self.files, group).selectExpr(*chosen)


def landing(spark: SparkSession, files: Sequence[DataFile]) -> Landing:
    """Look at files: their footers, and what forms their fields have.

    Args:
        spark: the session.
        files: at least one, in the order of their writing.

    Raises:
        SourceError: a file cannot be read, lacks a column that every file has, or has a column that
            cannot be read.
    """
    groups = tuple(grouped(_schemas(spark, files)))
    seen: dict[str, frozenset[Seen]] = {}
    rows = 0
    for group in groups:
        found, count = _seen_in(_read(spark, files, group), group)
        rows += count
        seen = united(seen, found)
    return Landing(spark, tuple(files), groups, seen, rows)


def united(one: Mapping[str, frozenset[Seen]], other: Mapping[str, frozenset[Seen]]) -> SeenByField:
    """What was seen here or there."""
    names = dict.fromkeys([*one, *other])
    return {name: one.get(name, frozenset()) | other.get(name, frozenset()) for name in names}


def columns_of(seen: Mapping[str, Iterable[Seen]]) -> tuple[Column, ...]:
    """The columns of a table of fields of which this was seen, the key first."""
    types = {name: type_of(every) for name, every in seen.items()}
    return (KEY, *(Column(name, kind) for name, kind in types.items() if kind is not None))


# ------------------------------------------------------------------ footers


def _schemas(
    spark: SparkSession, files: Sequence[DataFile]
) -> list[tuple[lake_fields.Fields, list[int]]]:
    """The fields of the files, each schema once with the numbers of its files."""
    listed = pa.table(
        {
            "number": pa.array(range(len(files)), pa.int32()),
            "path": pa.array([str(file.path) for file in files], pa.string()),
        }
    )
    tasks = max(1, min(spark.sparkContext.defaultParallelism, len(files) // _FOOTERS_PER_TASK))
    footers = spark.createDataFrame(listed).repartition(tasks).mapInArrow(_footers, _FOOTERS)
    found = footers.selectExpr("number", "schema", "problem").groupBy("schema", "problem")
    schemas = []
    for row in found.agg({"number": "collect_list"}).collect():
        numbers = sorted(row[2])
        first = files[numbers[0]]
        if row["problem"] is not None:
            raise SourceError(
                f"The file is no Parquet file that can be read: {row['problem']}.",
                file=str(first.path),
                hint="Restore the file, or remove it if nothing of it was applied.",
            )
        schemas.append((_fields(pa.ipc.read_schema(pa.py_buffer(row["schema"])), first), numbers))
    return schemas


def _footers(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        schemas: list[bytes | None] = []
        problems: list[str | None] = []
        for path in batch.column("path").to_pylist():
            try:
                # What other tools keep beside a schema says nothing about it.
                schema = pq.read_schema(path).remove_metadata()
            except (OSError, pa.ArrowInvalid) as failure:
                schemas.append(None)
                problems.append(str(failure).partition("\n")[0])
            else:
                schemas.append(schema.serialize().to_pybytes())
                problems.append(None)
        yield pa.RecordBatch.from_arrays(
            [
                batch.column("number"),
                pa.array(schemas, pa.binary()),
                pa.array(problems, pa.string()),
            ],
            names=["number", "schema", "problem"],
        )


def _fields(schema: pa.Schema, file: DataFile) -> lake_fields.Fields:
    physical = {field.name: lake_fields.physical(field.type) for field in schema}
    for name in GUARANTEED:
        if name not in physical:
            raise SourceError(
                f"The file has no column {name}, which every file of a data lake has.",
                file=str(file.path),
                column=name,
                hint="Check that the folder is a Data Lake v2.",
            )
    for field in schema:
        fits = physical[field.name].ddl is not None
        if not fits or (lake_fields.is_time(field.name) and not pa.types.is_timestamp(field.type)):
            raise SourceError(
                f"A column of the Parquet type {field.type} cannot be read here.",
                file=str(file.path),
                column=field.name,
                hint="Fields are texts, with typed values beside them; times are timestamps.",
            )
    return fields_of(physical)


def _read(spark: SparkSession, files: Sequence[DataFile], group: Group) -> DataFrame:
    columns = ", ".join(
        f"{quoted(name)} {field.physical.ddl}" for name, field in group.fields.items()
    )
    return (
        spark.read.schema(columns)
        # Otherwise the folders' names would become columns.
        .option("recursiveFileLookup", "true")
        .parquet(*(str(files[number].path) for number in group.files))
    )


# ------------------------------------------------------------------ values


def _by_field(group: Group) -> dict[str, dict[Form, Field]]:
    found: dict[str, dict[Form, Field]] = {}
    for field in group.fields.values():
        found.setdefault(field.name, {})[field.form] = field
    return found


def _cell(field: Field) -> str:
    """A column's value as SQL, times as Spark's own; an empty text is none."""
    column = quoted(field.column)
    unit = field.physical.per_second
    if field.form is Form.TEXT:
        return f"nullif(CAST({column} AS STRING), '')"
    if field.form is Form.TIMESTAMP and unit:
        # Finer digits than microseconds are cut off, towards the past.
        return f"timestamp_micros(CAST(floor({column} / {unit // 10**6}BD) AS BIGINT))"
    if field.form is Form.TIME and unit:
        micros = f"CAST({column} * {10**6}BD / {unit} AS BIGINT)"
        # What stands after the date is the time of day, without the zeros that end its fraction.
        return f"substring(CAST(timestamp_micros({micros}) AS STRING), 12)"
    return column


def _value(forms: Mapping[Form, Field], kind: ColumnType) -> str:
    """A field's value in the type of its column, as SQL."""
    cells = {form: _cell(field) for form, field in forms.items()}
    found: list[str] = []
    if kind.kind is Kind.DOUBLE:
        found = [cells[form] for form in (Form.FLOAT, Form.INTEGER) if form in cells]
    elif kind.kind in _FORM_OF:
        found = [cells[_FORM_OF[kind.kind]]] if _FORM_OF[kind.kind] in cells else []
    else:
        # The text is the source's own spelling; without it, the typed value has to do.
        found = [cells[form] for form in Form if form in cells]
    parts = [f"CAST({cell} AS {kind.sql})" for cell in found]
    return f"coalesce({', '.join([*parts, f'CAST(NULL AS {kind.sql})'])})"


def _time(by_name: Mapping[str, Mapping[Form, Field]], name: str) -> str:
    """A time of the lake itself in microseconds, as SQL; null where files have no such column."""
    for field in by_name.get(name, {}).values():
        return f"unix_micros({_cell(field)})"
    return "CAST(NULL AS BIGINT)"


# ------------------------------------------------------------------ what was seen


def _seen_in(rows: DataFrame, group: Group) -> tuple[SeenByField, int]:
    """What forms the fields of a group's files have, and how many rows there are."""
    measured: list[str] = []
    meaning: list[tuple[str, Form]] = []
    for name, forms in _by_field(group).items():
        if not is_field(name):
            continue
        typed = [_cell(field) for form, field in forms.items() if form is not Form.TEXT]
        for form, field in forms.items():
            cell = _cell(field)
            if form is Form.TEXT:
                is_typed = " OR ".join(f"{other} IS NOT NULL" for other in typed) or "false"
                pair = [f"any({cell} IS NOT NULL AND NOT ({is_typed}))", "NULL"]
            elif form is Form.INTEGER:
                pair = [f"min({cell})", f"max({cell})"]
            else:
                pair = [f"any({cell} IS NOT NULL)", "NULL"]
            measured += pair
            meaning.append((name, form))
    aliased = [f"{value} AS {RESERVED}{number}" for number, value in enumerate(measured)]
    (row,) = rows.selectExpr(*aliased, "count(1)").collect()
    seen: dict[str, frozenset[Seen]] = {}
    for number, (name, form) in enumerate(meaning):
        first, second = row[2 * number], row[2 * number + 1]
        one = _one_seen(form, first, second)
        if one is not None:
            seen[name] = seen.get(name, frozenset()) | {one}
    return seen, int(row[-1])


def _one_seen(form: Form, first: Any, second: Any) -> Seen | None:
    if form is Form.INTEGER:
        return None if first is None else of_integers(first, second)
    return _SIMPLE[form] if first else None
