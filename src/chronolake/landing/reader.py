"""Reads files of a raw lake as record versions, with Spark.

The files' footers contain their schemas; compatible files are read together, by Spark's own reader.
The forms of the fields decide the types of the table. Most forms are known from the footers; for
the other fields, one pass reads their columns. Then the rows are read with these types.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chronolake.arrow_tasks import map_in_tasks
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
from chronolake.frames import select
from chronolake.landing import field_types as lake_fields
from chronolake.landing.bad_file import naming_bad_files
from chronolake.landing.column_rules import Action, ColumnRules, Protection
from chronolake.landing.control_records import Namings
from chronolake.landing.field_types import (
    FORM_OF,
    FieldType,
    Form,
    Group,
    ObservedType,
    by_field,
    group_files,
    is_field,
    observed_integer_type,
    type_of,
)
from chronolake.landing.file_schema import IS_MARK, UNMODIFIED, key_of, types_of
from chronolake.landing.footers import ColumnStatistics, Footers, read_footers
from chronolake.landing.layout import HourlyFile
from chronolake.object_store import BucketPath
from chronolake.types import DELETE_SOURCE, Column, ColumnType, Kind, literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from pyspark.sql import DataFrame, SparkSession

    from chronolake.landing.field_types import Field
    from chronolake.landing.layout import DataFile, Location

#: The column that identifies a record.
KEY: Final = Column(lake_fields.ID, ColumnType(Kind.STRING), primary_key=True)
#: The source's time of a record's modification: a column if no history column contains it.
SOURCE_TIME: Final = Column(lake_fields.MODIFIED, ColumnType(Kind.UTC_DATETIME))

_NO_RULES: Final = ColumnRules()
#: Lengths of the parts of a sequence in a Data Lake v1: microseconds, and digits of a hash.
_MICROS_DIGITS: Final = 18
_FILE_DIGITS: Final = 16
#: Any type but text.
_NO_TEXT: Final = ColumnType(Kind.LONG)

#: The location of a row in Spark's file metadata.
_PLACE: Final = {LANDED_FILE: "file_name", LANDED_ROW: "row_index"}
#: The URI of a row's file, in files of a Data Lake v1.
_PATH: Final = f"{RESERVED}path"
#: Prefix of fields of the lake's writer, about a version.
_PROVIDED_BY_VERSION: Final = "grax__"

_SIMPLE: Final = {
    Form.TEXT: ObservedType.TEXT,
    Form.BOOLEAN: ObservedType.BOOLEAN,
    Form.FLOAT: ObservedType.FLOAT,
    Form.TIMESTAMP: ObservedType.TIMESTAMP,
    Form.TIME: ObservedType.TIME,
    Form.DATE: ObservedType.DATE,
}

TypesByField = dict[str, frozenset[FieldType]]


@dataclass(frozen=True)
class Landing:
    """Files that are applied together.

    Attributes:
        files: the files, in the order in which they were written.
        groups: the files that are read together, with the fields of their columns.
        key: the fields that identify a record.
        observed: the observed or declared types of every field in these files; empty for a field
            that has no value and was not declared.
        rows: number of rows.
        namings: the earlier and current names of fields.
        has_each_once: whether each record is known to be in the files at most once.
        rules: the rules of fields, if the files are from another writer.
    """

    spark: SparkSession
    files: tuple[DataFile, ...]
    groups: tuple[Group, ...]
    key: tuple[str, ...]
    observed: TypesByField
    rows: int
    namings: Namings
    has_each_once: bool = False
    rules: ColumnRules = _NO_RULES

    @property
    def watermark(self) -> str:
        """Return the last of the files as a watermark."""
        return self.files[-1].mark

    @property
    def is_silent(self) -> bool:
        """Return whether the files have neither rows nor fields."""
        return not (self.rows or self.observed)

    @property
    def has_purges(self) -> bool:
        """Return whether some row may be a purge."""
        return any(lake_fields.PURGED in group.fields for group in self.groups)

    @property
    def declared_key(self) -> tuple[Column, ...]:
        """Return the key's columns as declared in files of our own; empty for other files."""
        fields = (field for group in self.groups for field in group.fields.values())
        types = {field.name: field.declared for field in fields if field.declared is not None}
        return tuple(
            Column(name, types[name], primary_key=True) for name in self.key if name in types
        )

    def versions(self, columns: Sequence[Column]) -> DataFrame:
        """Return the rows as record versions (`chronolake.change_set`).

        Args:
            columns: the data columns with types that contain all values that were seen, including
                the key, and `SOURCE_TIME` if it is wanted.
        """
        hashed = tuple(
            replace(column, type=type_of(self.observed[column.name]) or column.type)
            for column in columns
            if column.name in self.observed and self._has_action(column.name, Action.HASH)
        )
        read = {column.name: column for column in hashed}
        wanted = [read.get(column.name, column) for column in columns]
        frames = [self._versions_of(group, wanted) for group in self.groups]
        rows = reduce(lambda rows, other: rows.unionByName(other), frames)
        if not hashed:
            return rows
        protection = Protection(self.rules, hashed)
        types = {column.name: column.dataType.simpleString() for column in rows.schema.fields}
        return map_in_tasks(rows, protection, protection.ddl(list(types), types))

    @property
    def stored_types(self) -> TypesByField:
        """Return `observed` for the values that are stored."""
        if not self.rules:
            return self.observed
        found: TypesByField = {}
        for name, types in self.observed.items():
            rule = self.rules.rule_of(name)
            is_text = rule is not None and rule.type_of(_NO_TEXT) != _NO_TEXT
            if not self._has_action(name, Action.EXCLUDE):
                found[name] = frozenset({ObservedType.TEXT}) if types and is_text else types
        return found

    def _has_action(self, name: str, action: Action) -> bool:
        rule = self.rules.rule_of(name)
        return rule is not None and rule.action is action

    def _masked(self, columns: Iterable[Column]) -> dict[str, str]:
        """Return SQL for the values of masked columns."""
        found = {}
        for column in columns:
            rule = self.rules.rule_of(column.name)
            if column.name in self.observed and rule is not None and rule.action is Action.MASK:
                text = "NULL" if rule.text is None else literal(rule.text)
                found[column.name] = f"CAST({text} AS {column.type.sql})"
        return found

    def _versions_of(self, group: Group, columns: Sequence[Column]) -> DataFrame:
        by_name = by_field(group.fields)
        is_hourly = isinstance(self.files[0], HourlyFile)
        system = _hourly_facts(group.fields) if is_hourly else _facts(by_name)
        data = {
            column.name: _value(by_name.get(column.name, {}), column.type) for column in columns
        } | self._masked(columns)
        if lake_fields.PURGED in by_name:
            # A purge has no values of its record.
            is_purge = f"{system[PURGED_AT]} IS NOT NULL"
            data = {
                name: f"IF({is_purge}, NULL, {value})" if self._is_erasable(name) else value
                for name, value in data.items()
            }
        provided = group.fields.get(DELETE_SOURCE)
        if provided is not None and provided.name in data and IS_MARK in by_name:
            # A file of our own has it beside deletions without data, too.
            is_deletion = f"NOT {system[PROVIDES_DATA]} AND {system[PURGED_AT]} IS NULL"
            data[provided.name] = f"IF({is_deletion}, NULL, {data[provided.name]})"
        identifier = group.fields.get(KEY.name)
        if identifier is not None and identifier.declared is None:
            data[KEY.name] = f"nullif(CAST({_cell(identifier)} AS STRING), '')"
        if SOURCE_TIME.name in data:
            data[SOURCE_TIME.name] = f"timestamp_micros({system[MODIFIED]})"
        chosen = (f"{value} AS {quote(name)}" for name, value in {**data, **system}.items())
        rows = _read(self.spark, self.files, group)
        # A field with this name hides Spark's own column; `metadataColumn` still finds it.
        place = rows.metadataColumn("_metadata")
        parts = _PLACE | ({_PATH: "file_path"} if is_hourly else {})
        reported = {name: place[part].alias(name) for name, part in parts.items()}
        return select(rows.select("*", *reported.values()), chosen)

    def _is_erasable(self, name: str) -> bool:
        """Return whether a field is data of the record, as opposed to its key or version."""
        return name not in {*self.key, SOURCE_TIME.name} and not name.startswith(
            _PROVIDED_BY_VERSION
        )


