"""Files of a raw lake as record versions, read by Spark.

The files' footers tell their schemas; files that agree are read together, by Spark's own reader.
What forms the fields have decides the types of the table: mostly the footers tell that, too, and
for the other fields one pass looks at their columns. Then the rows are read in these types.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Final

from chronolake.change_set import (
    DELETED_AT,
    LANDED_FILE,
    LANDED_ROW,
    MODIFIED,
    OMITTED,
    PROVIDES_DATA,
    PURGED_AT,
    RESERVED,
    SEQUENCE,
)
from chronolake.errors import SourceError
from chronolake.landing import field_types as lake_fields
from chronolake.landing.bad_file import naming_bad_files
from chronolake.landing.control_records import Namings
from chronolake.landing.field_types import (
    FORM_OF,
    Form,
    Group,
    Mark,
    Seen,
    by_field,
    grouped,
    is_field,
    of_integers,
    type_of,
)
from chronolake.landing.file_schema import IS_MARK, UNMODIFIED, key_of, types_of
from chronolake.landing.footers import ColumnStatistics, Footers, footers
from chronolake.types import Column, ColumnType, Kind, literal, quoted

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from chronolake.landing.field_types import Field
    from chronolake.landing.layout import DataFile

#: The column that identifies a record.
KEY: Final = Column(lake_fields.ID, ColumnType(Kind.STRING), primary_key=True)
#: When the source says that a record was modified: a column where no history column tells it.
SOURCE_TIME: Final = Column(lake_fields.MODIFIED, ColumnType(Kind.UTC_DATETIME))

#: Where a row stands, as Spark tells it.
_PLACE: Final = {LANDED_FILE: "file_name", LANDED_ROW: "row_index"}
#: Fields of the lake's writer, about a version.
_PROVIDED_BY_VERSION: Final = "grax__"

_SIMPLE: Final = {
    Form.TEXT: Seen.TEXT,
    Form.BOOLEAN: Seen.BOOLEAN,
    Form.FLOAT: Seen.FLOAT,
    Form.TIMESTAMP: Seen.TIMESTAMP,
    Form.TIME: Seen.TIME,
    Form.DATE: Seen.DATE,
}

SeenByField = dict[str, frozenset[Mark]]


@dataclass(frozen=True)
class Landing:
    """Files that are applied together.

    Attributes:
        files: in the order of their writing.
        groups: the files that are read together, and what their columns mean.
        key: the fields that identify a record.
        seen: what forms every field has in these files, or what types it was declared to have; none
            for a field without any value that nobody declared.
        rows: how many rows the files have.
        namings: how fields were called, and are by now.
        has_each_once: whether it is known that no record is in them twice.
    """

    spark: SparkSession
    files: tuple[DataFile, ...]
    groups: tuple[Group, ...]
    key: tuple[str, ...]
    seen: SeenByField
    rows: int
    namings: Namings
    has_each_once: bool = False

    @property
    def watermark(self) -> str:
        """The last of the files."""
        return self.files[-1].mark

    @property
    def is_silent(self) -> bool:
        """Whether the files tell neither of records nor of columns."""
        return not (self.rows or self.seen)

    @property
    def has_purges(self) -> bool:
        """Whether some row may say that its record was purged."""
        return any(lake_fields.PURGED in group.fields for group in self.groups)

    @property
    def declared_key(self) -> tuple[Column, ...]:
        """The key's columns as files of our own declare them; empty for others."""
        every = (field for group in self.groups for field in group.fields.values())
        types = {field.name: field.declared for field in every if field.declared is not None}
        return tuple(
            Column(name, types[name], primary_key=True) for name in self.key if name in types
        )

    def versions(self, columns: Sequence[Column]) -> DataFrame:
        """The rows as record versions (`chronolake.change_set`).

        Args:
            columns: the data columns with types that hold what was seen, the key among them, and
                `SOURCE_TIME` if it is wanted.
        """
        frames = [self._versions_of(group, columns) for group in self.groups]
        return reduce(lambda one, other: one.unionByName(other), frames)

    def _versions_of(self, group: Group, columns: Sequence[Column]) -> DataFrame:
        by_name = by_field(group.fields)
        system = {
            MODIFIED: _time(by_name, lake_fields.MODIFIED),
            SEQUENCE: f"nullif(CAST({quoted(lake_fields.SEQUENCE)} AS STRING), '')",
            DELETED_AT: _time(by_name, lake_fields.DELETED),
            PURGED_AT: _time(by_name, lake_fields.PURGED),
            PROVIDES_DATA: _tells(by_name),
            OMITTED: _omitted(by_name),
            **{name: name for name in _PLACE},
        }
        data = {
            column.name: _value(by_name.get(column.name, {}), column.type) for column in columns
        }
        if lake_fields.PURGED in by_name:
            # What a purge says of its record is that nothing is to be said of it.
            is_purge = f"{system[PURGED_AT]} IS NOT NULL"
            data = {
                name: f"IF({is_purge}, NULL, {value})" if self._is_erasable(name) else value
                for name, value in data.items()
            }
        identifier = group.fields.get(KEY.name)
        if identifier is not None and identifier.declared is None:
            data[KEY.name] = f"nullif(CAST({_cell(identifier)} AS STRING), '')"
        if SOURCE_TIME.name in data:
            data[SOURCE_TIME.name] = f"timestamp_micros({system[MODIFIED]})"
        chosen = (f"{value} AS {quoted(name)}" for name, value in {**data, **system}.items())
        rows = _read(self.spark, self.files, group)
        # A field of that name hides Spark's own column, but not from this way to it.
        place = rows.metadataColumn("_metadata")
        reported = {name: place[part].alias(name) for name, part in _PLACE.items()}
        return rows.select("*", *reported.values()).selectExpr(*chosen)

    def _is_erasable(self, name: str) -> bool:
        """Whether a field is data of the record, and not what tells of it or of its version."""
        return name not in {*self.key, SOURCE_TIME.name} and not name.startswith(
            _PROVIDED_BY_VERSION
        )


