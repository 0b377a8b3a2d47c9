"""Column rules for values that are read as texts, applied before they are spooled or landed.

A hashed column is a text column from here on, and a masked one is null, or a text column. Excluded
columns are not read at all, except from the log, where they are dropped as soon as a row is
decoded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from chronolake.landing import Action, ColumnRules, canonical_texts, keyed_hashes
from chronolake.source.relational.changes import Cells, RowChanges
from chronolake.source.relational.columns import ColumnT, typed_values

if TYPE_CHECKING:
    from collections.abc import Callable

    from chronolake.landing import Rule

ChangesT = TypeVar("ChangesT", bound=RowChanges)
#: The seed of fingerprints is derived from the key of hashes with this text.
_SEED_OF: Final = b"chronolake fingerprints"
_SEED_DIGITS: Final = 16


@dataclass(frozen=True)
class ProtectedTexts(Generic[ColumnT]):
    """The column rules of a table; they are sent to executors.

    Attributes:
        rules: the rules of the stream.
        source_columns: the columns with rules that are read, as they are in the source.
    """

    rules: ColumnRules = field(default_factory=ColumnRules)
    source_columns: tuple[ColumnT, ...] = ()

    def stored_column(self, column: ColumnT) -> ColumnT | None:
        """Return a column as it is stored; None if it is excluded."""
        rule = self.rules.rule_of(column.name)
        if rule is None or _keeps_type(rule):
            return column
        if rule.action is Action.EXCLUDE:
            return None
        return column.as_text()

    def apply_to(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows that were read as texts as they are stored."""
        for column in self.source_columns:
            place = rows.schema.get_field_index(column.name)
            if place >= 0:
                texts = self._protect(column, rows.column(place))
                rows = rows.set_column(place, pa.field(column.name, pa.string()), texts)
        return rows

    def apply_to_changes(
        self, changes: ChangesT, source_column: Callable[[Any], ColumnT]
    ) -> ChangesT:
        """Return changes in the log as they are stored.

        Args:
            changes: changes of one relation.
            source_column: returns a column of the relation with its base type.
        """
        if not self.rules:
            return changes
        columns, new, old = [], [], []
        for column, *cells in zip(changes.relation.columns, changes.new, changes.old, strict=True):
            rule = self.rules.rule_of(column.name)
            if rule is None:
                columns.append(column)
                new.append(cells[0])
                old.append(cells[1])
            elif rule.action is not Action.EXCLUDE:
                source = source_column(column)
                is_text = not _keeps_type(rule)
                columns.append(column.as_text() if is_text else column)
                for side, found in ((new, cells[0]), (old, cells[1])):
                    texts = self._protect(source, found.texts)
                    if rule.action is Action.MASK:
                        side.append(replace(Cells.nulls(len(texts)), texts=texts))
                    else:
                        side.append(replace(found, texts=texts))
        given: Any = changes
        relation = replace(given.relation, columns=tuple(columns))
        found_changes: ChangesT = replace(given, relation=relation, new=tuple(new), old=tuple(old))
        return found_changes

    def _protect(self, column: ColumnT, texts: pa.Array) -> pa.Array:
        rule = self.rules.rule_of(column.name)
        if rule is None:
            return texts
        if rule.action is not Action.HASH:
            return pa.nulls(len(texts), pa.string()) if rule.text is None else _repeat(rule, texts)
        values, others = typed_values(column, texts)
        hashes = keyed_hashes(canonical_texts(values, column.type), self.rules.key)
        if others.null_count == len(others):
            return hashes
        return pc.coalesce(keyed_hashes(others, self.rules.key), hashes)

    @property
    def hashed(self) -> frozenset[str]:
        """Return the names of hashed columns."""
        return frozenset(
            column.name for column in self.source_columns if self.rules.is_hashed(column.name)
        )

    def fingerprinted(self, columns: tuple[ColumnT, ...]) -> tuple[tuple[ColumnT, ...], int | None]:
        """Return the columns whose values fingerprints depend on, and the seed of fingerprints.

        Masked values never change. Hashed values are known to whoever guesses them unless the seed
        is secret, too.

        Args:
            columns: the table's stored columns.

        Returns:
            The columns as they are in the source, and None for the usual seed.
        """
        by_name = {column.name: column for column in self.source_columns}
        found = tuple(
            by_name.get(column.name, column)
            for column in columns
            if not self.rules.is_removed(column.name)
        )
        if not self.hashed:
            return found, None
        seed = int(self.rules.keyed_hash(_SEED_OF)[:_SEED_DIGITS], 16)
        return found, seed - 2**63


def _keeps_type(rule: Rule) -> bool:
    return rule.action is Action.MASK and rule.text is None


def _repeat(rule: Rule, texts: pa.Array) -> pa.Array:
    return pa.repeat(pa.scalar(rule.text, pa.string()), len(texts))