def inspect_files(
    spark: SparkSession,
    files: Sequence[DataFile],
    namings: Namings | None = None,
    rules: ColumnRules | None = None,
) -> Landing:
    """Inspect files: their footers, and the forms of their fields.

    Args:
        spark: the session.
        files: at least one file, in the order in which they were written.
        namings: the names of fields over time; results use the current names.
        rules: the rules of fields, by their current names.

    Raises:
        BadFileError: files cannot be read, lack a guaranteed column, or have a column that cannot
            be read.
        SourceError: a file does not exist or may not be read, or the files identify records by
            different fields.
    """
    namings = namings or Namings()
    found = read_footers(spark, files, namings)
    key = _key_of(found, files)
    groups = tuple(group_files((footer.fields, footer.unread, footer.numbers) for footer in found))
    # In the order in which the fields first appear in files.
    observed: TypesByField = {}
    undecided: set[str] = set()
    for footer in sorted(found, key=lambda footer: footer.numbers):
        reported, unknown = types_in_footer(footer)
        observed, undecided = merge_types(observed, reported), undecided | unknown
    for group in groups:
        if any(field.name in undecided for field in group.fields.values()):
            with naming_bad_files(files):
                observed = merge_types(
                    observed, _observe_types(_read(spark, files, group), group, undecided)
                )
    rows = sum(footer.rows for footer in found)
    landings = {footer.each_once for footer in found if footer.rows}
    has_each_once = len(landings) == 1 and None not in landings
    return Landing(
        spark,
        tuple(files),
        groups,
        key,
        observed,
        rows,
        namings,
        has_each_once,
        rules or _NO_RULES,
    )


