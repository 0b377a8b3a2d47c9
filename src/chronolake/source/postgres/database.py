"""A PostgreSQL database as a source: an initial copy of each table, then every change from the log.

Source: `specs/postgres-facts.md`. One replication slot serves all streams of a pipeline. Each
stream has its own offset in the log. The slot is advanced to the least of them.
"""

from __future__ import annotations

import shutil
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
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

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    import psycopg

    from chronolake.config import Project
    from chronolake.lake import Lake
    from chronolake.source.postgres.catalog import IdentityProblem, Published, SourceTable
    from chronolake.source.postgres.snapshot import DatabaseSnapshot, SnapshotRequest
    from chronolake.source.postgres.table_replication import Invalid
    from chronolake.source.protocol import DescribedStream, Offset, ReadProgress, TokenStore

log = structlog.get_logger(__name__)

#: The name under which the token store records the slot that was created for this lake.
_SLOT_MADE: Final = "slot"
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
_UNPROVED_BYTES: Final = 64 * 2**10
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
    _advanced: int = field(default=0, repr=False)
    _memory: TokenStore | None = field(default=None, repr=False)
    _stream: LogStream | None = field(default=None, repr=False)

    @property
    def slot(self) -> Slot:
        """Return the slot, and the publication that is read through it."""
        return slot_of(self.config, self.pipeline)

    @cached_property
    def _wanted(self) -> TableSelection:
        return TableSelection(self.project, self.pipeline, self.config)

    def discover(self) -> list[StreamDescriptor]:
        """Return the selected tables. A missing table fails on its own."""
        return self._wanted.discover(CaptureMethod.EVERY_CHANGE)

    def read(
        self, lake: Lake, positions: Mapping[str, Offset | None], *, full_refresh: bool
    ) -> Iterator[ChangeBatch | Snapshot | ReadProgress | CaughtUp | StreamFailure]:
        """Read the log of tables that were copied, then copy the others.

        Tables whose rows cannot be identified in the log are read completely in each run.
        """
        with connect(self.config.dsn) as connection:
            state = _State.of(connection, self.slot, self._wanted.there.values())
            self._expect_own_slot(connection, positions)
            state = self._proved(connection, state, positions)
        # Read the catalog again: the log up to its end can only be understood with a later catalog.
        wanted = TableSelection(self.project, self.pipeline, self.config)
        unfollowed = wanted.without_log_key
        wanted.remove_fingerprints(but=unfollowed)
        in_log = {name: reported for name, reported in positions.items() if name not in unfollowed}
        followed: list[TableReplication] = []
        missing: list[TableReplication] = []
        with _spooling(spool_folder(self.project, self.pipeline)) as folder:
            for name, reported in in_log.items():
                try:
                    table = self._published(wanted.table(name), state)
                except SourceError as failure:
                    if reported is not None:
                        # Changes made until the problem is fixed are not in the log.
                        position = replace(LogOffset.from_json(reported), has_unlogged=True)
                        yield ChangeBatch(name, None, (), position.as_json())
                    yield StreamFailure(name, failure)
                    continue
                one = TableReplication(
                    table,
                    state.position(table, reported),
                    folder / uuid4().hex,
                    state.domains,
                    self._wanted.there.get(name),
                    state.upto,
                )
                is_there = reported is not None and one.position.is_in_log
                problem = self._gap(one, state) if is_there else None
                if problem is not None and not full_refresh:
                    yield StreamFailure(name, problem)
                elif not is_there or problem is not None or not one.position.is_of(table):
                    missing.append(one)
                else:
                    followed.append(one)
            yield from self._follow(lake, followed, state, full_refresh=full_refresh)
            lost = list(filter(_is_lost, followed))
            followed = list(filterfalse(_is_lost, followed))
            missing += lost if full_refresh else []
            yield from () if full_refresh else map(self._of_other_log, lost)
            again = [
                one
                for one in followed
                if full_refresh or (one.invalid is None and self._reads_again(one))
            ]
            if again or missing:
                with request_snapshot(self.config.dsn) as request:
                    snapshot = yield from self._awaited(lake, request, followed, again, state)
                    if snapshot is None:
                        yield from self._late([*again, *missing])
                    else:
                        at = replace(state, upto=snapshot.lsn)
                        yield from self._follow(lake, again, at, full_refresh=full_refresh)
                        readable = (one for one in again if full_refresh or one.invalid is None)
                        for one in (*readable, *missing):
                            yield from self._copied(lake, snapshot, one, state.server)
        if whole := {name: reported for name, reported in positions.items() if name in unfollowed}:
            yield from read_snapshots(lake, wanted, whole)

    def _reads_again(self, one: TableReplication) -> bool:
        reason = one.position.reread_reason(one.table)
        if reason is not None:
            stream = one.table.stream
            log.info("table_read_again", pipeline=self.pipeline, stream=stream, reason=reason)
        return reason is not None

    def describe_streams(self, names: Collection[str]) -> Iterator[DescribedStream | StreamFailure]:
        """Return the columns of tables from the catalog."""
        yield from self._wanted.describe_streams(names)

    def use_token_store(self, memory: TokenStore) -> None:
        """Set the token store, which records the slot that was created for this lake."""
        self._memory = memory

    def check(
        self, *, create: bool, positions: Mapping[str, Offset] | None = None
    ) -> list[CheckResult]:
        """Return the problems of the database, and the statements that created missing objects."""
        with connect(self.config.dsn) as connection:
            tables = list(self._wanted.there.values())
            checkup = Checkup(self.config.dsn, connection, self.slot, tables)
            # A slot of that name belongs to the other pipeline.
            shared = self._other_reader(connection)
            made = checkup.create() if create and shared is None else []
            if checkup.has_created_slot:
                self._note_slot(connection)
            reported = [CheckResult("created", Level.OK, statement) for statement in made]
            found = [*reported, *checkup.check()]
            if shared is not None:
                what = f"slot {self.slot.name}"
                found.append(CheckResult(what, Level.FAILED, shared.message, shared.hint))
            is_readable = not any(
                one.level is Level.FAILED and one.what == f"slot {self.slot.name}" for one in found
            )
            if positions is not None and is_readable and is_in_database(connection, self.slot):
                found += self._sharing(connection, positions)
            return found

    def _other_reader(self, connection: psycopg.Connection) -> SourceError | None:
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
                with connect(source.dsn, patience=_OTHER_SECONDS) as theirs:
                    is_same = catalog.process_of(theirs) == process
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

    def _note_slot(self, connection: psycopg.Connection) -> None:
        """Record that the slot was created for this lake, so that no other pipeline reads it."""
        server = catalog.server_of(connection)
        if self._memory is not None:
            self._memory.renew(_SLOT_MADE, lambda _: {"slot": self.slot.name, "server": server})

    def _is_slot_known(self, connection: psycopg.Connection) -> bool:
        """Return whether the slot was created for this lake."""
        made = self._memory.load_token(_SLOT_MADE) if self._memory is not None else None
        return made == {"slot": self.slot.name, "server": catalog.server_of(connection)}

    def _expect_own_slot(
        self, connection: psycopg.Connection, positions: Mapping[str, Offset | None]
    ) -> None:
        """Log a warning before the first run of a lake if other pipelines may read its slot.

        Raises:
            SourceError: another pipeline of the project reads the slot.
        """
        if (shared := self._other_reader(connection)) is not None:
            raise shared
        is_first = not any(positions.values()) and self._wanted.there.keys() <= positions.keys()
        if is_first and not self._is_slot_known(connection):
            log.warning(
                "slot_has_no_position",
                pipeline=self.pipeline,
                slot=self.slot.name,
                reason=_UNKNOWN_SLOT,
                hint=_OWN_SLOT,
            )

    def _sharing(
        self, connection: psycopg.Connection, positions: Mapping[str, Offset]
    ) -> Iterator[CheckResult]:
        """Return a result if other pipelines may read this pipeline's slot, or have advanced it."""
        what = f"slot {self.slot.name}"
        server = catalog.server_of(connection)
        mine = {name: LogOffset.from_json(reported) for name, reported in positions.items()}
        in_log = {name: one for name, one in mine.items() if one.is_in_log}
        if not in_log:
            if not self._is_slot_known(connection):
                yield CheckResult(what, Level.WARNING, f"exists, but {_UNKNOWN_SLOT}", _OWN_SLOT)
            return
        begins = confirmed_lsn(connection, self.slot)
        lost = [
            name
            for name, one in in_log.items()
            if name in self._wanted.there and one.server == server and one.required_lsn < begins
        ]
        if lost:
            yield CheckResult(
                what,
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
        reported = (positions[name] for name in self._wanted.there if name in positions)
        mine = [one for one in map(LogOffset.from_json, reported) if one.is_in_log]
        upto = min((position.required_lsn for position in mine), default=0)
        if upto <= self._advanced:
            return
        with connect(self.config.dsn) as connection:
            server = catalog.server_of(connection)
            # An LSN is meaningless in another server's log, and one beyond the end would discard
            # everything.
            is_here = all(position.server == server for position in mine)
            if not is_here or upto > durable_lsn(connection):
                return
            if self._stream is None:
                advance(connection, self.slot, upto=upto)
            elif self._stream.may_confirm and upto > confirmed_lsn(connection, self.slot):
                self._stream.confirm(upto)
            else:
                return
            self._advanced = upto

    def _awaited(
        self,
        lake: Lake,
        request: SnapshotRequest,
        followed: Sequence[TableReplication],
        again: Sequence[TableReplication],
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
            return self._proved_snapshot(snapshot)
        for one in followed:
            yield CaughtUp(one.table.stream)
        waiting = {one.table.oid for one in again}
        others = [one for one in followed if one.table.oid not in waiting]
        while (left := timeout - request.seconds) > 0:
            snapshot = request.wait(min(_ROUND_SECONDS, left))
            if snapshot is not None:
                break
            others = [other for other in others if other.invalid is None]
            with connect(self.config.dsn) as connection:
                now = replace(state, upto=durable_lsn(connection))
            moved = set()
            for brought in self._follow(lake, others, now, full_refresh=False):
                if not isinstance(brought, ChangeBatch) or brought.versions is not None:
                    moved.add(brought.stream)
                yield brought
            for name in sorted(moved):
                yield CaughtUp(name)
        request.cancel()
        snapshot = snapshot or request.wait(0)
        return None if snapshot is None else self._proved_snapshot(snapshot)

    def _proved_snapshot(self, snapshot: DatabaseSnapshot) -> DatabaseSnapshot:
        """Add evidence to a snapshot, and wait until the changes before it are durable."""
        self._await_written(snapshot.lsn)
        with connect(self.config.dsn) as connection:
            # This evidence is written after the snapshot: a log that contains it contains
            # everything before.
            evidence = emit_evidence(connection)
        return replace(snapshot, evidence=evidence or bytes_before(self.config.dsn, snapshot.lsn))

    def _late(self, waiting: Iterable[TableReplication]) -> Iterator[StreamFailure]:
        """Fail the tables that wait for a snapshot, with the transaction that blocks it."""
        oldest = oldest_transaction(self.config.dsn)
        for one in waiting:
            failure = SourceError(
                f"The copy of the table {one.table.stream} could not begin within "
                f"{self.config.snapshot_timeout} s: {oldest.reason}.",
                hint=f"{oldest.hint}. The next run tries again; `snapshot_timeout` sets how "
                "long it waits.",
            )
            yield StreamFailure(one.table.stream, failure)

    def _copied(
        self, lake: Lake, snapshot: DatabaseSnapshot, one: TableReplication, server: int
    ) -> Iterator[Snapshot | StreamFailure]:
        """Copy a table, at a time that is not earlier than its landed versions."""
        try:
            landed = landed_micros(self._wanted.landing_folder(one.table.stream))
        except SourceError as failure:
            yield StreamFailure(one.table.stream, failure)
            return
        position = one.position.not_before(landed)
        yield from copy_table(
            lake.spark, self.config.dsn, snapshot, one.table, position, server=server
        )

    def _proved(
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
        reported = (position for position in positions.values() if position is not None)
        mine = [one for one in map(LogOffset.from_json, reported) if one.is_in_log]
        if all(one.evidence is not None and state.upto - one.lsn < _UNPROVED_BYTES for one in mine):
            return state
        is_proved = emit_evidence(connection) is not None
        return replace(state, upto=durable_lsn(connection), is_proved=is_proved)

    def _follow(
        self,
        lake: Lake,
        followed: Sequence[TableReplication],
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
            followed: the tables.
            state: the state of the database.
            full_refresh: whether the tables are fully refreshed in any case.
        """
        if not followed:
            return
        self._recognize(followed)
        lsn, evidence = 0, None
        begins = min(one.position.required_lsn for one in followed)
        folder = followed[0].folder.parent / uuid4().hex
        with self._streaming(begins, state.upto, folder) as stream:
            decoder = Decoder(codec=codec_of(stream.connection, self._converted))
            for batch in stream.batches():
                decoded = decoder.decode(batch)
                reach("read.log-batch")
                for one in followed:
                    one.add(decoded)
                if decoded.ended is None:
                    continue
                lsn, evidence = decoded.ended.end_lsn, Evidence.of(decoded.ended.transaction)
                due = [one for one in followed if decoder.is_between_transactions and one.is_due]
                for one in due:
                    yield from one.read(lake.spark, ReadEnd(lsn, evidence, upto=lsn))
        if not state.is_proved and state.upto - lsn >= _KEPT_BYTES:
            # The server must not retain its log forever.
            lsn, evidence = state.upto, bytes_before(self.config.dsn, state.upto)
        for one in followed:
            one.is_lost = not one.is_recognized
            if one.is_recognized:
                yield from self._brought(
                    lake, one, ReadEnd(lsn, evidence, upto=state.upto), full_refresh=full_refresh
                )

    def _recognize(self, followed: Sequence[TableReplication]) -> None:
        """Compare the server's log with the bytes that offsets store as evidence."""
        known: dict[Evidence, bool] = {}
        for one in followed:
            evidence = one.position.evidence
            if one.is_recognized or evidence is None or not evidence.is_bytes:
                continue
            if evidence not in known:
                known[evidence] = evidence.is_there(self.config.dsn)
            one.is_recognized = known[evidence]
            one.is_lost = not one.is_recognized

    def _brought(
        self, lake: Lake, one: TableReplication, reached: ReadEnd, *, full_refresh: bool
    ) -> Iterator[ChangeBatch | Snapshot | StreamFailure]:
        yield from one.read(lake.spark, reached)
        if one.invalid is not None and not full_refresh:
            yield StreamFailure(one.table.stream, self._unreadable(one.table.stream, one.invalid))

    def _converted(self, characters: Sequence[bytes]) -> Mapping[bytes, bytes | None]:
        """Convert characters with the server while its log is read."""
        with connect(self.config.dsn) as connection, translate_errors():
            return convert_characters(connection, characters)

    @contextmanager
    def _streaming(self, begins: int, upto: int, folder: Path) -> Iterator[LogStream]:
        """Read the slot. While it is read, it is advanced through the same connection."""
        with open_stream(
            self.config.dsn, self.slot, begins=begins, upto=upto, folder=folder
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

    def _unreadable(self, name: str, invalid: Invalid) -> SourceError:
        """Return an error about a change in the log that cannot be decoded, with the remedy."""
        transaction = invalid.transaction
        at = datetime.fromtimestamp(transaction.commit_micros / 1e6, UTC)
        where = (
            f"in transaction {transaction.xid}, committed at {at:%Y-%m-%d %H:%M:%S}Z, LSN "
            f"{format_lsn(transaction.commit_lsn)}."
        )
        again = f"run `chronolake resync {self.pipeline} --stream {name}` to read the current rows"
        if isinstance(invalid.column, Undecodable):
            return SourceError(
                f"The table {name} had a column whose name, {invalid.column}, is not valid in its "
                f"database's encoding: {where}",
                hint=f"Rename the column if it still has that name. Then {again}.",
            )
        return SourceError(
            f"A change of {name} has text in the column {invalid.column} that is not "
            f"valid in its database's encoding, or has no equivalent in UTF-8: {where}",
            hint=f"Correct the row in the database. Then {again}; the error of a row that is "
            "still not valid contains its ctid.",
        )

    def _published(self, table: SourceTable, state: _State) -> SourceTable:
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
        again = f"`chronolake resync {self.pipeline} --stream {name}`"
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
        if table.is_partly_published(published):
            missing = table.unpublished_columns(published)
            what = f"without {', '.join(missing)}" if missing else "with only some of its rows"
            raise SourceError(
                f"The publication {publication} contains the table {name} {what}.",
                hint=f"Publish it without a column list and without WHERE, and then run {again}.",
            )
        return table

    def _gap(self, following: TableReplication, state: _State) -> SourceError | None:
        """Return an error if the log does not continue at a stream's offset, or None."""
        name, position = following.table.stream, following.position
        if position.server != state.server or position.lsn > state.upto:
            what = f"The offset of the stream {name} is not in this server's log."
            why = "The database was restored, or is a different one."
        elif position.required_lsn < state.begins:
            what = (
                f"The slot {self.slot.name} begins after the offset of {name}: the "
                "changes in between are lost."
            )
            why = "The slot was recreated or advanced."
        else:
            return None
        return SourceError(
            what, hint=f"{why} Run {self._again(following)} to read the current rows."
        )

    def _of_other_log(self, following: TableReplication) -> StreamFailure:
        """Return the failure of a stream whose offset is in another server's log."""
        name, evidence = following.table.stream, following.position.evidence
        where = "" if evidence is None else f" at {format_lsn(evidence.lsn)}"
        error = SourceError(
            f"The server's log is not the one that {name} was read from: what was "
            f"read{where} is no longer in it.",
            hint="The server was restored from an older state, or a standby that lagged "
            "behind was promoted: rows in the lake may differ from the table's. No "
            f"changes of the new log were applied. Run {self._again(following)} to "
            "compare the table with the lake and read the current rows.",
        )
        return StreamFailure(name, error)

    def _again(self, following: TableReplication) -> str:
        return f"`chronolake resync {self.pipeline} --stream {following.table.stream}`"


def _is_lost(one: TableReplication) -> bool:
    return one.is_lost


@dataclass(frozen=True)
class _State:
    """The state of a database at the begin of a run.

    Attributes:
        begins: the LSN where the slot begins.
        upto: the LSN up to which the log is durable.
        server: the database's identifier (`catalog.server_of`).
        domains: the oid and modifier of each domain's base type, by the domain's oid.
        published: the contents of the publication, by table oid.
        problems: problems with replica identities, by table oid.
        is_proved: False if writing evidence to the log was tried, and the server refused it.
    """

    begins: int
    upto: int
    server: int
    domains: Mapping[int, tuple[int, int]]
    published: Mapping[int, Published]
    problems: Mapping[int, IdentityProblem]
    is_proved: bool = True

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

    def position(self, table: SourceTable, told: Offset | None) -> LogOffset:
        """Return a stream's offset: the one of its checkpoint, or the begin of the log."""
        published = self.published[table.oid]
        if told is None:
            return LogOffset.initial(
                table, lsn=self.begins, published=published, server=self.server
            )
        position = LogOffset.from_json(told)
        is_gapless = position.published == published.since and position.publication in {
            None,
            published.version,
        }
        return replace(
            position,
            published=published.since,
            publication=published.version,
            has_unlogged=position.has_unlogged or not is_gapless,
        )


@contextmanager
def _spooling(folder: Path) -> Iterator[Path]:
    """Create a folder below this one, and remove it at the end of the block."""
    # Only one process at a time runs a pipeline: existing files were left by a crash.
    shutil.rmtree(folder, ignore_errors=True)
    place = folder / uuid4().hex
    place.mkdir(parents=True)
    try:
        yield place
    finally:
        shutil.rmtree(folder, ignore_errors=True)