def landing(
    spark: SparkSession, files: Sequence[DataFile], namings: Namings | None = None
) -> Landing:
    """Look at files: their footers, and what forms their fields have.

    Args:
        spark: the session.
        files: at least one, in the order of their writing.
        namings: how fields were called; all is told under the names of now.

    Raises:
        BadFileError: files cannot be read, lack a column that every file has, or have a column that
            cannot be read.
        SourceError: a file is gone or may not be read, or the files do not agree on what identifies
            a record.
    """
    namings = namings or Namings()
    found = footers(spark, files, namings)
    key = _key_of(found, files)
    groups = tuple(grouped((one.fields, one.unread, one.numbers) for one in found))
    # In the order in which the files brought them.
    seen: SeenByField = {}
    asked: set[str] = set()
    for one in sorted(found, key=lambda one: one.numbers):
        reported, unknown = told_by(one)
        seen, asked = united(seen, reported), asked | unknown
    for group in groups:
        if any(field.name in asked for field in group.fields.values()):
            with naming_bad_files(files):
                seen = united(seen, _seen_in(_read(spark, files, group), group, asked))
    rows = sum(one.rows for one in found)
    landings = {one.each_once for one in found if one.rows}
    has_each_once = len(landings) == 1 and None not in landings
    return Landing(spark, tuple(files), groups, key, seen, rows, namings, has_each_once)


def _key_of(found: Sequence[Footers], files: Sequence[DataFile]) -> tuple[str, ...]:
    keys: dict[tuple[str, ...], DataFile] = {}
    for one in found:
        key = key_of(one.declaration) if one.declaration else (KEY.name,)
        keys.setdefault(tuple(sorted(key)), files[one.numbers[0]])
    if len(keys) > 1:
        (one_key, _), (other, file), *_ = keys.items()
        raise SourceError(
            f"Some files identify a record by {', '.join(one_key)}, and others by "
            f"{', '.join(other)}.",
            file=str(file.path),
            hint="Files that identify records otherwise make another table, in a lake apart.",
        )
    return next(iter(keys), (KEY.name,))