def _key_of(footers: Sequence[Footers], files: Sequence[DataFile]) -> tuple[str, ...]:
    keys: dict[tuple[str, ...], DataFile] = {}
    for footer in footers:
        key = key_of(footer.declaration) if footer.declaration else (KEY.name,)
        keys.setdefault(tuple(sorted(key)), files[footer.numbers[0]])
    if len(keys) > 1:
        (one_key, _), (other, file), *_ = keys.items()
        raise SourceError(
            f"Some files identify a record by {', '.join(one_key)}, others by {', '.join(other)}.",
            file=str(file.path),
            hint="Put files with another key into a separate lake, for another table.",
        )
    return next(iter(keys), (KEY.name,))


def types_in_footer(footer: Footers) -> tuple[TypesByField, set[str]]:
    """Return the types of fields from a footer, and the fields whose columns must be read."""
    if footer.declaration:
        types = types_of(footer.declaration)
        return {name: frozenset({kind}) for name, kind in types.items()}, set()
    observed: TypesByField = {}
    unknown: set[str] = set()
    for name, forms in by_field(footer.fields).items():
        if not is_field(name, is_hourly=footer.is_hourly):
            continue
        known = {form: _statistics_of(footer, field) for form, field in forms.items()}
        typed = [known[form] for form in forms if form is not Form.TEXT]
        types_of_field = {
            _observed_type(form, reported.values > 0, reported.bounds)
            for form, reported in known.items()
            if form is not Form.TEXT
        }
        text = known.get(Form.TEXT)
        if text is not None and all(reported.is_complete for reported in typed):
            # If every row has a typed value, no text is without one; if none has, all are.
            if not any(reported.values for reported in typed):
                types_of_field.add(ObservedType.TEXT if text.has_text else None)
            elif text.has_text and all(reported.values < footer.rows for reported in typed):
                unknown.add(name)
        if not all(reported.is_complete for reported in known.values()):
            unknown.add(name)
        observed[name] = frozenset(kind for kind in types_of_field if kind is not None)
    return observed, unknown


def _statistics_of(footer: Footers, field: Field) -> ColumnStatistics:
    if field.fallback is not None:
        both = replace(field, fallback=None), field.fallback
        first, other = (_statistics_of(footer, spelled) for spelled in both)
        return first.merge(other)
    reported = footer.columns.get(field.column, ColumnStatistics(is_complete=False))
    if field.form is not Form.TEXT or field.physical.ddl == "string":
        return reported
    # Bounds do not show whether texts of other types are empty: numbers are not, bytes may be.
    is_complete = reported.is_complete and field.physical.ddl != "binary"
    return replace(reported, has_text=reported.values > 0, is_complete=is_complete)


def merge_types(
    first: Mapping[str, frozenset[FieldType]], other: Mapping[str, frozenset[FieldType]]
) -> TypesByField:
    """Return the union of the types of each field."""
    names = dict.fromkeys([*first, *other])
    return {name: first.get(name, frozenset()) | other.get(name, frozenset()) for name in names}


def columns_of(
    observed: Mapping[str, Iterable[FieldType]], key: Sequence[str]
) -> tuple[Column, ...]:
    """Return the columns of a table from the forms of its fields.

    Args:
        observed: the types of every field.
        key: the fields that identify a record.
    """
    types = {name: type_of(types_of_field) for name, types_of_field in observed.items()}
    columns = tuple(
        Column(name, kind, primary_key=name in key)
        for name, kind in types.items()
        if kind is not None
    )
    return columns if any(column.primary_key for column in columns) else (KEY, *columns)


