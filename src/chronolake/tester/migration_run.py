"""Schema migrations of a scenario: requests, effects on the model, and checks.

The effects on the expected contents follow `specs/partner-sdk.md`, 4.8 and 4.9. `migrate` applies
what the guides require of a destination. `fallback_columns` applies what Fivetran does instead if
the destination answers `unsupported`.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from chronolake.protos import destination_sdk_pb2 as sdk
from chronolake.tester import client, values
from chronolake.tester import scenario as forms
from chronolake.tester.client import UNIMPLEMENTED
from chronolake.tester.conversation import CallChecks, Failure
from chronolake.tester.definition import DELETED_COLUMN, HISTORY_SPECS, ColumnSpec, TableDefinition
from chronolake.tester.model import EPSILON_MICROS, Model, ModelRefusal, ModelTable, StoredRow
from chronolake.tester.values import Value, parse_value
from chronolake.types import (
    ACTIVE,
    DELETED,
    END,
    HISTORY_COLUMNS,
    START,
    SYNCED,
    TMAX_MICROS,
    TMIN_MICROS,
    Kind,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from chronolake.tester.client import Answer
    from chronolake.tester.conversation import Conversation
    from chronolake.tester.scenario import Migration


NULL_TEXT: Final = "NULL"


def apply_migration(model: Model, migration: Migration, *, now_micros: int) -> None:
    """Apply a migration to the model, in place.

    `now_micros` is the current time in microseconds since the epoch, for the one conversion that
    uses it.

    Raises:
        ModelRefusal: the guides require the destination to refuse; the model is unchanged.
    """
    match migration:
        case forms.AddColumn() | forms.ChangeColumnDataType() | forms.DropColumn():
            wanted, drop = alter_columns(model, migration)
            sent = model.table(migration.table).sent
            model.alter(migration.table, wanted, drop_columns=drop)
            names = {*sent, migration.column}
            table = model.table(migration.table)
            table.sent = tuple(n for n in table.definition.names if n in names)
        case forms.DropTable():
            model.tables.pop(migration.table, None)
        case forms.RenameTable():
            if migration.from_table not in model.tables and migration.to_table in model.tables:
                return  # it was already applied, and the response was lost
            _raise_if_exists(model, migration.from_table, migration.to_table)
            table = model.tables.pop(migration.from_table)
            model.tables[migration.to_table] = replace(table, name=migration.to_table)
        case forms.CopyTable():
            copy = model.table(migration.from_table).copy(migration.to_table)
            target = model.tables.get(migration.to_table)
            if target is None or target.definition != copy.definition:
                _raise_if_exists(model, migration.from_table, migration.to_table)
            model.tables[migration.to_table] = copy
        case forms.CopyTableToHistoryMode():
            _raise_if_exists(model, migration.from_table, migration.to_table)
            copy = model.table(migration.from_table).copy(migration.to_table)
            _to_history(copy, migration.deleted_column or None)
            model.tables[migration.to_table] = copy
        case forms.SyncMode():
            _convert_mode(model, migration, now_micros)
        case _:
            _change_column(model, migration)


def alter_columns(
    model: Model, migration: forms.AddColumn | forms.ChangeColumnDataType | forms.DropColumn
) -> tuple[TableDefinition, bool]:
    """Return the columns and the `drop_columns` flag of the AlterTable for a migration.

    It lists all stored columns, as Fivetran knows them from DescribeTable, so that `drop_columns`
    removes no other column.

    Raises:
        ModelRefusal: the table does not exist.
    """
    definition = model.table(migration.table).definition
    match migration:
        case forms.DropColumn():
            return definition.without_columns([migration.column]), True
        case _:
            old = definition.column(migration.column)
            spec = replace(migration.spec, key=old is not None and old.key)
            return definition.with_column(spec), False


def fallback_columns(model: Model, migration: Migration) -> TableDefinition | None:
    """Return what Fivetran requests instead if a destination does not support a migration.

    Returns:
        The columns for AlterTable of the migration's table or, if the migration copies or renames a
        table, for CreateTable of the new one; None if Fivetran does nothing.
    """
    table = model.tables.get(migration.tables[0])
    if table is None:
        return None
    definition = table.definition
    match migration:
        case forms.AddColumnWithDefaultValue():
            if definition.column(migration.column) is None:
                return definition.with_column(migration.spec)
        case forms.RenameColumn() | forms.CopyColumn():
            old = definition.column(migration.from_column)
            if old is not None and not old.key and definition.column(migration.to_column) is None:
                return definition.with_column(replace(old, name=migration.to_column))
        case forms.RenameTable() | forms.CopyTable():
            if migration.to_table not in model.tables:
                return table.request
    return None


def _raise_if_exists(model: Model, source: str, target: str) -> None:
    model.table(source)
    if target in model.tables:
        raise ModelRefusal(f"the table {target!r} exists")


def _change_column(model: Model, migration: Migration) -> None:  # noqa: C901, PLR0912 - one case per form
    table = model.table(migration.tables[0])
    match migration:
        case forms.UpdateColumnValue():
            _set_value(table, migration.column, migration.value)
        case forms.SetColumnToNull():
            _set_value(table, migration.column, NULL_TEXT)
        case forms.AddColumnWithDefaultValue():
            old = table.definition.column(migration.column)
            default = _parse_value(migration.default_value, old or migration.spec)
            if old is None:
                _add_column(table, migration.spec)
            for row in table.rows:
                row[migration.column] = default
        case forms.CopyColumn():
            new_column = replace(
                _column(table, migration.from_column), name=migration.to_column, key=False
            )
            if table.definition.column(migration.to_column) != new_column:
                _add_column(table, new_column)
            for row in table.rows:
                row[migration.to_column] = row[migration.from_column]
        case forms.RenameColumn():
            _rename_column(table, migration.from_column, migration.to_column)
        case forms.AddColumnInHistoryMode():
            spec = table.definition.column(migration.column) or migration.spec
            default = _parse_value(migration.default_value, spec)
            begin = _checked_begin(table, migration.operation_timestamp)
            if table.definition.column(spec.name) is None:
                _add_column(table, spec)
            _add_versions(table, spec.name, begin, default, lambda _: True)
        case forms.DropColumnInHistoryMode():
            name = migration.column
            if table.definition.column(name) is not None:
                begin = _checked_begin(table, migration.operation_timestamp)
                _add_versions(table, name, begin, None, lambda row: row[name] is not None)
        case _:
            raise ModelRefusal(f"{migration.operation} is not a known migration")


def _column(table: ModelTable, name: str) -> ColumnSpec:
    column = table.definition.column(name)
    if column is None:
        raise ModelRefusal(f"the table has no column {name!r}")
    return column


def _parse_value(text: str, column: ColumnSpec) -> Value:
    try:
        return parse_value(text, column)
    except ValueError as failure:
        raise ModelRefusal(f"the value does not fit {column.type_name}: {failure}") from None


def _set_value(table: ModelTable, name: str, text: str) -> None:
    column = _column(table, name)
    value = None if text == NULL_TEXT else _parse_value(text, column)
    for row in table.rows:
        row[name] = value


def _add_column(table: ModelTable, column: ColumnSpec) -> None:
    if table.definition.column(column.name) is not None:
        raise ModelRefusal(f"the table has a column {column.name!r}")
    table.definition = table.definition.with_column(column)
    table.sent = (*table.sent, column.name)
    for row in table.rows:
        row[column.name] = None


def _rename_column(table: ModelTable, old: str, new: str) -> None:
    _column(table, old)
    if table.definition.column(new) is not None:
        raise ModelRefusal(f"the table has a column {new!r}")
    table.definition = table.definition.with_renamed_column(old, new)
    table.sent = tuple(new if name == old else name for name in table.sent)
    for row in table.rows:
        row[new] = row.pop(old)


def _checked_begin(table: ModelTable, text: str) -> int:
    begin = values.micros(text)
    if not table.definition.history:
        raise ModelRefusal("the table is not in history mode")
    if any(row[ACTIVE] and _start(row) > begin for row in table.rows):
        raise ModelRefusal("an active version begins after the operation's time")
    return begin


def _start(row: StoredRow) -> int:
    start = row[START]
    return start if isinstance(start, int) else TMIN_MICROS


def _add_versions(
    table: ModelTable,
    column: str,
    begin: int,
    value: Value,
    applies_to: Callable[[StoredRow], bool],
) -> None:
    """End the active versions at `begin` and add versions with `value`.

    Versions that start exactly at `begin` get `value`, too.
    """
    added: list[StoredRow] = []
    for row in table.rows:
        if row[ACTIVE] and _start(row) < begin and applies_to(row):
            added.append({**row, START: begin, END: TMAX_MICROS})
            row[ACTIVE], row[END] = False, begin - EPSILON_MICROS
    table.rows.extend(added)
    for row in table.rows:
        if _start(row) == begin:
            row[column] = value


def _convert_mode(model: Model, migration: forms.SyncMode, now_micros: int) -> None:  # noqa: C901 - one case per form
    table = model.table(migration.table)
    match migration:
        case forms.MigrateSoftDeleteToHistory():
            _to_history(table, migration.deleted_column)
        case forms.MigrateHistoryToSoftDelete():
            _to_soft_delete(table, migration.deleted_column or DELETED)
        case forms.MigrateSoftDeleteToLive():
            marker = migration.deleted_column or DELETED
            table.rows = [row for row in table.rows if row.get(marker) is not True]
            if marker == DELETED:
                _drop_columns(table, [DELETED])
        case forms.MigrateHistoryToLive():
            if not migration.keep_inactive_rows:
                table.rows = [row for row in table.rows if row.get(ACTIVE)]
            _drop_columns(table, HISTORY_COLUMNS)
        case forms.MigrateLiveToSoftDelete():
            marker = migration.deleted_column or DELETED
            if table.definition.column(marker) is None:
                _add_column(table, ColumnSpec(marker, Kind.BOOLEAN))
            for row in table.rows:
                row[marker] = bool(row[marker])
        case forms.MigrateLiveToHistory():
            _raise_if_history(table)
            for spec in HISTORY_SPECS:
                _add_column(table, spec)
            for row in table.rows:
                row.update({START: now_micros, END: TMAX_MICROS, ACTIVE: True})
            table.inexact.add(START)  # the destination's clock determines it


def _drop_columns(table: ModelTable, names: tuple[str, ...] | list[str]) -> None:
    table.definition = table.definition.without_columns(names)
    table.sent = tuple(name for name in table.sent if name not in names)
    for row in table.rows:
        for name in names:
            row.pop(name, None)


def _raise_if_history(table: ModelTable) -> None:
    if table.definition.history:
        raise ModelRefusal("the table is in history mode already")


def _to_history(table: ModelTable, marker: str | None) -> None:
    _raise_if_history(table)
    synced = [value for row in table.rows if isinstance(value := row.get(SYNCED), int)]
    begin = max(synced, default=TMIN_MICROS)
    for spec in HISTORY_SPECS:
        _add_column(table, spec)
    for row in table.rows:
        if marker is not None and row.get(marker) is True:
            row.update({START: TMIN_MICROS, END: TMIN_MICROS, ACTIVE: False})
        else:
            row.update({START: begin, END: TMAX_MICROS, ACTIVE: True})
    _drop_columns(table, [DELETED])


def _to_soft_delete(table: ModelTable, marker: str) -> None:
    if not table.definition.history:
        raise ModelRefusal("the table is not in history mode")
    newest = [max(versions, key=_start) for versions in table.by_key().values()]
    table.rows = [row for row in newest if row[START] is not None]
    for spec in (DELETED_COLUMN, ColumnSpec(marker, Kind.BOOLEAN)):
        if table.definition.column(spec.name) is None:
            _add_column(table, spec)
            for row in table.rows:
                row[spec.name] = False
    for row in table.rows:
        row[marker] = not row[ACTIVE]
    _drop_columns(table, HISTORY_COLUMNS)


class Migrator:
    """Executes migrations in one schema."""

    def __init__(
        self,
        conversation: Conversation,
        *,
        schema: str,
        strict: bool,
        now_millis: Callable[[], int],
    ) -> None:
        """Create a migrator.

        Args:
            conversation: the calls to the destination.
            schema: the tables' schema.
            strict: whether an `unsupported` migration is a failure.
            now_millis: returns the current time in milliseconds since the epoch.
        """
        self._conversation = conversation
        self._schema = schema
        self._strict = strict
        self._now = now_millis

    def run(self, model: Model, migration: Migration) -> Model:
        """Request one migration and check its tables afterwards.

        The passed model must not be used afterwards. Return the expected contents after the
        migration.

        Raises:
            SyncStopped: the destination refused without a valid reason.
        """
        source = migration.tables[0]
        if source not in model.tables:
            found = self._conversation.look_up(self._schema, source)
            if found is not None:
                model.adopt(source, found)
        after, refusal = copy.deepcopy(model), None
        try:
            apply_migration(after, migration, now_micros=self._now() * 1000)
        except ModelRefusal as reason:
            after, refusal = model, str(reason)
        match migration:
            case forms.AddColumn() | forms.ChangeColumnDataType() | forms.DropColumn():
                if source not in model.tables:
                    self._conversation.notice(
                        f"{migration.place}: there is no table {source!r}; skipped."
                    )
                    return model
                self._alter(model, migration, refusal)
            case _:
                # The guides do not define the result for a table that does not exist.
                answer = self._migrate(migration, refusal, due=source in model.tables)
                if answer.member in {"unsupported", UNIMPLEMENTED}:
                    after = self._fall_back(model, migration)
        for table in migration.tables:
            self._conversation.verify(self._schema, after, table)
        return after

    def _alter(
        self,
        model: Model,
        migration: forms.AddColumn | forms.ChangeColumnDataType | forms.DropColumn,
        refusal: str | None,
    ) -> None:
        wanted, drop = alter_columns(model, migration)
        self.alter_table(
            migration.table, wanted, drop=drop, detail=migration.operation, refusal=refusal
        )

    def alter_table(
        self,
        table: str,
        definition: TableDefinition,
        *,
        drop: bool = False,
        detail: str = "",
        refusal: str | None = None,
    ) -> None:
        """Send an AlterTable request.

        Raises:
            SyncStopped: the destination refused without a valid reason.
        """
        request = sdk.AlterTableRequest(
            configuration=self._conversation.configuration,
            schema_name=self._schema,
            table=client.table_message(table, definition),
            drop_columns=drop,
        )
        self._conversation.send("AlterTable", request, table=table, detail=detail, refusal=refusal)

    def create_table(self, table: str, definition: TableDefinition, *, detail: str = "") -> None:
        """Send a CreateTable request.

        Raises:
            SyncStopped: the destination refused.
        """
        request = sdk.CreateTableRequest(
            configuration=self._conversation.configuration,
            schema_name=self._schema,
            table=client.table_message(table, definition),
        )
        self._conversation.send("CreateTable", request, table=table, detail=detail)

    def _migrate(self, migration: Migration, refusal: str | None, *, due: bool) -> Answer:
        request = sdk.MigrateRequest(
            configuration=self._conversation.configuration,
            details=client.migration_details(self._schema, migration),
        )
        is_withdrawn = isinstance(migration, forms.SyncMode) and migration.is_withdrawn

        def check(answer: Answer, outcome: CallChecks) -> None:
            if answer.member == "unsupported" and is_withdrawn:
                outcome.checked.append("a withdrawn migration is unsupported")
            elif answer.member == "unsupported" and self._strict:
                outcome.failures.append(Failure("answer", "success", "unsupported"))
            elif answer.member == "unsupported":
                outcome.notices.append("unsupported: Fivetran continues without it.")
            elif is_withdrawn:
                outcome.notices.append("this migration was withdrawn: unsupported is expected.")

        return self._conversation.send(
            "Migrate",
            request,
            table=migration.tables[0],
            detail=migration.operation,
            good=("success", "unsupported"),
            refusal=refusal,
            refusal_due=due,
            unimplemented=None if self._strict else "Fivetran continues without it",
            check=check,
        )

    def _fall_back(self, model: Model, migration: Migration) -> Model:
        fallback = fallback_columns(model, migration)
        if fallback is None:
            return model
        match migration:
            case forms.RenameTable() | forms.CopyTable():
                self.create_table(migration.to_table, fallback, detail="instead")
                model.create(migration.to_table, fallback)
            case _:
                table = migration.tables[0]
                sent = set(model.table(table).sent)
                self.alter_table(table, fallback, detail="instead")
                model.alter(table, fallback)
                sent.add(fallback.names[-1])
                if isinstance(migration, forms.RenameColumn):
                    sent.discard(migration.from_column)
                model.table(table).sent = tuple(name for name in fallback.names if name in sent)
        return model
