"""Scenarios: JSON files in the format of the vendor's tester, with their schema migrations.

A file is one JSON object with the keys `create_table`, `alter_table`, `ops`, `schema_migration` and
`describe_table`, all optional. Unknown keys are ignored, and listed in `Scenario.notices`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from chronolake.errors import ScenarioError, UnsupportedTypeError
from chronolake.tester import values
from chronolake.tester.definition import ColumnSpec
from chronolake.tester.values import cell_text
from chronolake.types import HISTORY_COLUMNS, Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path


Name = Annotated[str, Field(min_length=1)]


class TypeForm(BaseModel):
    """A column's type: the name of a type, or an object with `type`, `precision`, `scale`."""

    model_config = ConfigDict(frozen=True, extra="allow")

    type: Kind
    precision: Annotated[int, Field(strict=True)] | None = None
    scale: Annotated[int, Field(strict=True)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _accept_bare_name(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_decimal(self) -> TypeForm:
        if self.type is Kind.DECIMAL and self.precision is not None:
            try:
                _ = self.column("").type
            except UnsupportedTypeError as failure:
                raise ValueError(failure.message) from None
        return self

    def column(self, name: str, *, key: bool = False) -> ColumnSpec:
        """Return a column of this type."""
        if self.type is not Kind.DECIMAL or self.precision is None:
            return ColumnSpec(name, self.type, key=key)
        return ColumnSpec(name, self.type, self.precision, self.scale or 0, key=key)


def _time(text: Any) -> Any:
    if isinstance(text, str):
        values.nanos(text)
    return text


Time = Annotated[str, BeforeValidator(_time)]
#: Numbers and booleans are accepted where messages contain text.
Text = Annotated[str, BeforeValidator(cell_text)]


class Migration(BaseModel):
    """One schema migration.

    Attributes:
        operation: its key in a scenario.
        place: its location, as a JSON path.
    """

    model_config = ConfigDict(frozen=True, extra="allow")
    operation: ClassVar[str]

    place: str = Field(default="$", exclude=True)

    @property
    def tables(self) -> tuple[str, ...]:
        """Return the tables of the migration, the source table first."""
        names = [getattr(self, name, None) for name in ("table", "from_table", "to_table")]
        return tuple(name for name in names if name)


class _OnTable(Migration):
    table: Name


class _OnColumn(_OnTable):
    column: Name


class _Typed(_OnColumn):
    data_type: TypeForm

    @property
    def spec(self) -> ColumnSpec:
        """Return the column that the migration adds or changes, as declared."""
        return self.data_type.column(self.column)


class _BetweenColumns(_OnTable):
    from_column: Name
    to_column: Name


class _BetweenTables(Migration):
    from_table: Name
    to_table: Name


class AddColumn(_Typed):
    """AlterTable with an additional column."""

    operation = "add_column"


class ChangeColumnDataType(_Typed):
    """AlterTable with another type for one column."""

    operation = "change_column_data_type"


class DropColumn(_OnColumn):
    """AlterTable without the column, with `drop_columns` set."""

    operation = "drop_column"


class CopyColumn(_BetweenColumns):
    """Migrate `copy.copy_column`."""

    operation = "copy_column"


class UpdateColumnValue(_OnColumn):
    """Migrate `update_column_value`: sets the value in all rows; `NULL` means NULL."""

    operation = "update_column_value"
    value: Text


class SetColumnToNull(_OnColumn):
    """Migrate `update_column_value` with the text `NULL`."""

    operation = "set_column_to_null"


class AddColumnWithDefaultValue(_Typed):
    """Migrate `add.add_column_with_default_value`."""

    operation = "add_column_with_default_value"
    default_value: Text


class CopyTable(_BetweenTables):
    """Migrate `copy.copy_table`."""

    operation = "copy_table"


class RenameColumn(_BetweenColumns):
    """Migrate `rename.rename_column`."""

    operation = "rename_column"


class RenameTable(_BetweenTables):
    """Migrate `rename.rename_table`."""

    operation = "rename_table"


class DropTable(_OnTable):
    """Migrate `drop.drop_table`."""

    operation = "drop_table"


class AddColumnInHistoryMode(_Typed):
    """Migrate `add.add_column_in_history_mode`."""

    operation = "add_column_in_history_mode"
    default_value: Text
    operation_timestamp: Time


class DropColumnInHistoryMode(_OnColumn):
    """Migrate `drop.drop_column_in_history_mode`: keeps the column and ends its active values."""

    operation = "drop_column_in_history_mode"
    operation_timestamp: Time


class CopyTableToHistoryMode(_BetweenTables):
    """Migrate `copy.copy_table_to_history_mode`."""

    operation = "copy_table_to_history_mode"
    deleted_column: str = ""


class SyncMode(_OnTable):
    """Migrate `table_sync_mode_migration`.

    Attributes:
        mode: name of the `TableSyncModeMigrationType`.
        withdrawn: whether the guides tell destinations not to implement it (the four live ones).
    """

    mode: ClassVar[str]
    is_withdrawn: ClassVar[bool] = False


class MigrateSoftDeleteToHistory(SyncMode):
    """Converts a soft-delete table to history mode."""

    operation = "migrate_soft_delete_to_history"
    mode = "SOFT_DELETE_TO_HISTORY"
    deleted_column: str | None = None


class MigrateHistoryToSoftDelete(SyncMode):
    """Converts a history table to soft-delete mode: the newest version of each record remains."""

    operation = "migrate_history_to_soft_delete"
    mode = "HISTORY_TO_SOFT_DELETE"
    deleted_column: str | None = None


class MigrateHistoryToLive(SyncMode):
    """Withdrawn: removes the history columns of a history table."""

    operation = "migrate_history_to_live"
    mode = "HISTORY_TO_LIVE"
    is_withdrawn = True
    keep_inactive_rows: bool = False


class MigrateSoftDeleteToLive(SyncMode):
    """Withdrawn: removes the deleted rows of a soft-delete table."""

    operation = "migrate_soft_delete_to_live"
    mode = "SOFT_DELETE_TO_LIVE"
    is_withdrawn = True
    deleted_column: str | None = None


class MigrateLiveToSoftDelete(SyncMode):
    """Withdrawn: adds a delete marker to a live table."""

    operation = "migrate_live_to_soft_delete"
    mode = "LIVE_TO_SOFT_DELETE"
    is_withdrawn = True
    deleted_column: str | None = None


class MigrateLiveToHistory(SyncMode):
    """Withdrawn: converts a live table to history mode."""

    operation = "migrate_live_to_history"
    mode = "LIVE_TO_HISTORY"
    is_withdrawn = True


#: All migrations by their key in a scenario.
MIGRATIONS: Final[dict[str, type[Migration]]] = {
    form.operation: form
    for form in (
        AddColumn,
        ChangeColumnDataType,
        DropColumn,
        CopyColumn,
        UpdateColumnValue,
        SetColumnToNull,
        AddColumnWithDefaultValue,
        CopyTable,
        RenameColumn,
        RenameTable,
        DropTable,
        AddColumnInHistoryMode,
        DropColumnInHistoryMode,
        CopyTableToHistoryMode,
        MigrateSoftDeleteToHistory,
        MigrateHistoryToSoftDelete,
        MigrateHistoryToLive,
        MigrateSoftDeleteToLive,
        MigrateLiveToSoftDelete,
        MigrateLiveToHistory,
    )
}


OP_TIME: Final = "op_time"
CONFIGURATION_FILE: Final = "configuration.json"

_Form = TypeVar("_Form", bound=BaseModel)


class RowOperation(StrEnum):
    """An operation on the rows that it lists."""

    UPSERT = "upsert"
    UPDATE = "update"
    DELETE = "delete"
    SOFT_DELETE = "soft_delete"


_KEYS: Final = ("create_table", "alter_table", "ops", "schema_migration", "describe_table")
_TRUNCATES: Final = {"truncate_before": False, "soft_truncate_before": True}


class TableForm(BaseModel):
    """A table in `create_table` or `alter_table`; the columns are the complete set."""

    model_config = ConfigDict(frozen=True, extra="allow")

    columns: dict[Name, TypeForm]
    primary_key: tuple[Name, ...] = ()
    history_mode: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A row of an operation.

    Attributes:
        cells: the texts of the given columns; None is NULL.
        op_time: the time of the change in the source, an ISO text, or None.
        place: its location in the file, as a JSON path.
    """

    cells: Mapping[str, str | None]
    op_time: str | None
    place: str


@dataclass(frozen=True, slots=True)
class RowStep:
    """One operation on rows; all its rows have the same sync time."""

    operation: RowOperation
    tables: Mapping[str, tuple[Row, ...]]


@dataclass(frozen=True, slots=True)
class TruncateStep:
    """One `truncate_before` or `soft_truncate_before`."""

    tables: tuple[str, ...]
    soft: bool
    place: str


Step = RowStep | TruncateStep


@dataclass(frozen=True, slots=True)
class Scenario:
    """The content of one scenario file.

    Attributes:
        path: the file.
        create: definitions by table, for CreateTable.
        alter: definitions by table, for AlterTable.
        steps: the data operations, in order.
        migrations: the schema migrations, in order.
        describe: the tables to describe at the end.
        notices: the ignored parts, one sentence each.
    """

    path: Path
    create: Mapping[str, TableForm]
    alter: Mapping[str, TableForm]
    steps: tuple[Step, ...]
    migrations: tuple[Migration, ...]
    describe: tuple[str, ...]
    notices: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the file's name without `.json`, which is part of the batch files' names."""
        return self.path.stem

    @property
    def written_tables(self) -> frozenset[str]:
        """Return the tables that operations write rows to."""
        return frozenset(
            table for step in self.steps if isinstance(step, RowStep) for table in step.tables
        )

    @property
    def soft_deleted_tables(self) -> frozenset[str]:
        """Return the tables that operations soft-delete from or soft-truncate."""
        names: set[str] = set()
        for step in self.steps:
            if isinstance(step, TruncateStep):
                names.update(step.tables if step.soft else ())
            elif step.operation is RowOperation.SOFT_DELETE:
                names.update(step.tables)
        return frozenset(names)


def scenario_files(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the scenario files for a list of paths.

    A folder contributes its `.json` files in alphabetical order, without `configuration.json`.

    Raises:
        ScenarioError: a path does not exist, or a folder contains no scenarios.
    """
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            found = sorted(
                entry
                for entry in path.iterdir()
                if entry.suffix == ".json" and entry.is_file() and entry.name != CONFIGURATION_FILE
            )
            if not found:
                raise ScenarioError(
                    "The folder does not contain a scenario.",
                    hint=f"Scenarios are .json files other than {CONFIGURATION_FILE}.",
                    file=str(path),
                )
            files.extend(found)
        elif path.is_file():
            files.append(path)
        else:
            raise ScenarioError(
                "There is no such scenario.",
                hint="Pass a scenario's JSON file, or a folder of them.",
                file=str(path),
            )
    return tuple(files)


def read_scenario(path: Path) -> Scenario:
    """Read one scenario file.

    Raises:
        ScenarioError: the file is not valid JSON or not a scenario; the message contains the JSON
            path.
    """
    try:
        content = json.loads(path.read_bytes(), object_pairs_hook=_reject_duplicates)
    except OSError as failure:
        raise ScenarioError(
            f"The scenario cannot be read: {failure.strerror}.",
            hint="Pass a scenario's JSON file, or a folder of them.",
            file=str(path),
        ) from failure
    except ValueError as failure:
        raise ScenarioError(
            f"The scenario is not valid JSON: {failure}.",
            hint="Fix the file at this position: JSON has no comments, no unquoted names, and "
            "no comma after the last item.",
            file=str(path),
        ) from failure
    return parse_scenario(content, path)


def parse_scenario(content: Any, path: Path) -> Scenario:
    """Return the scenario that a JSON value represents; `path` names it in messages.

    Raises:
        ScenarioError: the value is not a scenario; the message contains the JSON path.
    """
    return _Reader(path).scenario(content)


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} occurs twice in one object")
    return found


class _Reader:
    """A reader of one file's JSON, which collects notices about ignored parts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._notices: list[str] = []

    def scenario(self, content: Any) -> Scenario:
        top = self._object(content, "$")
        self._note_unknown([name for name in top if name not in _KEYS], "$")
        return Scenario(
            path=self._path,
            create=self._definitions(top.get("create_table"), "$.create_table"),
            alter=self._definitions(top.get("alter_table"), "$.alter_table"),
            steps=tuple(self._steps(top.get("ops"))),
            migrations=tuple(self._migrations(top.get("schema_migration"))),
            describe=self._names(top.get("describe_table"), "$.describe_table"),
            notices=tuple(self._notices),
        )

    def _definitions(self, value: Any, place: str) -> dict[str, TableForm]:
        forms: dict[str, TableForm] = {}
        for table, definition in self._object(value, place).items():
            where = f"{place}.{table}"
            form = self._form(TableForm, definition, where)
            unknown = [name for name in form.primary_key if name not in form.columns]
            if unknown:
                raise self._error(f"{unknown[0]!r} is not a column.", f"{where}.primary_key")
            for column, kind in form.columns.items():
                self._note_unknown(kind.model_extra or (), f"{where}.columns.{column}")
            forms[table] = form
        return forms

    def _steps(self, value: Any) -> Iterator[Step]:
        for index, entry in enumerate(self._array(value, "$.ops")):
            place = f"$.ops[{index}]"
            for key, body in self._object(entry, place).items():
                where = f"{place}.{key}"
                if key in _TRUNCATES:
                    yield TruncateStep(self._names(body, where), _TRUNCATES[key], where)
                elif key in set(RowOperation):
                    tables = {
                        table: tuple(self._rows(rows, f"{where}.{table}"))
                        for table, rows in self._object(body, where).items()
                    }
                    yield RowStep(RowOperation(key), tables)
                else:
                    self._notices.append(f"{where} is not an operation and is ignored.")

    def _rows(self, value: Any, place: str) -> Iterator[Row]:
        for index, entry in enumerate(self._array(value, place)):
            where = f"{place}[{index}]"
            cells = {
                column: cell_text(cell)
                for column, cell in self._object(entry, where).items()
                if column != OP_TIME
            }
            computed = [name for name in HISTORY_COLUMNS if name in cells]
            if computed:
                raise self._error("This column is computed from op_time.", f"{where}.{computed[0]}")
            yield Row(cells, self._time(entry.get(OP_TIME), f"{where}.{OP_TIME}"), where)

    def _migrations(self, value: Any) -> Iterator[Migration]:
        for index, entry in enumerate(self._array(value, "$.schema_migration")):
            place = f"$.schema_migration[{index}]"
            for key, bodies in self._object(entry, place).items():
                form = MIGRATIONS.get(key)
                if form is None:
                    self._notices.append(f"{place}.{key} is not a migration and is ignored.")
                    continue
                for number, body in enumerate(self._array(bodies, f"{place}.{key}")):
                    where = f"{place}.{key}[{number}]"
                    yield self._form(form, {**self._object(body, where), "place": where}, where)

    def _form(self, kind: type[_Form], value: Any, place: str) -> _Form:
        try:
            form = kind.model_validate(value)
        except ValidationError as failure:
            first = failure.errors(include_url=False, include_input=False)[0]
            steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
            raise self._error(f"{first['msg']}.", place + "".join(steps)) from None
        self._note_unknown(form.model_extra or (), place)
        return form

    def _note_unknown(self, unknown: Iterable[str], place: str) -> None:
        self._notices.extend(f"{place}.{key} is unknown and is ignored." for key in unknown)

    def _object(self, value: Any, place: str) -> dict[str, Any]:
        if value is None and place != "$":
            return {}
        if not isinstance(value, dict):
            raise self._error("An object is expected.", place)
        if "" in value:
            raise self._error("A name is empty.", place)
        return value

    def _array(self, value: Any, place: str) -> list[Any]:
        if value is None:
            return []
        if not isinstance(value, list):
            raise self._error("An array is expected.", place)
        return value

    def _names(self, value: Any, place: str) -> tuple[str, ...]:
        try:
            return _NAMES.validate_python(value or [])
        except ValidationError:
            raise self._error("An array of table names is expected.", place) from None

    def _time(self, value: Any, place: str) -> str | None:
        if value is None:
            return None
        try:
            values.nanos(value if isinstance(value, str) else "")
        except ValueError as failure:
            raise self._error(f"This is {failure}.", place) from None
        return str(value)

    def _error(self, message: str, place: str) -> ScenarioError:
        return ScenarioError(f"{place}: {message}", hint=_FORMAT, file=str(self._path))


_FORMAT: Final = "docs/test-destination.md describes the format of scenarios."
_NAMES: Final = TypeAdapter(tuple[Annotated[str, Field(min_length=1)], ...])
