"""A PostgreSQL database as a source: an initial copy of each table, then every change from the log.

Source: `specs/postgres-facts.md`. One slot serves all streams of a pipeline. Each
stream has its own offset in the log. The slot is advanced to the least of them.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import filterfalse
from typing import TYPE_CHECKING, Final, Self
from uuid import uuid4

import structlog

from chronolake.config.pipelines import PostgresMethod, PostgresSource
from chronolake.errors import SourceError
from chronolake.failpoints import reach
from chronolake.landing import landed_micros
from chronolake.source.postgres import catalog
from chronolake.source.postgres.catalog import identity_problems
from chronolake.source.postgres.check import Checkup
from chronolake.source.postgres.connection import connect, translate_errors
from chronolake.source.postgres.encoding import Undecodable, codec_of, convert_characters
from chronolake.source.postgres.initial_copy import copy_table
from chronolake.source.postgres.offset import LogOffset
from chronolake.source.postgres.pgoutput import Decoder
from chronolake.source.postgres.replication_stream import LogStream, open_stream
from chronolake.source.postgres.selection import TableSelection
from chronolake.source.postgres.slot import (
    Evidence,
    ReadEnd,
    Slot,
    advance,
    bytes_before,
    confirmed_lsn,
    durable_lsn,
    emit_evidence,
    format_lsn,
    is_in_database,
    lag,
    recovery_steps,
    slot_of,
)
from chronolake.source.postgres.snapshot import oldest_transaction, request_snapshot
from chronolake.source.postgres.snapshot_source import read_snapshots
from chronolake.source.postgres.table_replication import TableReplication
from chronolake.source.protocol import (
    CaptureMethod,
    CaughtUp,
    ChangeBatch,
    CheckResult,
    Lag,
    Level,
    Snapshot,
    StreamDescriptor,
    StreamFailure,
    spool_folder,
)
from chronolake.source.relational.single_rows import not_followed_failure
from chronolake.source.relational.spool_folders import create_spool

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Generator,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )
    from pathlib import Path

    import psycopg

    from chronolake.config import Project
    from chronolake.lake import Lake
    from chronolake.source.postgres.catalog import IdentityProblem, PublishedTable, SourceTable
    from chronolake.source.postgres.snapshot import DatabaseSnapshot, SnapshotRequest
    from chronolake.source.postgres.table_replication import Invalid
    from chronolake.source.protocol import (
        DescribedStream,
        Offset,
        ReadProgress,
        TokenStore,
        Where,
    )

log = structlog.get_logger(__name__)

#: The name under which the token store records the slot that was created for this lake.
_SLOT_RECORD: Final = "slot"
_UNKNOWN_SLOT: Final = (
    "this lake has no offset in it: another pipeline or project may read it, and each "
    "would miss the changes that the other has read"
)
_OWN_SLOT: Final = (
    "If so, give this pipeline its own slot: `slot: …` below `source` in chronolake.yml. "
    "The first sync ends this warning."
)
_PATIENCE_SECONDS: Final = 10.0
#: Evidence is written (`slot.emit_evidence`) if the log extends this far beyond a stream's last
#: offset.
_WITHOUT_EVIDENCE_BYTES: Final = 64 * 2**10
#: If evidence cannot be written, this much log is retained for what was read last.
_KEPT_BYTES: Final = 16 * 2**20
#: Wait this long for a snapshot first: it is available sooner if no transaction has to end.
_AT_ONCE_SECONDS: Final = 2.0
#: Timeout for connections to the servers of other pipelines.
_OTHER_SECONDS: Final = 3
#: Interval of reading the log for other tables while some tables wait for a snapshot.
_ROUND_SECONDS: Final = 10.0


@dataclass
class PostgresDatabase:
    """The tables of a database, by logical replication."""

    project: Project
    pipeline: str
    config: PostgresSource
    _advanced_lsn: int = field(default=0, repr=False)
    _tokens: TokenStore | None = field(default=None, repr=False)
    _stream: LogStream | None = field(default=None, repr=False)

    @property
    def slot(self) -> Slot:
        """Return the slot, and the publication that is read through it."""
        return slot_of(self.config, self.pipeline)

    @cached_property
    def _selection(self) -> TableSelection:
        return TableSelection(self.project, self.pipeline, self.config)

    def discover(self) -> list[StreamDescriptor]:
        """Return the selected tables. A missing table fails on its own."""
        return self._selection.discover(CaptureMethod.EVERY_CHANGE)

    def read(
        self, lake: Lake, positions: Mapping[str, Offset | None], *, full_refresh: bool
    ) -> Iterator[ChangeBatch | Snapshot | ReadProgress | CaughtUp | StreamFailure]:
        """Read the log of tables that were copied, then copy the others.

        Tables whose rows cannot be identified in the log are read completely in each run.
        """
        yield from self._read(lake, positions, full_refresh=full_refresh)

    def read_where(
        self, lake: Lake, stream: str, position: Offset, where: Where
    ) -> Iterator[ChangeBatch | Snapshot | ReadProgress | CaughtUp | StreamFailure]:
        """Read the log of a table up to a snapshot, and the matching rows in this snapshot."""
        yield from self._read(lake, {stream: position}, full_refresh=True, where=where)

    def _read(
        self,
        lake: Lake,
        positions: Mapping[str, Offset | None],
        *,
        full_refresh: bool,
        where: Where | None = None,
    ) -> Iterator[ChangeBatch | Snapshot | ReadProgress | CaughtUp | StreamFailure]:
        with connect(self.config.dsn) as connection:
            state = _State.of(connection, self.slot, self._selection.tables.values())
            self._check_slot_owner(connection, positions)
            state = self._write_evidence(connection, state, positions)
        # Read the catalog again: the log up to its end can only be understood with a later catalog.
        selection = TableSelection(self.project, self.pipeline, self.config)
        unfollowed = selection.without_log_key
        selection.remove_fingerprints(keep=unfollowed)
        in_log = {name: stored for name, stored in positions.items() if name not in unfollowed}
        followed: list[TableReplication] = []
        missing: list[TableReplication] = []
        with create_spool(spool_folder(self.project, self.pipeline)) as folder:
            for name, stored in in_log.items():
                try:
                    table = self._require_published(selection.table(name), state)
                except SourceError as failure:
                    if stored is not None:
                        # Changes made until the problem is fixed are not in the log.
                        position = replace(LogOffset.from_json(stored), has_unlogged=True)
                        yield ChangeBatch(name, None, (), position.as_json())
                    yield StreamFailure(name, failure)
                    continue
                replication = TableReplication(
                    table,
                    state.offset(table, stored),
                    folder / uuid4().hex,
                    state.domains,
                    self._selection.tables.get(name),
                    state.upto,
                )
                has_landed = stored is not None and replication.position.is_in_log
                problem = self._gap_error(replication, state) if has_landed else None
                if problem is not None and not full_refresh:
                    yield StreamFailure(name, problem)
                elif not has_landed or problem is not None or not replication.position.is_of(table):
                    missing.append(replication)
                else:
                    followed.append(replication)
            yield from self._read_log(lake, followed, state, full_refresh=full_refresh)
            lost = list(filter(_is_lost, followed))
            followed = list(filterfalse(_is_lost, followed))
            missing += lost if full_refresh else []
            yield from () if full_refresh else map(self._other_log_failure, lost)
            to_reread = [
                replication
                for replication in followed
                if full_refresh or (replication.invalid is None and self._must_reread(replication))
            ]
            if to_reread or missing:
                with request_snapshot(self.config.dsn) as request:
                    snapshot = yield from self._wait_for_snapshot(
                        lake, request, followed, to_reread, state
                    )
                    if snapshot is None:
                        yield from self._timeout_failures([*to_reread, *missing])
                    else:
                        at_snapshot = replace(state, upto=snapshot.lsn)
                        yield from self._read_log(
                            lake, to_reread, at_snapshot, full_refresh=full_refresh
                        )
                        readable = [
                            replication
                            for replication in to_reread
                            if full_refresh or replication.invalid is None
                        ]
                        copy = partial(
                            self._copy_table, lake, snapshot, server=state.server, where=where
                        )
                        yield from _copied(copy, readable, missing, where)
        if without_log := {
            name: stored for name, stored in positions.items() if name in unfollowed
        }:
            yield from read_snapshots(
                lake, selection, without_log, where=where, publication=self.slot.publication
            )

    def _must_reread(self, replication: TableReplication) -> bool:
        reason = replication.position.reread_reason(replication.table)
        if reason is not None:
            stream = replication.table.stream
            log.info("table_read_again", pipeline=self.pipeline, stream=stream, reason=reason)
        return reason is not None

    def describe_streams(self, names: Collection[str]) -> Iterator[DescribedStream | StreamFailure]:
        """Return the columns of tables from the catalog."""
        yield from self._selection.describe_streams(names)

    def use_token_store(self, store: TokenStore) -> None:
        """Set the token store, which records the slot that was created for this lake."""
        self._tokens = store

    def check(
        self, *, create: bool, positions: Mapping[str, Offset] | None = None
    ) -> list[CheckResult]:
        """Return the problems of the database, and the statements that created missing objects."""
        with connect(self.config.dsn) as connection:
            tables = list(self._selection.tables.values())
            checkup = Checkup(self.config.dsn, connection, self.slot, tables)
            # A slot of that name belongs to the other pipeline.
            shared = self._shared_slot_error(connection)
            statements = checkup.create() if create and shared is None else []
            if checkup.has_created_slot:
                self._record_slot(connection)
            created = [CheckResult("created", Level.OK, statement) for statement in statements]
            results = [*created, *checkup.check()]
            if shared is not None:
                subject = f"slot {self.slot.name}"
                results.append(CheckResult(subject, Level.FAILED, shared.message, shared.hint))
            is_readable = not any(
                result.level is Level.FAILED and result.what == f"slot {self.slot.name}"
                for result in results
            )
            if positions is not None and is_readable and is_in_database(connection, self.slot):
                results += self._check_sharing(connection, positions)
            return results

    def _shared_slot_error(self, connection: psycopg.Connection) -> SourceError | None:
        """Return an error if another pipeline of the project reads the slot.

        Different addresses may lead to one server. A server that does not respond is skipped.
        """
        process = None
        for name, other in self.project.pipelines.items():
            source = other.source
            if (
                name == self.pipeline
                or not isinstance(source, PostgresSource)
                or source.method is not PostgresMethod.LOGICAL_REPLICATION
                or source.slot_for(name) != self.slot.name
            ):
                continue
            process = process or catalog.process_of(connection)
            try:
                with connect(source.dsn, patience=_OTHER_SECONDS) as other_connection:
                    is_same = catalog.process_of(other_connection) == process
            except SourceError:
                continue
            if is_same:
                return SourceError(
                    f"The pipelines {self.pipeline} and {name} use the same replication "
                    f"slot, {self.slot.name}: their addresses lead to the same server. "
                    "Each would miss the changes that the other has read.",
                    hint="Give one of them another slot in chronolake.yml: `slot: …` below "
                    "`source`.",
                )
        return None

    def _record_slot(self, connection: psycopg.Connection) -> None:
        """Record that the slot was created for this lake, so that no other pipeline reads it."""
        server = catalog.server_of(connection)
        if self._tokens is not None:
            self._tokens.renew(_SLOT_RECORD, lambda _: {"slot": self.slot.name, "server": server})

    def _is_slot_known(self, connection: psycopg.Connection) -> bool:
        """Return whether the slot was created for this lake."""
        token = self._tokens.load_token(_SLOT_RECORD) if self._tokens is not None else None
        return token == {"slot": self.slot.name, "server": catalog.server_of(connection)}

    def _check_slot_owner(
        self, connection: psycopg.Connection, positions: Mapping[str, Offset | None]
    ) -> None:
        """Log a warning before the first run of a lake if other pipelines may read its slot.

        Raises:
            SourceError: another pipeline of the project reads the slot.
        """
        if (shared := self._shared_slot_error(connection)) is not None:
            raise shared
        is_first = not any(positions.values()) and self._selection.tables.keys() <= positions.keys()
        if is_first and not self._is_slot_known(connection):
            log.warning(
                "slot_has_no_position",
                pipeline=self.pipeline,
                slot=self.slot.name,
                reason=_UNKNOWN_SLOT,
                hint=_OWN_SLOT,
            )

    def _check_sharing(
        self, connection: psycopg.Connection, positions: Mapping[str, Offset]
    ) -> Iterator[CheckResult]:
        """Return a result if other pipelines may read this pipeline's slot, or have advanced it."""
        subject = f"slot {self.slot.name}"
        server = catalog.server_of(connection)
        offsets = {name: LogOffset.from_json(stored) for name, stored in positions.items()}
        in_log = {name: position for name, position in offsets.items() if position.is_in_log}
        if not in_log:
            if not self._is_slot_known(connection):
                yield CheckResult(subject, Level.WARNING, f"exists, but {_UNKNOWN_SLOT}", _OWN_SLOT)
            return
        begins = confirmed_lsn(connection, self.slot)
        lost = [
            name
            for name, position in in_log.items()
            if name in self._selection.tables
            and position.server == server
            and position.required_lsn < begins
        ]
        if lost:
            yield CheckResult(
                subject,
                Level.FAILED,
                f"begins after the offset of {', '.join(lost)}: the changes in between "
                "are lost. The slot was recreated or advanced; another pipeline may read "
                "it",
                f"Run `chronolake resync {self.pipeline}` to read the current rows.",
            )

    def lag(self) -> Lag:
        """Return how much of the log is still to be read, and how much the slot retains."""
        with connect(self.config.dsn) as connection:
            return lag(connection, self.slot)

    def acknowledge(self, positions: Mapping[str, Offset]) -> None:
        """Advance the slot to the offset that all streams have reached."""
        stored = (positions[name] for name in self._selection.tables if name in positions)
        offsets = [offset for offset in map(LogOffset.from_json, stored) if offset.is_in_log]
        upto = min((position.required_lsn for position in offsets), default=0)
        if upto <= self._advanced_lsn:
            return
        with connect(self.config.dsn) as connection:
            server = catalog.server_of(connection)
            # An LSN is meaningless in another server's log, and one beyond the end would discard
            # everything.
            is_here = all(position.server == server for position in offsets)
            if not is_here or upto > durable_lsn(connection):
                return
            if self._stream is None:
                advance(connection, self.slot, upto=upto)
            elif self._stream.may_confirm and upto > confirmed_lsn(connection, self.slot):
                self._stream.confirm(upto)
            else:
                return
            self._advanced_lsn = upto

    def _wait_for_snapshot(
        self,
        lake: Lake,
        request: SnapshotRequest,
        followed: Sequence[TableReplication],
        to_reread: Sequence[TableReplication],
        state: _State,
    ) -> Generator[
        ChangeBatch | Snapshot | CaughtUp | StreamFailure, None, DatabaseSnapshot | None
    ]:
        """Wait for a snapshot. Until it exists, read the log for tables that do not need one.

        Returns:
            The snapshot, or None if open transactions did not end in time.
        """
        timeout = self.config.snapshot_timeout
        snapshot = request.wait(min(_AT_ONCE_SECONDS, timeout))
        if snapshot is not None:
            return self._add_evidence(snapshot)
        for replication in followed:
            yield CaughtUp(replication.table.stream)
        waiting = {replication.table.oid for replication in to_reread}
        others = [replication for replication in followed if replication.table.oid not in waiting]
        while (seconds_left := timeout - request.seconds) > 0:
            snapshot = request.wait(min(_ROUND_SECONDS, seconds_left))
            if snapshot is not None:
                break
            others = [replication for replication in others if replication.invalid is None]
            with connect(self.config.dsn) as connection:
                current = replace(state, upto=durable_lsn(connection))
            changed = set()
            for batch in self._read_log(lake, others, current, full_refresh=False):
                if not isinstance(batch, ChangeBatch) or batch.versions is not None:
                    changed.add(batch.stream)
                yield batch
            for name in sorted(changed):
                yield CaughtUp(name)
        request.cancel()
        snapshot = snapshot or request.wait(0)
        return None if snapshot is None else self._add_evidence(snapshot)

    def _add_evidence(self, snapshot: DatabaseSnapshot) -> DatabaseSnapshot:
        """Add evidence to a snapshot, and wait until the changes before it are durable."""
        self._await_written(snapshot.lsn)
        with connect(self.config.dsn) as connection:
            # This evidence is written after the snapshot: a log that contains it contains
            # everything before.
            evidence = emit_evidence(connection)
        return replace(snapshot, evidence=evidence or bytes_before(self.config.dsn, snapshot.lsn))

    def _timeout_failures(self, waiting: Iterable[TableReplication]) -> Iterator[StreamFailure]:
        """Fail the tables that wait for a snapshot, with the transaction that blocks it."""
        oldest = oldest_transaction(self.config.dsn)
        for replication in waiting:
            failure = SourceError(
                f"The copy of the table {replication.table.stream} could not begin within "
                f"{self.config.snapshot_timeout} s: {oldest.reason}.",
                hint=f"{oldest.hint}. The next run tries again; `snapshot_timeout` sets how "
                "long it waits.",
            )
            yield StreamFailure(replication.table.stream, failure)

    def _copy_table(
        self,
        lake: Lake,
        snapshot: DatabaseSnapshot,
        replication: TableReplication,
        *,
        server: int,
        where: Where | None,
    ) -> Iterator[Snapshot | StreamFailure]:
        """Copy a table or some rows, at a time that is not earlier than its landed versions."""
        try:
            landed = landed_micros(self._selection.landing_folder(replication.table.stream))
        except SourceError as failure:
            yield StreamFailure(replication.table.stream, failure)
            return
        position = replication.position.not_before(landed)
        yield from copy_table(
            lake.spark,
            self.config.dsn,
            snapshot,
            replication.table,
            position,
            server=server,
            where=where,
            publication=self.slot.publication,
        )

    def _write_evidence(
        self,
        connection: psycopg.Connection,
        state: _State,
        positions: Mapping[str, Offset | None],
    ) -> _State:
        """Write evidence to the log if streams lack it, or cannot advance without it.

        If nothing in the publication changes, the log of other tables would be retained forever.
        Streams then advance to a message that is written here. Nothing is written to an idle
        server.
        """
        stored = (position for position in positions.values() if position is not None)
        offsets = [offset for offset in map(LogOffset.from_json, stored) if offset.is_in_log]
        if all(
            offset.evidence is not None and state.upto - offset.lsn < _WITHOUT_EVIDENCE_BYTES
            for offset in offsets
        ):
            return state
        can_write_evidence = emit_evidence(connection) is not None
        return replace(state, upto=durable_lsn(connection), can_write_evidence=can_write_evidence)

    def _read_log(
        self,
        lake: Lake,
        replications: Sequence[TableReplication],
        state: _State,
        *,
        full_refresh: bool,
    ) -> Iterator[ChangeBatch | Snapshot | StreamFailure]:
        """Read the log of tables up to an LSN.

        Streams whose evidence is missing in the log are marked as lost, and nothing of them is
        returned. A table with a change that cannot be read fails, unless it is fully refreshed
        anyway.

        Args:
            lake: the lake whose Spark session does the work.
            replications: the tables.
            state: the state of the database.
            full_refresh: whether the tables are fully refreshed in any case.
        """
        if not replications:
            return
        self._recognize(replications)
        lsn, evidence = 0, None
        begin_lsn = min(replication.position.required_lsn for replication in replications)
        folder = replications[0].folder.parent / uuid4().hex
        with self._open_stream(begin_lsn, state.upto, folder) as stream:
            decoder = Decoder(codec=codec_of(stream.connection, self._convert_characters))
            for batch in stream.batches():
                decoded = decoder.decode(batch)
                reach("read.log-batch")
                for replication in replications:
                    replication.add(decoded)
                if decoded.ended is None:
                    continue
                lsn, evidence = decoded.ended.end_lsn, Evidence.of(decoded.ended.transaction)
                due = [
                    replication
                    for replication in replications
                    if decoder.is_between_transactions and replication.is_due
                ]
                for replication in due:
                    yield from replication.read(lake, ReadEnd(lsn, evidence, upto=lsn))
        if not state.can_write_evidence and state.upto - lsn >= _KEPT_BYTES:
            # The server must not retain its log forever.
            lsn, evidence = state.upto, bytes_before(self.config.dsn, state.upto)
        for replication in replications:
            replication.is_lost = not replication.is_recognized
            if replication.is_recognized:
                yield from self._read_changes(
                    lake,
                    replication,
                    ReadEnd(lsn, evidence, upto=state.upto),
                    full_refresh=full_refresh,
                )

    def _recognize(self, replications: Sequence[TableReplication]) -> None:
        """Compare the server's log with the bytes that offsets store as evidence."""
        known: dict[Evidence, bool] = {}
        for replication in replications:
            evidence = replication.position.evidence
            if replication.is_recognized or evidence is None or not evidence.is_bytes:
                continue
            if evidence not in known:
                known[evidence] = evidence.is_on_server(self.config.dsn)
            replication.is_recognized = known[evidence]
            replication.is_lost = not replication.is_recognized

    def _read_changes(
        self, lake: Lake, replication: TableReplication, end: ReadEnd, *, full_refresh: bool
    ) -> Iterator[ChangeBatch | Snapshot | StreamFailure]:
        yield from replication.read(lake, end)
        if replication.invalid is not None and not full_refresh:
            yield StreamFailure(
                replication.table.stream,
                self._decoding_error(replication.table.stream, replication.invalid),
            )

    def _convert_characters(self, characters: Sequence[bytes]) -> Mapping[bytes, bytes | None]:
        """Convert characters with the server while its log is read."""
        with connect(self.config.dsn) as connection, translate_errors():
            return convert_characters(connection, characters)

    @contextmanager
    def _open_stream(self, begins: int, upto: int, folder: Path) -> Iterator[LogStream]:
        """Read the slot. While it is read, it is advanced through the same connection."""
        with open_stream(
            self.config.dsn,
            self.slot,
            begins=begins,
            upto=upto,
            folder=folder,
            is_encrypted=any(table.texts.rules for table in self._selection.tables.values()),
        ) as stream:
            self._stream = stream
            try:
                yield stream
            finally:
                self._stream = None

    def _await_written(self, lsn: int) -> None:
        """Wait until the log is durable up to an LSN: some commits do not wait for that."""
        patience = time.monotonic() + _PATIENCE_SECONDS
        with connect(self.config.dsn) as connection:
            while durable_lsn(connection) < lsn:
                if time.monotonic() > patience:
                    raise SourceError(
                        f"The server did not make its log durable within {_PATIENCE_SECONDS:g} s.",
                        hint="Check the server's disk, and run it again.",
                    )
                time.sleep(0.05)

    def _decoding_error(self, name: str, invalid: Invalid) -> SourceError:
        """Return an error about a change in the log that cannot be decoded, with the remedy."""
        transaction = invalid.transaction
        at = datetime.fromtimestamp(transaction.commit_micros / 1e6, UTC)
        location = (
            f"in transaction {transaction.xid}, committed at {at:%Y-%m-%d %H:%M:%S}Z, LSN "
            f"{format_lsn(transaction.commit_lsn)}."
        )
        resync = f"run `chronolake resync {self.pipeline} --stream {name}` to read the current rows"
        if isinstance(invalid.column, Undecodable):
            return SourceError(
                f"The table {name} had a column whose name, {invalid.column}, is not valid in its "
                f"database's encoding: {location}",
                hint=f"Rename the column if it still has that name. Then {resync}.",
            )
        return SourceError(
            f"A change of {name} has text in the column {invalid.column} that is not "
            f"valid in its database's encoding, or has no equivalent in UTF-8: {location}",
            hint=f"Correct the row in the database. Then {resync}; the error of a row that is "
            "still not valid contains its ctid.",
        )

    def _require_published(self, table: SourceTable, state: _State) -> SourceTable:
        """Return a table whose changes the log contains completely.

        Raises:
            SourceError: changes of the table are missing in the log.
        """
        name = table.stream
        publication = self.slot.publication
        problem = state.problems.get(table.oid)
        if problem is not None:
            raise SourceError(
                f"The table {name} cannot be read from the log: {problem.message}.",
                hint=problem.fix,
            )
        resync = f"`chronolake resync {self.pipeline} --stream {name}`"
        published = state.published.get(table.oid)
        if published is None:
            raise SourceError(
                f"The table {name} is not in the publication {publication}.",
                hint="Run `chronolake check --create` to add it.",
            )
        if table.lacks_generated(published):
            raise SourceError(
                f"The publication {publication} does not contain the generated columns of {name}.",
                hint="Run `chronolake check` to see how to fix it.",
            )
        if missing := table.unpublished_columns(published):
            names = ", ".join(missing)
            raise SourceError(
                f"The publication {publication} contains the table {name} without {names}.",
                hint=f"Exclude them in chronolake.yml: columns: {{exclude: [{names}]}}. Or publish "
                f"the table without a column list, and then run {resync}.",
            )
        return table

    def _gap_error(self, replication: TableReplication, state: _State) -> SourceError | None:
        """Return an error if the log does not continue at a stream's offset, or None."""
        name, position = replication.table.stream, replication.position
        if position.server != state.server or position.lsn > state.upto:
            message = f"The offset of the stream {name} is not in this server's log."
            reason = "The database was restored, or is a different one."
        elif position.required_lsn < state.begins:
            message = (
                f"The slot {self.slot.name} begins after the offset of {name}: the "
                "changes in between are lost."
            )
            reason = "The slot was recreated or advanced."
        else:
            return None
        return SourceError(
            message,
            hint=f"{reason} Run {self._resync_command(replication)} to read the current rows.",
        )

    def _other_log_failure(self, replication: TableReplication) -> StreamFailure:
        """Return the failure of a stream whose offset is in another server's log."""
        name, evidence = replication.table.stream, replication.position.evidence
        location = "" if evidence is None else f" at {format_lsn(evidence.lsn)}"
        error = SourceError(
            f"The server's log is not the one that {name} was read from: what was "
            f"read{location} is no longer in it.",
            hint="The server was restored from an older state, or a standby that lagged "
            "behind was promoted: rows in the lake may differ from the table's. No "
            f"changes of the new log were applied. Run {self._resync_command(replication)} to "
            "compare the table with the lake and read the current rows.",
        )
        return StreamFailure(name, error)

    def _resync_command(self, replication: TableReplication) -> str:
        return f"`chronolake resync {self.pipeline} --stream {replication.table.stream}`"


