"""The reference destination's schema migrations, as SQL statements on DuckDB."""

# ruff: noqa: N802 - the method has the name of the call

from __future__ import annotations

from chronolake.protos import common_pb2 as common
from chronolake.protos import destination_sdk_pb2 as sdk
from support.tester.reference_sql import (
    ACTIVE,
    DELETED,
    END,
    MILLI,
    START,
    SYNCED,
    TMAX,
    TMIN,
    Refused,
    ident,
    new_column,
    settled,
    text,
)


class Migrations:
    """Migrate, as a part of the service."""

    def Migrate(self, request, context):
        details = request.details
        kind = details.WhichOneof("operation")
        body = getattr(details, kind) if kind else None
        if kind == "table_sync_mode_migration":
            name = sdk.TableSyncModeMigrationType.Name(body.type)
        else:
            name = kind if kind == "update_column_value" else body.WhichOneof("entity")
        if name in self.unsupported or "LIVE" in name:
            return sdk.MigrateResponse(unsupported=True)

        def migrate(_):
            place = details.schema, details.table
            getattr(self, f"_{name.lower()}")(place, getattr(body, name, body))

        return self._answer(sdk.MigrateResponse, migrate, request, context)

    def _drop_table(self, place, _):
        if self.tables.pop(place, None):
            self.db.execute(f"DROP TABLE {ident(place[0])}.{ident(place[1])}")

    def _rename_table(self, place, body):
        self._copy_table(place, body)
        self._drop_table((place[0], body.from_table), None)

    def _copy_table(self, place, body):
        where, stored = self._find(place[0], body.from_table)
        self._make(place[0], common.Table(name=body.to_table, columns=stored.columns.values()))
        self.db.execute(f"INSERT INTO {ident(place[0])}.{ident(body.to_table)} FROM {where}")

    def _copy_column(self, place, body):
        where, stored = self._find(*place)
        copy = settled(self._column(stored, body.from_column))
        copy.name, copy.primary_key = body.to_column, False
        self._add(where, stored, copy)
        self.db.execute(f"UPDATE {where} SET {ident(copy.name)} = {ident(body.from_column)}")

    def _rename_column(self, place, body):
        where, stored = self._find(*place)
        old = self._column(stored, body.from_column)
        new = settled(old)
        new.name = body.to_column
        self.db.execute(f"ALTER TABLE {where} RENAME {ident(old.name)} TO {ident(new.name)}")
        stored.columns = {
            c.name: c for c in (new if c is old else c for c in stored.columns.values())
        }

    def _update_column_value(self, place, body):
        where, stored = self._find(*place)
        self._column(stored, body.column)
        value = self._literal(stored, body.column, None if body.value == "NULL" else body.value)
        self.db.execute(f"UPDATE {where} SET {ident(body.column)} = {value}")

    def _add_column_with_default_value(self, place, body):
        where, stored = self._find(*place)
        self._add(where, stored, new_column(body.column, body.column_type))
        value = self._literal(stored, body.column, body.default_value)
        self.db.execute(f"UPDATE {where} SET {ident(body.column)} = {value}")

    def _add_column_in_history_mode(self, place, body):
        where, stored = self._find(*place)
        begin = self._begin(where, body)
        self._add(where, stored, new_column(body.column, body.column_type))
        value = self._literal(stored, body.column, body.default_value)
        self._go_on(where, stored, begin=begin, column=body.column, value=value, concerned="true")

    def _drop_column_in_history_mode(self, place, body):
        where, stored = self._find(*place)
        begin = self._begin(where, body)
        concerned = f"{ident(body.column)} IS NOT NULL"
        self._go_on(
            where, stored, begin=begin, column=body.column, value="NULL", concerned=concerned
        )

    def _begin(self, where, body):
        begin = f"CAST({text(body.operation_timestamp)} AS TIMESTAMP)"
        later = f"SELECT count(*) FROM {where} WHERE {ACTIVE} AND {START} > {begin}"
        if self.db.execute(later).fetchone()[0]:
            raise Refused("an active version begins later")
        return begin

    def _go_on(self, where, stored, *, begin, column, value, concerned):
        old = f"{ACTIVE} AND {START} < {begin} AND {concerned}"
        cells = ", ".join(begin if name == START else ident(name) for name in stored.columns)
        self.db.execute(
            f"CREATE OR REPLACE TEMP TABLE going AS SELECT {cells} FROM {where} WHERE {old}"
        )
        self.db.execute(
            f"UPDATE {where} SET {ACTIVE} = false, {END} = {begin} - {MILLI} WHERE {old}"
        )
        self.db.execute(f"INSERT INTO {where} FROM going")
        self.db.execute(f"UPDATE {where} SET {ident(column)} = {value} WHERE {START} = {begin}")

    def _copy_table_to_history_mode(self, place, body):
        self._copy_table(place, body)
        self._soft_delete_to_history((place[0], body.to_table), body)

    def _soft_delete_to_history(self, place, body):
        where, stored = self._find(*place)
        for name, kind in ((START, common.UTC_DATETIME), (END, common.UTC_DATETIME)):
            self._add(where, stored, new_column(name, kind, key=name == START))
        self._add(where, stored, new_column(ACTIVE, common.BOOLEAN))
        marker = body.soft_deleted_column
        gone = f"coalesce({ident(marker)}, false)" if marker in stored.columns else "false"
        self.db.execute(
            f"UPDATE {where} SET {ACTIVE} = NOT {gone}, "
            f"{START} = CASE WHEN {gone} THEN {TMIN} ELSE (SELECT max({SYNCED}) FROM {where}) END, "
            f"{END} = CASE WHEN {gone} THEN {TMIN} ELSE {TMAX} END"
        )
        self._drop_columns(where, stored, [DELETED])

    def _history_to_soft_delete(self, place, body):
        where, stored = self._find(*place)
        keys = ", ".join(map(ident, stored.key()))
        self.db.execute(
            f"CREATE OR REPLACE TEMP TABLE newest AS FROM {where} "
            f"QUALIFY row_number() OVER (PARTITION BY {keys} ORDER BY {START} DESC) = 1"
        )
        self.db.execute(f"DELETE FROM {where}")
        self.db.execute(f"INSERT INTO {where} FROM newest")
        for name in (DELETED, body.soft_deleted_column or DELETED):
            if name not in stored.columns:
                self._add(where, stored, new_column(name, common.BOOLEAN))
                self.db.execute(f"UPDATE {where} SET {ident(name)} = false")
        self.db.execute(
            f"UPDATE {where} SET {ident(body.soft_deleted_column or DELETED)} = NOT {ACTIVE}"
        )
        self._drop_columns(where, stored, [START, END, ACTIVE])
