"""What tells the records of a stream apart: its primary key, or a hash of what they say."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Self

import orjson

from chronolake.errors import SourceError
from chronolake.source.declarative.landing.shape import json_text
from chronolake.source.declarative.records.fieldpaths import MISSING, looked_up
from chronolake.types import ColumnType, Kind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chronolake.source.declarative.language.streams import DeclarativeStream

#: The key of records whose stream has none, or one within an object.
HASHED: Final = "_fivetran_id"


@dataclass(frozen=True)
class Identity:
    """A stream's primary key.

    Attributes:
        paths: where its parts stand in a record; none: all that a record says is its key.
        cursor: the field with the record's time, if it is part of the key; None: it is not.
    """

    paths: tuple[tuple[str, ...], ...]
    cursor: str | None = None

    @classmethod
    def of(cls, stream: DeclarativeStream, cursor: str | None = None) -> Self:
        """The primary key as the manifest has it: a field, several, or paths.

        Args:
            stream: the stream.
            cursor: as of the class.
        """
        key = stream.primary_key or ()
        parts = (key,) if isinstance(key, str) else key
        paths = tuple((part,) if isinstance(part, str) else tuple(part) for part in parts)
        return cls(paths, cursor)

    @property
    def is_hashed(self) -> bool:
        """Whether the key is a hash, in a column of its own."""
        return not self.paths or any(len(path) != 1 for path in self.paths)

    @property
    def columns(self) -> tuple[str, ...]:
        """The key's columns."""
        own = (HASHED,) if self.is_hashed else tuple(path[0] for path in self.paths)
        return own if self.cursor is None else tuple(dict.fromkeys([*own, self.cursor]))

    def typed(self, declared: Mapping[str, ColumnType]) -> dict[str, ColumnType]:
        """The declared columns, and the key's own first if it has one.

        A key that is declared as any number has the type of its values: as numbers with fractions,
        5 would be another key as soon as one value of the column is a text.
        """
        own = {HASHED: ColumnType(Kind.STRING)} if self.is_hashed else {}
        number = ColumnType(Kind.DOUBLE)
        of_key = {name for name in self.columns if declared.get(name) == number}
        return {**own, **{name: kind for name, kind in declared.items() if name not in of_key}}

    def added(self, records: Sequence[dict[str, Any]]) -> Sequence[dict[str, Any]]:
        """The records with their key.

        Raises:
            SourceError: a record lacks a part of its key.
        """
        if self.cursor is not None and any(one.get(self.cursor) is None for one in records):
            raise SourceError(
                f"A record has no {self.cursor}, which is part of its key (`cursor_in_key`).",
                column=self.cursor,
                hint="Filter such records in the manifest (`record_filter`), or leave "
                "cursor_in_key out.",
            )
        plain = () if self.is_hashed else self.paths
        for (name,) in plain:
            if any(record.get(name) is None for record in records):
                raise SourceError(
                    f"A record has no {name}, which is part of its primary key.",
                    column=name,
                    hint="Filter such records in the manifest (`record_filter`), or correct the "
                    "stream's primary_key.",
                )
        if self.is_hashed:
            for record in records:
                record[HASHED] = self._hash(record)
        return records

    def _hash(self, record: Mapping[str, Any]) -> str:
        if not self.paths:
            told = record
        else:
            values = (looked_up(record, path) for path in self.paths)
            told = {"key": [None if value is MISSING else value for value in values]}
        try:
            text = orjson.dumps(told, option=orjson.OPT_SORT_KEYS)
        except TypeError:
            text = json_text(dict(sorted(told.items()))).encode("utf-8", "surrogatepass")
        return sha256(text).hexdigest()[:40]
