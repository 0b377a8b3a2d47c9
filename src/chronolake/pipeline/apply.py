"""Application of landed files to a stream's table, in steps that are published one by one."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import structlog

from chronolake.core.alter import alter, is_in_place
from chronolake.core.pipeline_table import with_system_columns
from chronolake.core.publish import publish
from chronolake.description import describe_loaded
from chronolake.errors import ChronolakeError, LakeError
from chronolake.failpoints import reach
from chronolake.landing import (
    Control,
    ControlKind,
    DataFile,
    Landing,
    Quarantine,
    bad_file_error,
    bad_files_in,
    files_up_to,
    inspect_files,
    land_control,
    merge_types,
    rows_in,
)
from chronolake.pipeline.applied_files import AppliedFiles
from chronolake.pipeline.properties import LEASE_PROPERTY
from chronolake.pipeline.purge import erase_purged
from chronolake.pipeline.rebuild import rebuild
from chronolake.pipeline.runs import ModeChange
from chronolake.pipeline.streams import warn_of_quarantine
from chronolake.pipeline.table_writer import (
    accepted_types,
    changes_between,
    column_changes,
    columns_for,
    stored_types,
    table_settings,
    write,
)
from chronolake.types import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from chronolake.iceberg import IcebergTable
    from chronolake.landing import BadFile
    from chronolake.landing.reader import TypesByField
    from chronolake.pipeline.schema_changes import ColumnChange
    from chronolake.pipeline.streams import Stream
    from chronolake.pipeline.table_writer import StoredTable, TableWriter
    from chronolake.types import Column

log = structlog.get_logger(__name__)

#: Target size of the files that are applied together, in bytes.
STEP_BYTES: Final = 4 * 2**30


@dataclass(frozen=True)
class StepResult:
    """The result of one step.

    Attributes:
        watermark: the last file that was applied to the table; None if none was and there is no
            table.
        files: number of files of the step.
        bytes: their size.
        rows: their rows, including duplicates.
        written: rows of the table that are new or changed.
        changes: changes of columns in files of another system.
    """

    watermark: str | None
    files: int
    bytes: int
    rows: int
    written: int
    changes: tuple[ColumnChange, ...] = ()


def apply(
    writer: TableWriter,
    stored: StoredTable | None,
    files: Sequence[DataFile],
    *,
    current: Callable[[Stream], Stream] = lambda stream: stream,
    step_bytes: int = STEP_BYTES,
) -> Iterator[StepResult | ModeChange]:
    """Apply files to a stream's table, in steps that are published one by one.

    A table that does not match its configuration is rebuilt before the next step. If a step has
    values for which a column's type cannot be widened in place, the table is rebuilt from all files
    at once: so several type changes cost one rebuild, and not one for each step.

    Args:
        writer: the stream, and the lease of its pipeline.
        stored: its table, or None if it does not exist.
        files: the files that landed after the table's watermark, in the order of writing.
        current: returns the stream with its current configuration; called at the beginning and
            before each step.
        step_bytes: target size of the files of a step.

    Yields:
        The result of each step, and switches of the table's mode before a step.

    Raises:
        ConfigurationError: the current configuration is not valid for the stream.
        SourceError: a file cannot be read, or its data cannot be stored.
        TableExistsError: the table has another owner.
        LeaseLostError: another process runs the pipeline.
        CommitError: a step could not be published; the steps before it were.
        LakeError: the table was dropped meanwhile.
    """
    if (wanted := current(writer.stream)) != writer.stream:
        writer = replace(writer, stream=wanted)
        stored = None if stored is None else writer.stored(stored.table)
    if (switched := rebuild_if_outdated(writer, stored)) is not None:
        yield switched
    again = files_up_to(files, None if stored is None else stored.applied.furthest)
    done, has_table = 0, stored is not None
    for step in _steps(files, step_bytes, again=len(again)):
        wanted = current(writer.stream)
        if wanted != writer.stream:
            log.info("stream_reconfigured", table=str(wanted.table), mode=wanted.mode)
            writer = replace(writer, stream=wanted)
            if (switched := rebuild_if_outdated(writer, writer.find())) is not None:
                yield switched
        applied = _apply_step(writer, _Step(tuple(step), has_table=has_table))
        if applied is None:
            left = files[done:]
            before = writer.find()
            rebuilt = rebuild(writer.lake, writer.stream, writer.lease, upto=files[-1])
            rows = rows_in(file for file in left if file in rebuilt.files)
            result = _result_of(left[-1].mark, left, rows=rows, written=rebuilt.written)
            yield replace(result, changes=changes_between(before, writer.find()))
            return
        yield applied
        done += len(step)
        has_table = has_table or applied.watermark is not None


@dataclass(frozen=True)
class _Step:
    """Files that are applied together.

    Attributes:
        files: in the order of their writing.
        has_table: whether the table existed when the files were listed: they follow its watermark.
        bad: those of them that cannot be read, and are left out.
    """

    files: tuple[DataFile, ...]
    has_table: bool
    bad: tuple[BadFile, ...] = ()

    @property
    def good(self) -> list[DataFile]:
        """Return the files without the bad ones."""
        return Quarantine(self.bad).readable(self.files)


def _apply_step(writer: TableWriter, step: _Step) -> StepResult | None:
    """Apply files; if the stream quarantines bad files, retry without those that are bad.

    Returns:
        The result; None if the table must be rebuilt from all files.

    Raises:
        BadFileError: files cannot be read and the stream does not quarantine them, or none of the
            files can be read and there is no table to record them.
    """
    while True:
        try:
            return _apply_good(writer, step)
        except ChronolakeError as failure:
            known = {file.mark for file in step.bad}
            bad = [file for file in bad_files_in(failure, step.good) if file.mark not in known]
            if not (bad and writer.stream.descriptor.quarantines):
                raise
            warn_of_quarantine(writer.stream, bad)
            step = replace(step, bad=(*step.bad, *bad))


def _apply_good(writer: TableWriter, step: _Step) -> StepResult | None:
    stored = writer.find()
    if stored is None and step.has_table:
        # Created from these files alone, the table would lack all earlier rows.
        raise LakeError(
            "The table was dropped while files were applied to it.",
            table=str(writer.stream.table),
            hint="Run the command again: it creates the table from all files of the raw lake.",
        )
    if not step.good:
        if stored is None:
            raise bad_file_error(step.files, step.bad)
        return _record_unreadable_files(stored, step)
    landed = _landing(writer, step.good)
    reach("sync.surveyed")
    last = step.files[-1].mark
    if landed.is_silent and not (step.bad and stored is not None):
        mark = None if stored is None else stored.applied.watermark
        return _result_of(mark, step.files, rows=landed.rows)
    if stored is None:
        return _result_of(
            last, step.files, rows=landed.rows, written=_create_table(writer, landed, step)
        )
    columns = _columns(stored, landed)
    if not columns.are_in_place:
        return None
    written = _write_step(stored, landed, columns, step)
    result = _result_of(last, step.files, rows=landed.rows, written=written)
    return replace(result, changes=columns.changes)


def _record_unreadable_files(stored: StoredTable, step: _Step) -> StepResult:
    """Record files in a table of which none can be read."""
    writer = stored.writer

    def record_files(current: IcebergTable) -> object:
        writer.lease.guard(current)
        applied = AppliedFiles.of(current).with_files(step.files, step.bad)
        return current.builder().setProperties(current.catalog.map(applied.properties))

    with writer.lake.writing(writer.stream.table):
        publish(stored.table, record_files, {LEASE_PROPERTY: str(writer.lease.token)})
    return _result_of(step.files[-1].mark, step.files, rows=0)


def _steps(files: Sequence[DataFile], step_bytes: int, *, again: int) -> Iterator[list[DataFile]]:
    """Yield the files of each step.

    Args:
        files: all files.
        step_bytes: target size of a step, in bytes.
        again: number of files at the beginning that are applied again, in one step: so readers see
            only the state after the last of them.
    """
    step, size = list(files[:again]), sum(file.size for file in files[:again])
    for file in files[again:]:
        if step and size + file.size > step_bytes:
            yield step
            step, size = [], 0
        step.append(file)
        size += file.size
    if step:
        yield step


def _landing(writer: TableWriter, files: Sequence[DataFile]) -> Landing:
    size = sum(file.size for file in files)
    spark = writer.lake.session_for_versions(writer.stream.table, size)
    return inspect_files(spark, files, writer.namings, writer.stream.rules_of_files)


def _result_of(
    watermark: str | None, files: Sequence[DataFile], *, rows: int, written: int = 0
) -> StepResult:
    return StepResult(watermark, len(files), sum(file.size for file in files), rows, written)


@dataclass(frozen=True)
class _Columns:
    """The columns that a table needs for more files.

    Attributes:
        observed: the observed types of every field, in these files and those of the table.
        every: the columns.
        are_in_place: whether the table can be altered to these columns without rewriting its rows.
        changes: changes of columns in files of another system.
    """

    observed: TypesByField
    every: tuple[Column, ...]
    are_in_place: bool
    changes: tuple[ColumnChange, ...] = ()


def _columns(stored: StoredTable, landed: Landing) -> _Columns:
    stored.expect_own()
    stored.writer.lease.guard(stored.table)
    stored.expect_same_key(landed.key, file=landed.watermark)
    observed = merge_types(stored.observed, accepted_types(stored, landed))
    columns = columns_for(stored.stream, observed, landed.key)
    # A table that was created but never written cannot have been rebuilt before.
    are_in_place = stored.matches_configuration and not _needs_rebuild(stored, columns)
    return _Columns(observed, columns, are_in_place, column_changes(stored, landed, columns))


def _create_table(writer: TableWriter, landed: Landing, step: _Step) -> int:
    """Create the table from its first files; return the number of rows written."""
    stream = writer.stream
    columns = columns_for(stream, stored_types(stream, landed), landed.key)
    # After a long pause, this process could create a table under another process's lease.
    writer.lease.expect_held()
    writer.create(stream.table, columns, properties=writer.properties)
    reach("sync.table-ready")
    erase_purged(writer, None, landed)
    applied = AppliedFiles().with_files(step.files, step.bad)
    return write(writer, stream.table, landed, stored_types(stream, landed), applied=applied)


def _write_step(stored: StoredTable, landed: Landing, columns: _Columns, step: _Step) -> int:
    """Apply files to a table whose columns can hold them; return the number of rows written."""
    writer, stream = stored.writer, stored.stream
    erase_purged(writer, stored.table, landed)
    wanted = with_system_columns(columns.every, stream.mode)
    # Existing fields keep their position; new ones are appended.
    alter(writer.lake, stream.table, wanted, drop_columns=False, guard=writer.lease.guard)
    reach("sync.table-ready")
    applied = stored.applied.with_files(step.files, step.bad)
    return write(writer, stream.table, landed, columns.observed, applied=applied)


def rebuild_if_outdated(writer: TableWriter, stored: StoredTable | None) -> ModeChange | None:
    """Rebuild a table that does not match its configuration or source, before any new data.

    Returns:
        The change of the table's mode, or None if it has its mode already.

    Raises:
        SourceError: files that the table was built from are missing or cannot be read.
        TableExistsError: the table has another owner.
        LeaseLostError: another process runs the pipeline.
        CommitConflictError: another writer published meanwhile; the table is unchanged.
    """
    stream = writer.stream
    if stored is not None:
        stored.expect_own()
        writer.lease.guard(stored.table)
    if stream.descriptor.is_ours:
        control = Control(ControlKind.KEPT, table_settings(stream))
        land_control(stream.folder, control, guard=writer.lease.expect_held)
    if stored is None or stored.applied.furthest is None:
        return None
    if stored.matches_configuration and not stored.is_renamed:
        return None
    before, began = describe_loaded(stored.table).mode, time.monotonic()
    rebuilt = rebuild(writer.lake, stream, writer.lease)
    if before is stream.mode:
        return None
    change = ModeChange(before, stream.mode, rebuilt.written, time.monotonic() - began)
    log.info("mode_switched", table=str(stream.table), **change.as_json())
    return change


def _needs_rebuild(stored: StoredTable, columns: Sequence[Column]) -> bool:
    """Return whether a column gets a type that its stored values cannot be converted to in place.

    A rebuild reads the lake's original texts again, so that `5` does not become `5.0`.
    """
    by_name = describe_loaded(stored.table).by_name
    if any(types and name not in by_name for name, types in stored.observed.items()):
        # Another engine dropped a column: added in place, it would be null in the existing rows.
        return True
    return any(
        column.name in by_name
        and by_name[column.name].type != column.type
        and (
            not is_in_place(by_name[column.name].type, column.type)
            # Converted in place, times of day would keep Chronolake's spelling.
            or by_name[column.name].type.kind is Kind.NAIVE_TIME
        )
        for column in columns
    )
