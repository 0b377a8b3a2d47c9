"""A stream's offset in a database's log, as its checkpoint stores it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from chronolake.source.postgres.columns import SourceColumn
from chronolake.source.postgres.slot import Evidence
from chronolake.source.postgres.text_dependencies import KnownTypes
from chronolake.source.relational.columns import numbers_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chronolake.source.postgres.catalog import PublishedTable, SourceTable
    from chronolake.source.postgres.snapshot import DatabaseSnapshot


@dataclass(frozen=True)
class LogOffset:
    """A stream's offset.

    Attributes:
        lsn: all transactions that were committed before this LSN have landed; 0 if the last landed
            rows were read without the log.
        last_micros: the time of the last version, in microseconds since 1970.
        columns: the table's columns when the catalog was last read.
        table: the table's oid: another table may get its name.
        key: the numbers of the columns that identified its rows then, in increasing order.
        storage: the storage of its rows then (`catalog.SourceTable.storage`).
        published: since when it is published (`catalog.PublishedTable.since`).
        publication: which part of it was published (`catalog.PublishedTable.version`); None: stored
            by a version of Chronolake that did not record it.
        server: the database of this offset (`catalog.server_of`).
        is_numbered: whether the lake identifies columns by their numbers. Another table that got
            the name has other numbers; its columns are identified by name.
        has_unlogged: whether the table may have values that the log does not contain: a column was
            added or got another type, a record got another key and kept a large value, the table
            was not published for a while, or old rows had another key in the log.
        greatest: the greatest column number known at that time.
        fingerprints: the name of the landed rows' fingerprints (`snapshot_diff.fingerprints`).
        types: what the text representation of its values depended on; None: stored by a version of
            Chronolake that did not record it.
        evidence: proves that the log up to `lsn` is the one that was read; None if there is no
            proof yet, or the server does not allow any.
    """

    lsn: int
    last_micros: int
    columns: tuple[SourceColumn, ...]
    table: int
    key: tuple[int, ...]
    storage: tuple[int, ...]
    published: int
    server: int
    is_numbered: bool = True
    has_unlogged: bool = False
    greatest: int = 0
    fingerprints: str | None = None
    types: KnownTypes | None = None
    evidence: Evidence | None = None
    publication: int | None = None

    @classmethod
    def initial(
        cls,
        table: SourceTable,
        *,
        lsn: int = 0,
        published: PublishedTable | None = None,
        server: int,
    ) -> Self:
        """Return the offset of a stream of which nothing has landed.

        Args:
            table: the stream's table.
            lsn: the LSN where the log begins.
            published: the published part of the table; None without the log.
            server: the database's identifier.
        """
        return cls(
            lsn,
            0,
            table.columns,
            table.oid,
            table.key_numbers,
            table.storage,
            0 if published is None else published.since,
            server,
            greatest=table.greatest,
            types=table.dependencies.known_types,
            publication=None if published is None else published.version,
        )

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        """Return the offset that `as_json` stored."""
        columns = tuple(SourceColumn(*column) for column in stored["columns"])
        return cls(
            stored["lsn"],
            stored["last_micros"],
            columns,
            stored["table"],
            tuple(stored["key"]),
            tuple(stored["storage"]),
            stored["published"],
            stored["server"],
            stored["is_numbered"],
            stored["has_unlogged"],
            stored.get("greatest", 0),
            stored.get("fingerprints"),
            None if stored.get("types") is None else KnownTypes.from_json(stored["types"]),
            Evidence.from_json(stored["evidence"]) if stored.get("evidence") else None,
            stored.get("publication"),
        )

    @property
    def required_lsn(self) -> int:
        """Return the LSN from which the next run has to read the log."""
        return self.lsn if self.evidence is None else min(self.lsn, self.evidence.lsn)

    @property
    def is_in_log(self) -> bool:
        """Return whether the offset is in the log: the last rows may have been read without it."""
        return self.lsn > 0

    def is_of(self, table: SourceTable) -> bool:
        """Return whether this is an offset of the table with its present identifying columns."""
        return (self.table, self.key) == (table.oid, table.key_numbers)

    def reread_reason(self, table: SourceTable) -> str | None:
        """Return which values of a table its log does not contain, or None.

        Args:
            table: the table after all changes in the log up to the offset.
        """
        if self.has_unlogged:
            return "the table may have values that the log does not contain"
        if self.storage != table.storage:
            return "the table was rewritten or truncated, or its partitions changed"
        known = {column.number: column for column in self.columns}
        unlogged = [
            column.name for column in table.columns if not self._log_contains(column, known, table)
        ]
        if unlogged:
            return f"columns added with a default or altered: {', '.join(unlogged)}"
        altered = self._altered_types(table)
        return f"altered types: {', '.join(altered)}" if altered else None

    def _log_contains(
        self, column: SourceColumn, known: Mapping[int | None, SourceColumn], table: SourceTable
    ) -> bool:
        """Return whether the log contains all values of a column of the table."""
        if None in known:
            return column in self.columns
        if column.number in known:
            return known[column.number].has_same_texts(column)
        # A column that is not new was computed before, and the log did not contain its values.
        is_new = column.number is not None and column.number > self.greatest
        return is_new and column.number not in table.filled

    def _altered_types(self, table: SourceTable) -> list[str]:
        if self.types is None:
            # Types may have been altered before they were recorded.
            return [type_.name for type_ in table.dependencies.types]
        return self.types.altered_types(table.dependencies)

    def not_before(self, micros: int) -> Self:
        """Return this offset with a time that is not earlier than a landed version.

        After a crash, files may have landed that the checkpoint does not include.
        """
        return replace(self, last_micros=max(self.last_micros, micros))

    def after_copy(
        self,
        table: SourceTable,
        snapshot: DatabaseSnapshot,
        *,
        server: int,
        fingerprints: str | None = None,
    ) -> LogOffset:
        """Return the stream's offset after a copy of its table has landed.

        Its `last_micros` is the time of the copy's versions: the snapshot's time, or one
        microsecond after the last version if the server's clock is behind.

        Args:
            table: the table as it is in the copy.
            snapshot: the snapshot that was copied.
            server: the database's identifier.
            fingerprints: the name of the copy's fingerprints.
        """
        return replace(
            self,
            lsn=snapshot.lsn,
            last_micros=max(snapshot.at_micros, self.last_micros + 1),
            columns=table.columns,
            table=table.oid,
            key=table.key_numbers,
            storage=table.storage,
            server=server,
            is_numbered=self.is_numbered and self.table == table.oid,
            has_unlogged=False,
            greatest=table.greatest,
            fingerprints=fingerprints,
            types=table.dependencies.known_types,
            evidence=snapshot.evidence,
        )

    def after_part(self, snapshot: DatabaseSnapshot) -> Self:
        """Return this offset after some rows of a snapshot have landed, at its `last_micros`."""
        return replace(
            self,
            last_micros=max(snapshot.at_micros, self.last_micros + 1),
            # They describe other rows than the lake's table has.
            fingerprints=None,
        )

    def numbers(self, columns: Sequence[SourceColumn]) -> dict[str, int]:
        """Return the numbers that identify columns in the lake, by column name."""
        return numbers_of(columns) if self.is_numbered else {}

    def as_json(self) -> dict[str, Any]:
        """Return the offset in the form that a checkpoint stores."""
        return {
            "lsn": self.lsn,
            "last_micros": self.last_micros,
            "columns": [
                [column.number, column.name, column.type_oid, column.type_modifier]
                for column in self.columns
            ],
            "table": self.table,
            "key": list(self.key),
            "storage": list(self.storage),
            "published": self.published,
            "server": self.server,
            "is_numbered": self.is_numbered,
            "has_unlogged": self.has_unlogged,
            "greatest": self.greatest,
            "fingerprints": self.fingerprints,
            "types": None if self.types is None else self.types.as_json(),
            "evidence": None if self.evidence is None else self.evidence.as_json(),
            "publication": self.publication,
        }