def _read(spark: SparkSession, files: Sequence[DataFile], group: Group) -> DataFrame:
    columns = ", ".join(
        f"{quote(name)} {field.physical.ddl}" for name, field in group.fields.items()
    )
    return read_files(spark, [files[number] for number in group.files], columns)


def read_files(spark: SparkSession, files: Sequence[DataFile], columns: str) -> DataFrame:
    """Return columns of files, given as a Spark schema; null in files without the column."""
    # Without this option, the folders' names would become columns.
    reader = spark.read.schema(columns).option("recursiveFileLookup", "true")
    first = files[0].path
    if isinstance(first, BucketPath):
        # The web UI uses this package without Spark.
        from chronolake.iceberg import store_options  # noqa: PLC0415

        settings = first.storage.for_java(first.url)
        reader = reader.options(**store_options(spark, first.url, settings))
    return reader.parquet(*(literal_path(file.path) for file in files))


def literal_path(path: Location) -> str:
    """Return a path that Spark takes literally: not as a pattern, and not on `fs.defaultFS`."""
    scheme = "file://" if isinstance(path, Path) else ""
    return scheme + re.sub(r"([\\{}\[\]*?])", r"\\\1", str(path))


# Values.


def _cell(field: Field) -> str:
    """Return SQL for a column's value, times as Spark's own; an empty text is null."""
    value = field.physical.value(quote(field.column))
    cell = f"nullif(CAST({value} AS STRING), '')" if field.form is Form.TEXT else value
    return cell if field.fallback is None else f"coalesce({cell}, {_cell(field.fallback)})"


def _value(forms: Mapping[Form, Field], kind: ColumnType) -> str:
    """Return SQL for a field's value in the type of its column."""
    declared = next((field.declared for field in forms.values() if field.declared), None)
    if declared is not None:
        return _declared_value(forms, declared, kind)
    cells = {form: _cell(field) for form, field in forms.items()}
    if kind.kind is Kind.NAIVE_TIME:
        # In one format, whatever the format of the source's texts.
        found = [cells[form] for form in (Form.TIME, Form.TEXT) if form in cells]
    elif kind.kind is Kind.DOUBLE:
        found = [cells[form] for form in (Form.FLOAT, Form.INTEGER) if form in cells]
    elif kind.kind in FORM_OF:
        found = [cells[form] for form in (FORM_OF[kind.kind],) if form in cells]
    else:
        # The text has the source's own format; the typed value is the fallback.
        found = [cells[form] for form in Form if form in cells]
    parts = [f"CAST({cell} AS {kind.sql})" for cell in found]
    return f"coalesce({', '.join([*parts, f'CAST(NULL AS {kind.sql})'])})"


def _declared_value(forms: Mapping[Form, Field], declared: ColumnType, kind: ColumnType) -> str:
    """Return SQL for a value that `writer.land` wrote: here, empty texts are values."""
    columns = {form: quote(field.column) for form, field in forms.items()}
    text = columns[Form.TEXT]
    typed = next((column for form, column in columns.items() if form is not Form.TEXT), text)
    if kind.kind is Kind.BINARY:
        return f"unbase64({text})"
    # For a column of another type, the text keeps the value's format: 5 does not become 5.0.
    value = text if kind.sql == "string" and kind != declared else typed
    return f"CAST({value} AS {kind.sql})"


def _facts(by_name: Mapping[str, Mapping[Form, Field]]) -> dict[str, str]:
    """Return SQL for the system columns of record versions, by their names."""
    return {
        MODIFIED: _time(by_name, lake_fields.MODIFIED),
        SEQUENCE: f"nullif(CAST({quote(lake_fields.SEQUENCE)} AS STRING), '')",
        DELETED_AT: _time(by_name, lake_fields.DELETED),
        PURGED_AT: _time(by_name, lake_fields.PURGED),
        PROVIDES_DATA: _has_data(by_name),
        OMITTED: _omitted_fields(by_name),
        **{name: name for name in _PLACE},
    }


