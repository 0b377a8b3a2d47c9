"""Changes of a stream's columns, and whether they are accepted (`schema_changes`).

A stream's columns are compared with those that have landed before, which the operational store
remembers. For files of another system, they are compared with the observed types of the table.
A column only counts as changed if its type cannot hold the values of the new one.

Records show a column when the first of them has it, so their first load accepts all columns. They
may lack a field that still exists; so one of their columns was only removed if the source declared
it before, and does so no more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import structlog

from chronolake.arrow_tasks import ArrowRows, schema_of, types_in
from chronolake.config import SchemaChanges
from chronolake.description import describe_loaded
from chronolake.errors import SourceError
from chronolake.frames import select
from chronolake.landing import wider
from chronolake.pipeline.runs import ChangeKind
from chronolake.source.protocol import ChangeBatch, CopyBatch, DeclaredColumns, Reconciliation
from chronolake.types import ColumnType, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from chronolake.lake import Lake
    from chronolake.pipeline.store import Store
    from chronolake.pipeline.streams import Stream
    from chronolake.source.protocol import Landable
    from chronolake.types import Column

    Columns = Mapping[str, ColumnType]

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ColumnChange:
    """A change of a column.

    Attributes:
        kind: whether the column was added, removed or changed.
        column: its name in the lake.
        before: its type before; None if it was added.
        after: its type now; None if it was removed.
    """

    kind: ChangeKind
    column: str
    before: str | None = None
    after: str | None = None

    def __str__(self) -> str:
        match self.kind:
            case ChangeKind.ADDED:
                return f"added {self.column} ({self.after})"
            case ChangeKind.REMOVED:
                return f"removed {self.column}"
            case ChangeKind.CHANGED:
                return f"changed {self.column} from {self.before} to {self.after}"

    def as_json(self) -> dict[str, Any]:
        """Return the change as JSON types."""
        return {
            "change": str(self.kind),
            "column": self.column,
            "before": self.before,
            "after": self.after,
        }


def compare_columns(
    before: Columns, now: Iterable[Column], *, removed: Collection[str] = ()
) -> list[ColumnChange]:
    """Return the changes of columns.

    Args:
        before: the types of the columns before, by name.
        now: the columns now; those of `before` may be missing.
        removed: the columns of `before` that were removed.
    """
    changes = []
    for name, kind in ((column.name, column.type) for column in now):
        if name not in before:
            changes.append(ColumnChange(ChangeKind.ADDED, name, None, str(kind)))
        elif wider(before[name], kind) != before[name]:
            types = str(before[name]), str(kind)
            changes.append(ColumnChange(ChangeKind.CHANGED, name, *types))
    return changes + [
        ColumnChange(ChangeKind.REMOVED, name, str(kind), None)
        for name, kind in before.items()
        if name in removed
    ]


def raise_if_frozen(stream: Stream, changes: Sequence[ColumnChange]) -> None:
    """Raise if a stream's columns have changed and its configuration does not accept that.

    Raises:
        SourceError: the columns have changed.
    """
    if not changes or stream.schema_changes is not SchemaChanges.FREEZE:
        return
    raise SourceError(
        f"The columns of the stream {stream.name} have changed: "
        f"{', '.join(map(str, changes))}. This was not applied, because its schema is frozen.",
        table=str(stream.table),
        hint=f"To accept the changes, set {stream.place}.schema_changes: evolve, and sync. To go "
        "on without new columns, set it to discard, or exclude them (`columns.exclude`).",
    )


class ColumnWatch:
    """The columns of a stream in a run: changes are reported, refused, or not stored."""

    def __init__(
        self,
        lake: Lake,
        store: Store,
        stream: Stream,
        report: Callable[[Sequence[ColumnChange]], None],
    ) -> None:
        """Watch a stream.

        Args:
            lake: the lake with the stream's table.
            store: remembers the columns.
            stream: the stream.
            report: called with the changes of a batch.
        """
        self._lake = lake
        self._store = store
        self._stream = stream
        self._report = report
        self._known: dict[str, ColumnType] | None = None
        self._declared: frozenset[str] = frozenset()
        self._removed: frozenset[str] = frozenset()
        self._changes: list[ColumnChange] = []
        self._is_loaded = False
        self._is_changed = False
        self._is_first_load = False

    def accept(self, batch: Landable) -> Landable:
        """Return a batch with the columns that are stored.

        Args:
            batch: the batch with the lake's column names, except in what its source declares.

        Raises:
            SourceError: the columns have changed, and the schema is frozen.
        """
        declared = self._declared_in(batch)
        if not (batch.columns or declared.names):
            return batch
        self._load()
        if self._known is None and not batch.columns:
            return batch
        names = None if self._known is not None else self._names_in_table()
        missing = self._missing_in(batch, declared)
        if self._is_first_load or (self._known is None and names is None):
            self._remember(batch.columns, declared, missing, removed=self._removed)
            return batch
        returned = {name for name in self._removed if name in declared}
        # The columns of the table may have been removed long ago, or have wider types.
        before = (
            {name: kind for name, kind in (self._known or {}).items() if name not in returned}
            if names is None
            else {column.name: column.type for column in batch.columns if column.name in names}
        )
        changes = compare_columns(before, batch.columns, removed=missing)
        raise_if_frozen(self._stream, changes)
        if self._stream.schema_changes is SchemaChanges.DISCARD:
            known = {*(self._known or ()), *(self._names_in_table() or ())}
            new = {
                column.name
                for column in batch.columns
                if column.name not in known and not column.primary_key
            }
            batch = _without_columns(batch, new) if new else batch
            changes = [change for change in changes if change.column not in new]
        removed = (self._removed - returned) | missing
        self._remember(batch.columns, declared, missing, removed=removed)
        self._changes += changes
        return batch

    def _load(self) -> None:
        if not self._is_loaded:
            self._is_loaded = True
            stored = self._store.columns(self._stream.pipeline, self._stream.name)
            if stored is not None:
                types, self._declared, self._removed = stored
                self._known = {name: ColumnType.parse(kind) for name, kind in types.items()}
            self._is_first_load = stored is None and not self._has_all_columns

    @property
    def _has_all_columns(self) -> bool:
        return self._stream.descriptor.has_all_columns

    def _declared_in(self, batch: Landable) -> DeclaredColumns:
        """Return what the source declares, with the lake's names."""
        if isinstance(batch, CopyBatch):
            return DeclaredColumns()
        return batch.declared.renamed(dict(self._stream.names.pairs))

    def _missing_in(self, batch: Landable, declared: DeclaredColumns) -> set[str]:
        """Return the known columns that the source has no more; excluded ones do not count."""
        if self._has_all_columns:
            present = {column.name for column in batch.columns}
            missing = [name for name in self._known or () if name not in present]
        elif declared.names:
            missing = [name for name in self._declared if name not in declared]
        else:
            return set()
        rules = self._stream.rules.renamed(dict(self._stream.names.pairs))
        return {name for name in missing if not rules.is_excluded(name)}

    def _names_in_table(self) -> set[str] | None:
        table = self._lake.catalog.find(self._stream.table)
        return None if table is None else {*describe_loaded(table).by_name}

    def _remember(
        self,
        columns: Sequence[Column],
        declared: DeclaredColumns,
        missing: Collection[str],
        *,
        removed: frozenset[str],
    ) -> None:
        before = self._known or {}
        now = {
            column.name: wider(before.get(column.name, column.type), column.type)
            for column in columns
        }
        names = self._declared
        if self._has_all_columns:
            removed = frozenset()
        else:
            now = before | now
            names = (names - {*missing}) | (declared.names & now.keys())
        found = now, names, removed
        self._is_changed |= found != (self._known, self._declared, self._removed)
        self._known, self._declared, self._removed = found

    def store(self, token: int) -> None:
        """Store the columns of batches that have landed, and report their changes.

        Those of a first load are stored at its end.

        Args:
            token: the token of the lease under which they landed.
        """
        if self._is_first_load:
            return
        if self._changes:
            changes, self._changes = self._changes, []
            self._report(changes)
        if self._is_changed and self._known is not None:
            self._store.put_columns(
                self._stream.pipeline,
                self._stream.name,
                {name: str(kind) for name, kind in self._known.items()},
                declared=self._declared,
                removed=self._removed,
                token=token,
            )
            self._is_changed = False

    def end(self, token: int) -> None:
        """Store the columns when everything that the source has of the stream has landed.

        Args:
            token: the token of the lease under which it landed.
        """
        self._is_first_load = False
        self.store(token)