def told_by(footer: Footers) -> tuple[SeenByField, set[str]]:
    """What footers tell of the forms of fields, and the fields of which they do not tell enough."""
    if footer.declaration:
        types = types_of(footer.declaration)
        return {name: frozenset({kind}) for name, kind in types.items()}, set()
    seen: SeenByField = {}
    unknown: set[str] = set()
    for name, forms in by_field(footer.fields).items():
        if not is_field(name):
            continue
        known = {form: _known(footer, field) for form, field in forms.items()}
        typed = [known[form] for form in forms if form is not Form.TEXT]
        marks = {
            _one_seen(form, reported.values > 0, reported.bounds)
            for form, reported in known.items()
            if form is not Form.TEXT
        }
        text = known.get(Form.TEXT)
        if text is not None and all(reported.is_complete for reported in typed):
            # Where every row has a typed value, no text stands alone; where none has, all do.
            if not any(reported.values for reported in typed):
                marks.add(Seen.TEXT if text.has_text else None)
            elif text.has_text and all(reported.values < footer.rows for reported in typed):
                unknown.add(name)
        if not all(reported.is_complete for reported in known.values()):
            unknown.add(name)
        seen[name] = frozenset(mark for mark in marks if mark is not None)
    return seen, unknown


def _known(footer: Footers, field: Field) -> ColumnStatistics:
    reported = footer.columns.get(field.column, ColumnStatistics(is_complete=False))
    if field.form is not Form.TEXT or field.physical.ddl == "string":
        return reported
    # Bounds say nothing about the texts of other types: numbers have one, bytes may be empty.
    is_complete = reported.is_complete and field.physical.ddl != "binary"
    return replace(reported, has_text=reported.values > 0, is_complete=is_complete)


def united(one: Mapping[str, frozenset[Mark]], other: Mapping[str, frozenset[Mark]]) -> SeenByField:
    """What was seen here or there."""
    names = dict.fromkeys([*one, *other])
    return {name: one.get(name, frozenset()) | other.get(name, frozenset()) for name in names}


def columns_of(seen: Mapping[str, Iterable[Mark]], key: Sequence[str]) -> tuple[Column, ...]:
    """The columns of a table of fields of which this was seen.

    Args:
        seen: what was seen of every field.
        key: the fields that identify a record.
    """
    types = {name: type_of(every) for name, every in seen.items()}
    columns = tuple(
        Column(name, kind, primary_key=name in key)
        for name, kind in types.items()
        if kind is not None
    )
    return columns if any(column.primary_key for column in columns) else (KEY, *columns)


def _read(spark: SparkSession, files: Sequence[DataFile], group: Group) -> DataFrame:
    columns = ", ".join(
        f"{quoted(name)} {field.physical.ddl}" for name, field in group.fields.items()
    )
    return read_files(spark, [files[number] for number in group.files], columns)


def read_files(spark: SparkSession, files: Sequence[DataFile], columns: str) -> DataFrame:
    """Columns of files, given as a Spark schema; null in files that have no such column."""
    # Otherwise the folders' names would become columns.
    reader = spark.read.schema(columns).option("recursiveFileLookup", "true")
    return reader.parquet(*(literally(file.path) for file in files))


def literally(path: Path) -> str:
    """Return a path as Spark takes it literally: not a pattern, and not on `fs.defaultFS`."""
    return "file://" + re.sub(r"([\\{}\[\]*?])", r"\\\1", str(path))


# ------------------------------------------------------------------ values


def _cell(field: Field) -> str:
    """Return SQL for a column's value, times as Spark's own; an empty text is null."""
    value = field.physical.value(quoted(field.column))
    return f"nullif(CAST({value} AS STRING), '')" if field.form is Form.TEXT else value


def _value(forms: Mapping[Form, Field], kind: ColumnType) -> str:
    """A field's value in the type of its column, as SQL."""
    declared = next((field.declared for field in forms.values() if field.declared), None)
    if declared is not None:
        return _declared_value(forms, declared, kind)
    cells = {form: _cell(field) for form, field in forms.items()}
    if kind.kind is Kind.NAIVE_TIME:
        # Written in one way, whatever the source's texts look like.
        found = [cells[form] for form in (Form.TIME, Form.TEXT) if form in cells]
    elif kind.kind is Kind.DOUBLE:
        found = [cells[form] for form in (Form.FLOAT, Form.INTEGER) if form in cells]
    elif kind.kind in FORM_OF:
        found = [cells[form] for form in (FORM_OF[kind.kind],) if form in cells]
    else:
        # The text is the source's own spelling; without it, the typed value has to do.
        found = [cells[form] for form in Form if form in cells]
    parts = [f"CAST({cell} AS {kind.sql})" for cell in found]
    return f"coalesce({', '.join([*parts, f'CAST(NULL AS {kind.sql})'])})"


