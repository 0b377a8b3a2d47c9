"""The part of the command resync for tables without a pipeline."""

# ruff: noqa: PLC0415 - each command imports what it needs, so that `--help` is fast

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from chronolake.cli import output
from chronolake.cli.app import confirm_loss, console, open_existing, print_json
from chronolake.errors import BatchError, ConfigurationError
from chronolake.location import scheme_of
from chronolake.types import STREAM_PROPERTY, Mode, TableName

if TYPE_CHECKING:
    from chronolake.config import LakeConfig
    from chronolake.inspect.catalog import CatalogTable


class MissingSetting(StrEnum):
    """The values of `--missing`, which are those of `chronolake.core.MissingRecords`."""

    DEACTIVATE = "deactivate"
    CLOSE = "close"
    STAY = "stay"


@dataclass(frozen=True)
class ResyncOptions:
    """The options of a re-sync with `--from`.

    Attributes:
        start: the column with the time of each row's last change.
        missing: the treatment of missing records.
        at: the time of the re-sync; None: now.
        format: the format of files.
        dry_run: whether only the effects are printed.
        yes: whether losses are confirmed.
        json: whether the output is JSON.
    """

    start: str | None
    missing: MissingSetting
    at: str | None
    format: str | None
    dry_run: bool
    yes: bool
    json: bool


def resync_table(table: TableName, given: str, stored: LakeConfig, options: ResyncOptions) -> None:
    """Re-sync a history table from a query, from files, or from another table.

    Raises:
        BadParameter: an option is not valid, or a loss is not confirmed.
        ConfigurationError: a pipeline fills the table.
        BatchError: the table is not in history mode, or the rows are not valid.
    """
    from chronolake import inspect
    from chronolake.config import VERSIONED, FileFormat
    from chronolake.instants import micros_of
    from chronolake.types import now_micros, stored_name

    now = now_micros()
    at = now if options.at is None else micros_of(options.at)
    if at > now:
        raise typer.BadParameter("the time is in the future", param_hint="--at")
    formats = [form.value for form in FileFormat if form not in VERSIONED]
    if options.format is not None and options.format not in formats:
        raise typer.BadParameter(f"write {', '.join(formats)}", param_hint="--format")
    _raise_if_impossible(inspect.look_up(stored, table))
    scheme = scheme_of(given)
    schemes = stored.source_schemes | ({scheme} if scheme is not None else set())
    reading = stored.model_copy(update={"source_schemes": schemes})
    with open_existing(reading, table, json=options.json) as opened:
        from chronolake.core import MissingRecords
        from chronolake.table_resync import prepare

        with prepare(
            opened,
            table,
            given,
            base=Path.cwd(),
            at_micros=at,
            gone=MissingRecords(options.missing.value),
            start=stored_name(options.start) if options.start is not None else None,
            format=None if options.format is None else FileFormat(options.format),
        ) as prepared:
            plan = prepared.plan
            if not options.dry_run:
                if plan.loses and not options.yes:
                    lost = f"{plan.table} would lose {plan.loses}"
                    confirm_loss(lost, "Re-sync?", json=options.json)
                prepared.run()
            if options.json:
                print_json(output.resync_plan_json(plan, prepared.origin, done=not options.dry_run))
            else:
                console().print(output.format_resync_plan(plan, done=not options.dry_run))


def _raise_if_impossible(table: CatalogTable) -> None:
    """Raise before Spark starts, if the table cannot be re-synced like this.

    Raises:
        ConfigurationError: a pipeline fills the table.
        BatchError: the table is not in history mode.
    """
    filled_by = table.iceberg.properties.get(STREAM_PROPERTY)
    if filled_by is not None:
        pipeline, _, stream = filled_by.partition("/")
        raise ConfigurationError(
            f"The pipeline {pipeline} fills the table, so it is re-synced from the pipeline's "
            "source.",
            table=str(table.name),
            hint=f"Run `chronolake resync {pipeline} --stream {stream}`.",
        )
    if table.mode is not Mode.HISTORY:
        raise BatchError(
            f"The table is in {table.mode} mode, and only history tables are re-synced.",
            table=str(table.name),
            hint=f"`chronolake mode '{table.name}' history` starts to keep its history.",
        )
