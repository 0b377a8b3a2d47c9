"""Keys of records: their key fields, or a hash."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa

from chronolake import exact_json
from chronolake.errors import SourceError
from chronolake.landing import ColumnRules
from chronolake.source.records.lookup import MISSING, look_up
from chronolake.types import ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The key column of streams without a primary key, or with a key inside an object.
HASHED: Final = "_fivetran_id"


@dataclass(frozen=True)
class Identity:
    """A stream's primary key.

    Attributes:
        paths: paths of its parts in a record; empty: the whole record is the key.
        cursor: the field with the record's time, if it is part of the key, or None.
        advice: what to do if a record lacks a part of its primary key, for the error.
        rules: the rules of the stream's columns.
    """

    paths: tuple[tuple[str, ...], ...]
    cursor: str | None = None
    advice: str = "Correct the stream's key."
    rules: ColumnRules = field(default_factory=ColumnRules)

    @property
    def is_hashed(self) -> bool:
        """Return whether the key is a hash, in its own column."""
        return not self.paths or any(len(path) != 1 for path in self.paths)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the key's columns."""
        own = (HASHED,) if self.is_hashed else tuple(path[0] for path in self.paths)
        return own if self.cursor is None else tuple(dict.fromkeys([*own, self.cursor]))

    @property
    def is_keyed(self) -> bool:
        """Return whether hashes of keys depend on values that column rules hash."""
        return bool(self.rules.key) and (
            not self.paths or any(self.rules.is_hashed(path[0]) for path in self.paths)
        )

    @property
    def rules_digest(self) -> str:
        """Return a text that changes with the rules that decide which keys are stored."""
        if not self.paths:
            return self.rules.digest
        return self.rules.digest_of(path[0] for path in self.paths)

    def add_key_column(self, declared: Mapping[str, ColumnType]) -> dict[str, ColumnType]:
        """Return the declared columns, preceded by the hash column if there is one.

        A key column that is declared as a number of any kind gets the type of its values. As a
        double, 5 would become another key as soon as one value of the column is text.
        """
        own = {HASHED: ColumnType(Kind.STRING)} if self.is_hashed else {}
        number = ColumnType(Kind.DOUBLE)
        of_key = {name for name in self.columns if declared.get(name) == number}
        return {**own, **{name: kind for name, kind in declared.items() if name not in of_key}}

    def add_keys(self, records: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """Return the records with their key.

        Raises:
            SourceError: a record lacks a part of its key.
        """
        if self.cursor is not None and any(record.get(self.cursor) is None for record in records):
            raise SourceError(
                f"A record has no {self.cursor}, which is part of its key (`cursor_in_key`).",
                column=self.cursor,
                hint="Filter such records in the manifest (`record_filter`), or remove "
                "cursor_in_key.",
            )
        plain = () if self.is_hashed else self.paths
        for (name,) in plain:
            if any(record.get(name) is None for record in records):
                raise self._lacking_error(name)
        if self.is_hashed:
            for record in records:
                if HASHED in record:
                    raise _reserved_error()
                record[HASHED] = self._hash(record)
        return records

    def add_keys_to_batch(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return records in Arrow columns with their key.

        Raises:
            SourceError: a record lacks a part of its key.
        """
        if self.is_hashed:
            if HASHED in records.schema.names:
                raise _reserved_error()
            hashes = [self._hash(record) for record in records.to_pylist()]
            return records.append_column(HASHED, pa.array(hashes, pa.string()))
        for name in self.columns:
            if name not in records.schema.names or records[name].null_count:
                raise self._lacking_error(name)
        return records

    def _lacking_error(self, name: str) -> SourceError:
        return SourceError(
            f"A record has no {name}, which is part of its primary key.",
            column=name,
            hint=self.advice,
        )

    def _hash(self, record: Mapping[str, Any]) -> str:
        if not self.paths:
            is_removed = self.rules.is_removed
            reported = (
                {name: value for name, value in record.items() if not is_removed(name)}
                if self.rules
                else record
            )
        else:
            values = (look_up(record, path) for path in self.paths)
            reported = {"key": [None if value is MISSING else value for value in values]}
        try:
            text = orjson.dumps(reported, option=orjson.OPT_SORT_KEYS)
        except TypeError:
            # Objects within the record are not sorted here: existing keys must not change.
            text = exact_json.dumps(dict(sorted(reported.items())))
        # A plain hash of a few values could be guessed.
        digest = self.rules.keyed_hash(text) if self.is_keyed else sha256(text).hexdigest()
        return digest[:40]


def _reserved_error() -> SourceError:
    return SourceError(
        f"The records have a field {HASHED}, which is the key column of streams without a key.",
        column=HASHED,
        hint=f"Set {HASHED} as the key of the stream, or leave the field out.",
    )
