"""The schema migrations of a scenario: asked for, applied to the model, looked at afterwards."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from chronolake.drive import migration as forms
from chronolake.drive import wire
from chronolake.drive.checks import Checked, Failure
from chronolake.drive.destination import UNIMPLEMENTED
from chronolake.drive.evolution import altered, migrate, without_support
from chronolake.drive.model import ModelRefusal
from chronolake.protos import destination_sdk_pb2 as sdk

if TYPE_CHECKING:
    from collections.abc import Callable

    from chronolake.drive.conversation import Conversation
    from chronolake.drive.definition import TableDefinition
    from chronolake.drive.destination import Answer
    from chronolake.drive.migration import Migration
    from chronolake.drive.model import Model


class Migrator:
    """Carries out migrations in one schema."""

    def __init__(
        self,
        conversation: Conversation,
        *,
        schema: str,
        strict: bool,
        now_millis: Callable[[], int],
    ) -> None:
        """Begin with a conversation.

        Args:
            conversation: whom to ask.
            schema: the tables' schema.
            strict: whether an `unsupported` migration is a failure.
            now_millis: the wall clock, in milliseconds since the epoch.
        """
        self._conversation = conversation
        self._schema = schema
        self._strict = strict
        self._now = now_millis

    def carry_out(self, model: Model, migration: Migration) -> Model:
        """Ask for one migration and check what became of its tables.

        Args:
            model: the tables as they must be before; not to be used afterwards.
            migration: what to do.

        Returns:
            The tables as they must be afterwards.

        Raises:
            SyncStopped: the destination refused without reason.
        """
        source = migration.tables[0]
        if source not in model.tables:
            found = self._conversation.look_up(self._schema, source)
            if found is not None:
                model.adopt(source, found)
        after, refusal = copy.deepcopy(model), None
        try:
            migrate(after, migration, now_micros=self._now() * 1000)
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
                # The guides do not say what becomes of a table that is not there.
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
        wanted, drop = altered(model, migration)
        self.alter_table(
            migration.table, wanted, drop=drop, detail=migration.operation, refusal=refusal
        )

    def alter_table(
        self,
        table: str,
        wanted: TableDefinition,
        *,
        drop: bool = False,
        detail: str = "",
        refusal: str | None = None,
    ) -> None:
        """Ask for an AlterTable.

        Raises:
            SyncStopped: the destination refused without reason.
        """
        request = sdk.AlterTableRequest(
            configuration=self._conversation.configuration,
            schema_name=self._schema,
            table=wire.table_message(table, wanted),
            drop_columns=drop,
        )
        self._conversation.ask("AlterTable", request, table=table, detail=detail, refusal=refusal)

    def create_table(self, table: str, definition: TableDefinition, *, detail: str = "") -> None:
        """Ask for a CreateTable.

        Raises:
            SyncStopped: the destination refused.
        """
        request = sdk.CreateTableRequest(
            configuration=self._conversation.configuration,
            schema_name=self._schema,
            table=wire.table_message(table, definition),
        )
        self._conversation.ask("CreateTable", request, table=table, detail=detail)

    def _migrate(self, migration: Migration, refusal: str | None, *, due: bool) -> Answer:
        request = sdk.MigrateRequest(
            configuration=self._conversation.configuration,
            details=wire.migration_details(self._schema, migration),
        )
        withdrawn = isinstance(migration, forms.SyncMode) and migration.withdrawn

        def inspect(answer: Answer, outcome: Checked) -> None:
            if answer.member == "unsupported" and withdrawn:
                outcome.checked.append("a withdrawn migration is unsupported")
            elif answer.member == "unsupported" and self._strict:
                outcome.failures.append(Failure("answer", "success", "unsupported"))
            elif answer.member == "unsupported":
                outcome.notices.append("unsupported: Fivetran goes on without it.")
            elif withdrawn:
                outcome.notices.append("this migration was withdrawn: unsupported is expected.")

        return self._conversation.ask(
            "Migrate",
            request,
            table=migration.tables[0],
            detail=migration.operation,
            good=("success", "unsupported"),
            refusal=refusal,
            refusal_due=due,
            unimplemented=None if self._strict else "Fivetran goes on without it",
            inspect=inspect,
        )

    def _fall_back(self, model: Model, migration: Migration) -> Model:
        instead = without_support(model, migration)
        if instead is None:
            return model
        match migration:
            case forms.RenameTable() | forms.CopyTable():
                self.create_table(migration.to_table, instead, detail="instead")
                model.create(migration.to_table, instead)
            case _:
                table = migration.tables[0]
                sent = set(model.table(table).sent)
                self.alter_table(table, instead, detail="instead")
                model.alter(table, instead)
                sent.add(instead.names[-1])
                if isinstance(migration, forms.RenameColumn):
                    sent.discard(migration.from_column)
                model.table(table).sent = tuple(name for name in instead.names if name in sent)
        return model
