"""A MySQL or MariaDB database as a source: a copy of each table, then every change from the log.

All streams of a pipeline are read from the log in one pass. Each stream has its own offset in it.
The server knows nothing of pipelines: it keeps its log for as long as its settings allow.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import structlog

from chronolake.cancellation import raise_if_cancelled
from chronolake.errors import SourceError
from chronolake.failpoints import reach
from chronolake.landing import landed_micros
from chronolake.object_store import BucketPath
from chronolake.source.mysql.catalog import default_values
from chronolake.source.mysql.check import check_server, check_table
from chronolake.source.mysql.connection import Server, connect, execute
from chronolake.source.mysql.initial_copy import (
    StagingFolder,
    copied_rows,
    stage_rows,
)
from chronolake.source.mysql.kept_log import KeptLog, log_files
from chronolake.source.mysql.log_reader import LogBegin, LogReader, is_at, is_subset
from chronolake.source.mysql.log_stream import LogEnd, LogPurgedError, micros_of
from chronolake.source.mysql.matching_rows import condition_of
from chronolake.source.mysql.offset import (
    LogOffset,
    LogPlace,
    generation_of,
    numbered,
    parse_gtids,
    with_generation,
)
from chronolake.source.mysql.selection import TableSelection
from chronolake.source.mysql.table_replication import ReadEnd, TableReplication
from chronolake.source.protocol import (
    CaptureMethod,
    CheckResult,
    Level,
    Snapshot,
    StreamDescriptor,
    StreamFailure,
    spool_folder,
)
from chronolake.source.relational.row_versions import RowKey, sequence_of
from chronolake.source.relational.single_rows import not_followed_failure
from chronolake.source.relational.spool_folders import create_spool

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
    from pathlib import Path

    import pymysql

    from chronolake.config import MysqlSource, Project
    from chronolake.lake import Lake
    from chronolake.source.mysql.catalog import SourceTable
    from chronolake.source.mysql.columns import SourceColumn
    from chronolake.source.protocol import (
        ChangeBatch,
        DescribedStream,
        Offset,
        ReadProgress,
        Where,
    )
    from chronolake.source.relational.row_versions import Spool

log = structlog.get_logger(__name__)

_PAUSE_SECONDS: Final = 0.2


@dataclass
class _Plan:
    """What a run does with its streams.

    Attributes:
        reads_all: whether every table is copied, after its log was read.
        followed: the tables whose log is read.
        copied: the tables that are copied, with their last offset.
        lost: why the log of some streams could not be read, by stream.
    """

    reads_all: bool
    followed: list[TableReplication] = field(default_factory=list)
    copied: list[tuple[SourceTable, LogOffset | None]] = field(default_factory=list)
    lost: dict[str, SourceError] = field(default_factory=dict)


@dataclass
class MysqlDatabase:
    """The tables of a database, by its binary log."""

    project: Project
    pipeline: str
    config: MysqlSource

    @cached_property
    def _selection(self) -> TableSelection:
        return TableSelection(self.project, self.pipeline, self.config)

    def discover(self) -> list[StreamDescriptor]:
        """Return the selected tables. A missing table fails on its own."""
        return self._selection.discover(CaptureMethod.EVERY_CHANGE)

    def describe_streams(self, names: Collection[str]) -> Iterator[DescribedStream | StreamFailure]:
        """Return the columns of tables from the catalog."""
        yield from self._selection.describe_streams(names)

    def check(
        self,
        *,
        create: bool,  # noqa: ARG002 - nothing is created in the server
        positions: Mapping[str, Offset] | None = None,  # noqa: ARG002 - reading compares them
    ) -> list[CheckResult]:
        """Return the problems of the server and of the tables, with statements that fix them."""
        with connect(self.config.dsn) as connection:
            server = Server.of(connection)
            results = [CheckResult("server", Level.OK, server.name)]
            results += check_server(connection, server)
            for name in self._selection.names:
                table = self._selection.tables.get(name)
                if table is not None:
                    results += check_table(table)
            return results

    def acknowledge(self, positions: Mapping[str, Offset]) -> None:
        """Do nothing: the server keeps no state for a pipeline."""

    def read(
        self, lake: Lake, positions: Mapping[str, Offset | None], *, full_refresh: bool
    ) -> Iterator[ChangeBatch | Snapshot | ReadProgress | StreamFailure]:
        """Read the log of tables that were copied, then copy the others."""
        yield from self._read(lake, positions, full_refresh=full_refresh)

    def read_where(
        self, lake: Lake, stream: str, position: Offset, where: Where
    ) -> Iterator[ChangeBatch | Snapshot | ReadProgress | StreamFailure]:
        """Read the log of a table, and the matching rows as of its end.

        The snapshot may also have other rows, which changed while the matching ones were read.
        """
        yield from self._read(lake, {stream: position}, full_refresh=False, where=where)

    def _read(
        self,
        lake: Lake,
        positions: Mapping[str, Offset | None],
        *,
        full_refresh: bool,
        where: Where | None = None,
    ) -> Iterator[ChangeBatch | Snapshot | ReadProgress | StreamFailure]:
        with connect(self.config.dsn) as connection:
            server = Server.of(connection)
            kept = KeptLog.of(connection, server, LogEnd.of(connection, server))
        # Read the catalog again: the log up to its end can only be understood with a later catalog.
        selection = TableSelection(self.project, self.pipeline, self.config)
        with create_spool(spool_folder(self.project, self.pipeline)) as folder:
            reader = LogReader(self.config.dsn, server, self._server_id, folder)
            plan = _Plan(reads_all=full_refresh)
            for name, stored in positions.items():
                position = None if stored is None else LogOffset.from_json(stored)
                try:
                    self._plan_stream(plan, selection.table(name), position, reader, kept)
                except SourceError as failure:
                    yield StreamFailure(name, failure)
            yield from self._follow(lake, reader, plan, kept.end)
            for replication in plan.followed:
                lost = plan.lost.get(replication.table.stream)
                if lost is not None and not full_refresh:
                    yield StreamFailure(replication.table.stream, lost)
                elif where is not None:
                    yield from self._read_rows(lake, reader, replication, where)
                elif lost is not None or replication.has_unlogged or full_refresh:
                    if replication.has_unlogged:
                        log.info(
                            "table_read_again",
                            pipeline=self.pipeline,
                            stream=replication.table.stream,
                            reason="values that are not in the log",
                        )
                    plan.copied.append((replication.table, replication.position))
            for table, position in plan.copied:
                if where is not None:
                    yield not_followed_failure(table.stream)
                    continue
                yield from self._copy(lake, reader, table, position)

    def _plan_stream(
        self,
        plan: _Plan,
        table: SourceTable,
        position: LogOffset | None,
        reader: LogReader,
        kept: KeptLog,
    ) -> None:
        """Add a stream to those whose log is read, or that are copied.

        Raises:
            SourceError: the log does not continue at the stream's offset.
        """
        if position is None or not table.log_key or not position.is_of(table):
            is_behind = position is None or not is_at(position, kept.end, reader.server)
            if table.log_key or plan.reads_all or is_behind:
                plan.copied.append((table, position))
            return
        problem = self._gap_error(table, position, kept)
        if problem is not None:
            if not plan.reads_all:
                raise problem
            plan.copied.append((table, position))
            return
        if not kept.has_evidence_of(position):
            position = replace(position, evidence=None)
        plan.followed.append(self._replication(reader, table, position, kept.end))

    @property
    def _server_id(self) -> int:
        return self.config.server_id_for(self.pipeline, str(self.project.lake.path))

    def _replication(
        self, reader: LogReader, table: SourceTable, position: LogOffset, end: LogEnd
    ) -> TableReplication:
        """Return the replication of a table from an offset to an end of the log."""
        folder = reader.folder / uuid4().hex
        return TableReplication(table, position, folder, reader.server, self._defaults, end.micros)

    def _defaults(self, table: SourceTable) -> Mapping[str, str | None]:
        """Return the values that columns of a table have if an insert does not name them."""
        with connect(self.config.dsn) as connection:
            return default_values(connection, table)

    # The log.

    def _follow(
        self,
        lake: Lake,
        reader: LogReader,
        plan: _Plan,
        end: LogEnd,
    ) -> Iterator[ChangeBatch | Snapshot]:
        """Read the log of tables up to its end.

        A stream whose evidence is missing in the log is lost, and nothing of it is returned.
        """
        behind = [
            replication
            for replication in plan.followed
            if not is_at(replication.position, end, reader.server)
        ]
        if not behind:
            return
        if not plan.reads_all:
            self._remove_staged(lake, [replication.table for replication in behind])
        try:
            while behind:
                behind = yield from self._follow_once(lake, reader, plan, end, behind)
        except LogPurgedError as failure:
            plan.lost |= {replication.table.stream: failure for replication in behind}

    def _follow_once(
        self,
        lake: Lake,
        reader: LogReader,
        plan: _Plan,
        end: LogEnd,
        behind: Sequence[TableReplication],
    ) -> Generator[ChangeBatch | Snapshot, None, list[TableReplication]]:
        """Read the log of tables up to its end, and return those of which it is read again."""
        last = None
        begins = LogBegin.of([replication.position for replication in behind], reader.server)
        for step in reader.read(begins, end, behind):
            last = step
            for replication in behind:
                if step.is_between_transactions and replication.is_due:
                    yield from replication.read(lake, step.end)
        again = []
        self._check_defaults(reader, end, behind)
        for replication in behind:
            if replication.must_repeat:
                again.append(replication.repeated())
                plan.followed[plan.followed.index(replication)] = again[-1]
            elif replication.error is not None:
                plan.lost[replication.table.stream] = replication.error
            elif not replication.is_recognized:
                plan.lost[replication.table.stream] = self._other_log_error(replication)
            elif last is not None:
                yield from replication.read(lake, last.end)
        return again

    def _check_defaults(
        self, reader: LogReader, end: LogEnd, behind: Sequence[TableReplication]
    ) -> None:
        """Let tables be read again that may have had other defaults than those that were used.

        The catalog was read after the end of what was read of the log.
        """
        users = [replication for replication in behind if replication.has_used_defaults]
        if users:
            later = reader.statements(end, self._log_end(reader.server))
            for replication in users:
                replication.must_repeat |= any(map(replication.is_altered_by, later))

    def _gap_error(
        self, table: SourceTable, position: LogOffset, kept: KeptLog
    ) -> SourceError | None:
        """Return an error if the log does not continue at a stream's offset, or None."""
        name, server, end = table.stream, kept.server, kept.end
        if not kept.continues_at(position):
            return LogPurgedError(
                f"The server has removed a part of its binary log that was not read yet of {name}.",
                hint="Let it keep its log for longer (binlog_expire_logs_seconds), and run "
                f"{self._resync(name)} to read the current rows.",
            )
        is_same = position.server == server.identity
        if position.gtids is not None and end.gtids is not None:
            read = parse_gtids(position.gtids, is_mariadb=server.is_mariadb)
            if is_subset(read, parse_gtids(end.gtids, is_mariadb=server.is_mariadb)):
                return None
            message = f"The server has not committed transactions that were read of {name}."
            reason = "It was restored from an older state, or is a replica that lags behind."
        elif is_same and position.place.number <= end.place.number:
            return None
        else:
            message = f"The offset of the stream {name} is not in this server's log."
            reason = "The server was restored, or is another one and has no GTIDs."
        return SourceError(
            message, hint=f"{reason} Run {self._resync(name)} to read the current rows."
        )

    def _other_log_error(self, replication: TableReplication) -> SourceError:
        name = replication.table.stream
        return SourceError(
            f"The server's log is not the one that {name} was read from: the last transaction that "
            "was read is not in it.",
            hint="The server was restored from an older state, or its log was reset: rows in the "
            "lake may differ from the table's. No changes of the new log were applied. Run "
            f"{self._resync(name)} to compare the table with the lake and read the current rows.",
        )

    def _resync(self, stream: str) -> str:
        return f"`chronolake resync {self.pipeline} --stream {stream}`"

    # Copies.

    def _copy(
        self, lake: Lake, reader: LogReader, table: SourceTable, position: LogOffset | None
    ) -> Iterator[Snapshot | StreamFailure]:
        """Copy a table as of one place in the log."""
        try:
            landed = landed_micros(self._selection.landing_folder(table.stream))
            yield from self._copy_rows(lake, reader, table, position, landed)
        except SourceError as failure:
            yield StreamFailure(table.stream, failure)

    def _copy_rows(
        self,
        lake: Lake,
        reader: LogReader,
        table: SourceTable,
        position: LogOffset | None,
        landed: int,
    ) -> Iterator[Snapshot]:
        staging = self._staging_folder(lake, table)
        before = self._begin_copy(staging, reader.server, table, position)
        files = stage_rows(lake, self.config.dsn, table, staging)
        end = self._log_end(reader.server)
        columns, greatest = numbered(
            table.columns,
            () if position is None else position.columns,
            0 if position is None else position.greatest,
        )
        table = replace(table, columns=columns)
        begin = replace(before, columns=columns, key=table.log_key, greatest=greatest)
        replication = self._replication(reader, table, begin, end)
        read = ReadEnd(before.place, (), None, before.prepared)
        if table.log_key and not is_at(before, end, reader.server):
            begins = LogBegin.of([before], reader.server)
            for step in reader.read(begins, end, [replication]):
                read = step.end
        try:
            changes = _changes_for_copy(replication)
        except SourceError:
            staging.remove()
            raise
        after = replication.offset_after(read)
        generation = after.generation
        if position is not None and with_generation(after.place.number, generation) < (
            position.number
        ):
            # The log was reset.
            generation = generation_of(position.number) + 1
        last = (
            max(end.micros, after.last_micros, landed, *(p.last_micros for p in (position,) if p))
            + 1
        )
        after = replace(after, generation=generation, last_micros=last)
        yield _snapshot(lake, table, files, changes, after)
        reach("copy.landed")
        staging.remove()

    def _log_end(self, server: Server) -> LogEnd:
        with connect(self.config.dsn) as connection:
            return LogEnd.of(connection, server)

    def _read_rows(
        self, lake: Lake, reader: LogReader, followed: TableReplication, where: Where
    ) -> Iterator[ChangeBatch | Snapshot | StreamFailure]:
        """Read the matching rows of a table as of one place in the log, and its log up to there."""
        table = followed.table
        staging = self._staging_folder(lake, table).for_part()
        try:
            landed = landed_micros(self._selection.landing_folder(table.stream))
            staging.begin({"ranges": [condition_of(table, where)]})
            with connect(self.config.dsn) as connection:
                begin = self._settled_place(connection, reader.server)
            files = stage_rows(lake, self.config.dsn, table, staging)
            end = self._log_end(reader.server)
            since = replace(
                followed.position,
                place=begin.place,
                gtids=begin.gtids,
                server=reader.server.identity,
                has_unlogged=False,
                evidence=None,
                prepared={},
            )
            meanwhile = self._replication(reader, table, since, end)
            both = [followed, meanwhile]
            if not all(is_at(each.position, end, reader.server) for each in both):
                begins = LogBegin.of([each.position for each in both], reader.server)
                steps = list(reader.read(begins, end, both))
                if followed.error is not None:
                    raise followed.error
                if followed.must_repeat:
                    raise _altered_error(table)
                if not followed.is_recognized:
                    raise self._other_log_error(followed)
                yield from followed.read(lake, steps[-1].end)
            changes = _changes_for_copy(meanwhile)
            last = max(end.micros, followed.position.last_micros, landed) + 1
            known = followed.position.columns
            columns, greatest = numbered(table.columns, known, followed.position.greatest)
            table = replace(table, columns=columns)
            names = {column.name for column in known}
            position = replace(
                followed.position,
                last_micros=last,
                columns=(*known, *(column for column in columns if column.name not in names)),
                greatest=greatest,
            )
            yield _snapshot(lake, table, files, changes, position)
        except SourceError as failure:
            yield StreamFailure(table.stream, failure)
        finally:
            staging.remove()

    def _begin_copy(
        self,
        staging: StagingFolder,
        server: Server,
        table: SourceTable,
        position: LogOffset | None,
    ) -> LogOffset:
        """Return the place before the first row is read: that of an interrupted copy if it fits."""
        shape = {
            "columns": [[column.name, column.form] for column in table.columns],
            "key": list(table.log_key),
            "rules": table.texts.rules.digest,
            "server": server.identity,
        }
        with connect(self.config.dsn) as connection:
            manifest = staging.read_manifest()
            # Rows without a key cannot be completed by the log.
            if manifest is not None and manifest["shape"] == shape and table.log_key:
                found = LogOffset.from_json(manifest["offset"])
                if found.place.file in log_files(connection):
                    log.info("copy_continues", pipeline=self.pipeline, stream=table.stream)
                    return found
            place = self._settled_place(connection, server)
        found = LogOffset(
            place.place,
            place.gtids,
            server.identity,
            0 if position is None else position.generation,
            0,
            table.columns,
            table.log_key,
            0,
        )
        staging.begin({"shape": shape, "offset": found.as_json()})
        return found

    def _settled_place(self, connection: pymysql.Connection[Any], server: Server) -> LogEnd:
        """Return a place in the log before which everything is visible to a statement from now on.

        A transaction is written to the log before it is visible.

        Raises:
            SourceError: transactions do not end in time.
        """
        until = time.monotonic() + self.config.snapshot_timeout
        _await_prepared(connection, until)
        if server.is_mariadb:
            execute(connection, "START TRANSACTION WITH CONSISTENT SNAPSHOT")
            found = dict(execute(connection, "SHOW STATUS LIKE 'binlog_snapshot_%'"))
            execute(connection, "ROLLBACK")
            place = LogPlace(
                str(found["Binlog_snapshot_file"]), int(found["Binlog_snapshot_position"])
            )
            ((gtids,),) = execute(
                connection, "SELECT BINLOG_GTID_POS(%s, %s)", (place.file, place.position)
            )
            return LogEnd(place, str(gtids) if gtids else None, micros_of(connection))
        end = LogEnd.of(connection, server)
        if end.gtids is None:
            _await_transactions(connection, until)
        return end

    def _staging_folder(self, lake: Lake, table: SourceTable) -> StagingFolder:
        root = self._staging_root(lake) / self._selection.landing_folder(table.stream).path.name
        return StagingFolder(root, lake.config.object_storage)

    def _staging_root(self, lake: Lake) -> Path | BucketPath:
        """Return the folder of all copies of the pipeline."""
        config = lake.config
        if lake.executor_files.are_shared:
            folder = spool_folder(self.project, self.pipeline).parent.parent / "_copies"
            return folder / self.pipeline.replace("/", "_")
        return BucketPath(
            f"{config.warehouse_location}/_copies/{self.pipeline}", config.object_storage
        )

    def _remove_staged(self, lake: Lake, tables: Sequence[SourceTable]) -> None:
        """Remove the staged rows of tables whose copies have landed.

        They are still there if the process was killed after that.
        """
        root = self._staging_root(lake)
        folders = [self._staging_folder(lake, table) for table in tables]
        if isinstance(root, BucketPath):
            # One request, as there is nothing to remove in most runs.
            staged = [str(item.path) for item in root.objects()]
            folders = [
                folder
                for folder in folders
                if any(path.startswith(f"{folder.root}/") for path in staged)
            ]
        for folder in folders:
            folder.remove()