def _declared_value(forms: Mapping[Form, Field], declared: ColumnType, kind: ColumnType) -> str:
    """A value that was written by `writing.land`: in files of our own, empty texts are values."""
    columns = {form: quoted(field.column) for form, field in forms.items()}
    text = columns[Form.TEXT]
    typed = next((column for form, column in columns.items() if form is not Form.TEXT), text)
    if kind.kind is Kind.BINARY:
        return f"unbase64({text})"
    # In another type than its own, a text is the value's spelling: 5 does not become 5.0.
    value = text if kind.sql == "string" and kind != declared else typed
    return f"CAST({value} AS {kind.sql})"


def _time(by_name: Mapping[str, Mapping[Form, Field]], name: str) -> str:
    """A time of the lake itself in microseconds, as SQL; null where files have no such column."""
    for field in by_name.get(name, {}).values():
        return f"unix_micros({_cell(field)})"
    return "CAST(NULL AS BIGINT)"


def _tells(by_name: Mapping[str, Mapping[Form, Field]]) -> str:
    """Whether a row says what its record was, as SQL."""
    is_purge = f"{_time(by_name, lake_fields.PURGED)} IS NOT NULL"
    is_mark = quoted(IS_MARK) if IS_MARK in by_name else "false"
    return f"NOT ({is_purge} OR coalesce({is_mark}, false))"


def _omitted(by_name: Mapping[str, Mapping[Form, Field]]) -> str:
    """The fields of which a row says nothing, as SQL; null where it says all."""
    if UNMODIFIED not in by_name:
        return "CAST(NULL AS ARRAY<STRING>)"
    named = f"from_json({quoted(UNMODIFIED)}, 'array<string>')"
    (field,) = by_name[UNMODIFIED].values()
    if not field.renamed:
        return named
    whens = (f"WHEN {literal(old)} THEN {literal(new)}" for old, new in field.renamed)
    return f"transform({named}, name -> CASE name {' '.join(whens)} ELSE name END)"


# ------------------------------------------------------------------ what was seen


def _seen_in(rows: DataFrame, group: Group, asked: AbstractSet[str]) -> SeenByField:
    """What forms some fields have in a group's files, by a look at their columns."""
    measured: list[str] = []
    meaning: list[tuple[str, Form]] = []
    for name, forms in by_field(group.fields).items():
        if name not in asked:
            continue
        typed = [_cell(field) for form, field in forms.items() if form is not Form.TEXT]
        for form, field in forms.items():
            cell = _cell(field)
            found = f"any({cell} IS NOT NULL)"
            if form is Form.TEXT:
                is_typed = " OR ".join(f"{other} IS NOT NULL" for other in typed) or "false"
                found = f"any({cell} IS NOT NULL AND NOT ({is_typed}))"
            bounds = [f"min({cell})", f"max({cell})"] if form is Form.INTEGER else ["NULL", "NULL"]
            measured += [found, *bounds]
            meaning.append((name, form))
    aliased = (f"{value} AS {RESERVED}{number}" for number, value in enumerate(measured))
    (row,) = rows.selectExpr(*aliased).collect()
    seen: SeenByField = {}
    for number, (name, form) in enumerate(meaning):
        is_there, least, greatest = row[3 * number : 3 * number + 3]
        one = _one_seen(form, is_there, None if least is None else (least, greatest))
        if one is not None:
            seen[name] = seen.get(name, frozenset()) | {one}
    return seen


def _one_seen(
    form: Form,
    is_there: bool | None,  # noqa: FBT001
    bounds: tuple[int, int] | None,
) -> Seen | None:
    """What values of a form amount to."""
    if form is Form.INTEGER:
        return None if bounds is None else of_integers(*bounds)
    return _SIMPLE[form] if is_there else None