def _without_columns(batch: Landable, names: set[str]) -> Landable:
    """Return a batch without some of its columns."""
    columns = [column for column in batch.columns if column.name not in names]
    if isinstance(batch, Reconciliation):
        return replace(batch, versions=_drop(batch.versions, names), columns=columns)
    if isinstance(batch, CopyBatch):
        copies = None if batch.rows is None else _drop(batch.rows, names)
        return replace(batch, rows=copies, columns=columns)
    numbers = batch.numbers and {
        name: number for name, number in batch.numbers.items() if name not in names
    }
    if isinstance(batch, ChangeBatch):
        versions = None if batch.versions is None else _drop(batch.versions, names)
        return replace(batch, versions=versions, columns=columns, numbers=numbers)
    texts = {text for name, text in batch.texts.items() if name in names}
    return replace(
        batch,
        rows=_drop(batch.rows, names | texts),
        columns=columns,
        numbers=numbers,
        texts={name: text for name, text in batch.texts.items() if name not in names},
    )


def _drop(rows: Any, names: set[str]) -> Any:
    if not isinstance(rows, ArrowRows):
        return select(rows, (quote(name) for name in rows.columns if name not in names))
    kept = {name: kind for name, kind in types_in(rows.schema).items() if name not in names}
    return rows.then(_Keep(tuple(kept)), schema_of(kept))


@dataclass(frozen=True)
class _Keep:
    """A step that keeps some columns; it is sent to executors."""

    names: tuple[str, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (batch.select(list(self.names)) for batch in batches)