def _snapshot(
    lake: Lake,
    table: SourceTable,
    files: Sequence[str],
    changes: Sequence[Spool[SourceColumn]],
    position: LogOffset,
) -> Snapshot:
    """Return rows that were staged, with the changes since then, as of an offset."""
    declared = RowKey.of(table).declare(table.columns, out_of_range=set())
    rows, texts = copied_rows(lake, table, files, changes, declared)
    return Snapshot(
        table.stream,
        rows,
        declared,
        position.last_micros,
        sequence_of(position.number),
        position.as_json(),
        position.numbers(table.columns),
        texts=texts,
        is_protected=True,
    )


def _changes_for_copy(replication: TableReplication) -> list[Spool[SourceColumn]]:
    """Return the changes that were made to a table while it was read.

    Raises:
        SourceError: they cannot be applied to the rows.
    """
    changes = replication.take_spools()
    if replication.error is not None:
        raise replication.error
    if changes is None or not replication.can_complete_copy:
        raise _altered_error(replication.table)
    return changes


def _altered_error(table: SourceTable) -> SourceError:
    return SourceError(
        f"The table {table.stream} was altered or truncated while it was copied.",
        hint="Run the command again: it reads the table again.",
    )


def _await_prepared(connection: pymysql.Connection[Any], until: float) -> None:
    """Wait until XA transactions end that are prepared now: the log has their rows before here."""
    try:
        xids = {tuple(row) for row in execute(connection, "XA RECOVER")}
    except SourceError:
        # The user lacks a privilege. If such a transaction is committed later, the copy fails.
        return
    while xids:
        if time.monotonic() > until:
            data = min(str(row[3]) for row in xids)
            raise SourceError(
                f"The copy cannot begin: the XA transaction {data!r} is prepared and not ended.",
                hint="End it with XA COMMIT or XA ROLLBACK; XA RECOVER lists such transactions.",
            )
        raise_if_cancelled()
        time.sleep(_PAUSE_SECONDS)
        xids &= {tuple(row) for row in execute(connection, "XA RECOVER")}


def _await_transactions(connection: pymysql.Connection[Any], until: float) -> None:
    """Wait until transactions end that are open now: the log may have them already."""
    query = "SELECT trx_id, trx_mysql_thread_id FROM information_schema.INNODB_TRX"
    waiting = set(execute(connection, query))
    while waiting:
        if time.monotonic() > until:
            _, thread = next(iter(waiting))
            raise SourceError(
                f"The copy cannot begin: the transaction of the connection {thread} is open.",
                hint=f"End it with KILL {thread}, or set gtid_mode to ON: then nothing has to "
                "wait.",
            )
        raise_if_cancelled()
        time.sleep(_PAUSE_SECONDS)
        waiting &= set(execute(connection, query))