def _hourly_facts(fields: Mapping[str, Field]) -> dict[str, str]:
    """Return SQL for the system columns of versions in a Data Lake v1 (`docs/pipelines.md`).

    The time of a version is the source's, or when the row was added, or the hour of its file. The
    sequence orders rows by the time at which they were added, by hour and by file. Its parts have
    fixed lengths, and no two files have equal ones, so it never depends on the order of reading.

    Args:
        fields: the fields by their columns in the files, whatever their names in the table.
    """
    mark = f"substring_index({_PATH}, '/', -3)"
    day = f"substring({mark}, 5, 10)"
    hour = f"substring({mark}, 19, 2)"
    begin = f"unix_micros(to_timestamp(concat({day}, {hour}), 'yyyy-MM-ddHH'))"
    added = f"coalesce({_instant(fields.get(lake_fields.ADDED))}, {begin})"
    modified = _instant(fields.get(lake_fields.SYSTEM_MODIFIED))
    purged = _instant(fields.get(lake_fields.PURGED))
    file = f"substring(sha2(substring_index({_PATH}, '/', -1), 256), 1, {_FILE_DIGITS})"
    since = f"lpad(CAST(greatest({added}, 0) AS STRING), {_MICROS_DIGITS}, '0')"
    return {
        MODIFIED: f"coalesce({modified}, {added})",
        SEQUENCE: f"concat({since}, '-', {day}, '-', {hour}, '-', {file})",
        DELETED_AT: _instant(fields.get(lake_fields.DELETED)),
        PURGED_AT: purged,
        PROVIDES_DATA: f"{purged} IS NULL",
        OMITTED: "CAST(NULL AS ARRAY<STRING>)",
        LANDED_FILE: mark,
        LANDED_ROW: LANDED_ROW,
    }


def _instant(field: Field | None) -> str:
    """Return SQL for the microseconds of a time that may be a text; null for other values."""
    if field is None:
        return "CAST(NULL AS BIGINT)"
    cell = _cell(field)
    if field.form is Form.TIMESTAMP:
        return f"unix_micros({cell})"
    # Salesforce writes offsets as +0000. A text without a date would be a time of today.
    text = f"regexp_replace(CAST({cell} AS STRING), '([+-][0-9]{{2}})([0-9]{{2}})$', '$1:$2')"
    time = f"unix_micros(try_cast({text} AS TIMESTAMP))"
    return f"IF({text} RLIKE '^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}', {time}, NULL)"


def _time(by_name: Mapping[str, Mapping[Form, Field]], name: str) -> str:
    """Return SQL for one of the lake's times in microseconds; null without such a column."""
    for field in by_name.get(name, {}).values():
        return f"unix_micros({_cell(field)})"
    return "CAST(NULL AS BIGINT)"


def _has_data(by_name: Mapping[str, Mapping[Form, Field]]) -> str:
    """Return SQL: whether a row has data of its record."""
    is_purge = f"{_time(by_name, lake_fields.PURGED)} IS NOT NULL"
    is_mark = quote(IS_MARK) if IS_MARK in by_name else "false"
    return f"NOT ({is_purge} OR coalesce({is_mark}, false))"


def _omitted_fields(by_name: Mapping[str, Mapping[Form, Field]]) -> str:
    """Return SQL for the fields that a row omits; null if it omits none."""
    if UNMODIFIED not in by_name:
        return "CAST(NULL AS ARRAY<STRING>)"
    named = f"from_json({quote(UNMODIFIED)}, 'array<string>')"
    (field,) = by_name[UNMODIFIED].values()
    if not field.renamed:
        return named
    whens = (f"WHEN {literal(old)} THEN {literal(new)}" for old, new in field.renamed)
    return f"transform({named}, name -> CASE name {' '.join(whens)} ELSE name END)"


# Forms of fields.


def _observe_types(rows: DataFrame, group: Group, undecided: AbstractSet[str]) -> TypesByField:
    """Return the forms of some fields in a group's files, from reading their columns."""
    measured: list[str] = []
    meaning: list[tuple[str, Form]] = []
    for name, forms in by_field(group.fields).items():
        if name not in undecided:
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
    (row,) = select(rows, aliased).collect()
    observed: TypesByField = {}
    for number, (name, form) in enumerate(meaning):
        is_there, least, greatest = row[3 * number : 3 * number + 3]
        kind = _observed_type(form, is_there, None if least is None else (least, greatest))
        if kind is not None:
            observed[name] = observed.get(name, frozenset()) | {kind}
    return observed


def _observed_type(
    form: Form,
    is_there: bool | None,  # noqa: FBT001
    bounds: tuple[int, int] | None,
) -> ObservedType | None:
    """Return the kind of the values of a form, or None without values."""
    if form is Form.INTEGER:
        return None if bounds is None else observed_integer_type(*bounds)
    return _SIMPLE[form] if is_there else None