def _is_lost(replication: TableReplication) -> bool:
    return replication.is_lost


@dataclass(frozen=True)
class _State:
    """The state of a database at the start of a run.

    Attributes:
        begins: the LSN where the slot begins.
        upto: the LSN up to which the log is durable.
        server: the database's identifier (`catalog.server_of`).
        domains: the oid and modifier of each domain's base type, by the domain's oid.
        published: the contents of the publication, by table oid.
        problems: problems with replica identities, by table oid.
        can_write_evidence: False if the server refused to write evidence to its log.
    """

    begins: int
    upto: int
    server: int
    domains: Mapping[int, tuple[int, int]]
    published: Mapping[int, PublishedTable]
    problems: Mapping[int, IdentityProblem]
    can_write_evidence: bool = True

    @classmethod
    def of(cls, connection: psycopg.Connection, slot: Slot, tables: Iterable[SourceTable]) -> Self:
        """Read the state of a database.

        Args:
            connection: a connection to it.
            slot: the slot and the publication to read.
            tables: the selected tables.

        Raises:
            SourceError: the slot or the publication is missing, or not usable.
        """
        publishes_all = catalog.publishes_all(connection, slot.publication)
        if publishes_all is None:
            raise SourceError(
                f"The publication {slot.publication} does not exist.", hint=recovery_steps(slot)
            )
        if not publishes_all:
            raise SourceError(
                f"The publication {slot.publication} does not publish all operations, or "
                "does not publish partitions via their root table.",
                hint="Run `chronolake check --create` to fix it, and then `chronolake resync` "
                "to read the current rows: changes that were not published are not in "
                "the log.",
            )
        return cls(
            confirmed_lsn(connection, slot),
            durable_lsn(connection),
            catalog.server_of(connection),
            catalog.domains_of(connection),
            catalog.published_tables(connection, slot.publication),
            identity_problems(connection, tables),
        )

    def offset(self, table: SourceTable, stored: Offset | None) -> LogOffset:
        """Return a stream's offset: the one of its checkpoint, or the start of the log."""
        published = self.published[table.oid]
        if stored is None:
            return LogOffset.initial(
                table, lsn=self.begins, published=published, server=self.server
            )
        current = LogOffset.from_json(stored)
        is_gapless = current.published == published.since and current.publication in {
            None,
            published.version,
        }
        return replace(
            current,
            published=published.since,
            publication=published.version,
            has_unlogged=current.has_unlogged or not is_gapless,
        )


def _copied(
    copy: Callable[[TableReplication], Iterator[Snapshot | StreamFailure]],
    followed: Sequence[TableReplication],
    missing: Sequence[TableReplication],
    where: Where | None,
) -> Iterator[Snapshot | StreamFailure]:
    """Copy tables, or some rows of those that are followed in the log."""
    if where is not None:
        for replication in missing:
            yield not_followed_failure(replication.table.stream)
        missing = ()
    for replication in (*followed, *missing):
        yield from copy(replication)
