"""A reader of a Data Lake v2 that knows only its document, written with DuckDB.

Source: `seeds/data-lake-v2.txt`. Nothing here uses Chronolake, or its declarations in the footers.
The comments quote the sentences that the statements implement.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import duckdb

#: "Only Id, source__modified, and grax__idseq are guaranteed to be present."
_GUARANTEED: Final = ("Id", "source__modified", "grax__idseq")
_OPTIONAL: Final = {
    "grax__deleted": "TIMESTAMPTZ",
    "grax__deletesource": "VARCHAR",
    "grax__purged": "TIMESTAMPTZ",
    "grax__restoredfrom": "VARCHAR",
}
#: "_b for boolean, _i for integer, _f for float, _ts, for timestamp, _t for time, and _d for date"
_SUFFIXES: Final = {
    "_b": {"BOOLEAN"},
    "_i": {"BIGINT", "INTEGER"},
    "_f": {"DOUBLE", "FLOAT"},
    "_ts": {"TIMESTAMP", "TIMESTAMP WITH TIME ZONE"},
    "_t": {"TIME"},
    "_d": {"DATE"},
}
_BEGIN: Final = datetime(1970, 1, 1)


class DocumentReader:
    """The record versions of one object.

    Args:
        folder: the object's folder, `parquet/v2/org=X/object=NAME`.
        own: the beginning of the names of columns that the document does not know, which are
            ignored.
    """

    def __init__(self, folder: Path, *, own: str = "chronolake__") -> None:
        self._connection = duckdb.connect()
        self._connection.execute("SET TimeZone = 'UTC'")
        files = str(folder / "batch=*" / "data-*.parquet")
        # "Each file can have a different schema."
        relation = self._connection.from_parquet(files, union_by_name=True, hive_partitioning=False)
        self._connection.register("files", relation)
        self.columns = dict(zip(relation.columns, map(str, relation.types), strict=True))
        self._own = own
        assert set(_GUARANTEED) <= self.columns.keys()

    @property
    def fields(self) -> dict[str, str | None]:
        """Return the record's fields: for each, the column with its typed values, or None."""
        known = {*_GUARANTEED, *_OPTIONAL}
        names = [
            name for name in self.columns if name not in known and not name.startswith(self._own)
        ]
        typed = {
            name + suffix: name
            for name in names
            for suffix, types in _SUFFIXES.items()
            if self.columns.get(name + suffix) in types
        }
        columns = {field: column for column, field in typed.items()}
        return {name: columns.get(name) for name in names if name not in typed}

    def history(self) -> list[dict[str, Any]]:
        """Return every version that was valid for some time, ordered by record and start.

        A version begins at `source__modified`, and ends when its record's next version begins, or
        when it was deleted (`_end`; None: it is still valid). A version that was deleted when it
        began was never valid: it only ends the one before it.
        """
        found = []
        for versions in self._by_record():
            for number, version in enumerate(versions):
                start, deleted = version["source__modified"], version["grax__deleted"]
                if deleted is not None and deleted <= start:
                    continue
                following = versions[number + 1] if number + 1 < len(versions) else None
                end = None if following is None else following["source__modified"]
                is_replaced = following is not None and not (
                    following["grax__deleted"] is not None
                    and following["grax__deleted"] <= following["source__modified"]
                )
                if end is not None and is_replaced:
                    end -= timedelta(microseconds=1)
                ends = [time for time in (end, deleted) if time is not None]
                found.append(version | {"_end": min(ends, default=None)})
        return found

    def current(self) -> list[dict[str, Any]]:
        """Return the newest version of each record that was neither deleted nor purged."""
        # "Use the combination of Id and MAX(grax__idseq) to determine the latest write for the
        # latest version of a record."
        newest = self._select("PARTITION BY Id ORDER BY source__modified DESC, grax__idseq DESC")
        return [
            row for row in newest if row["grax__deleted"] is None and row["grax__purged"] is None
        ]

    def _by_record(self) -> list[list[dict[str, Any]]]:
        # "Use the combination of Id, source__modified, and MAX(grax__idseq) to determine the latest
        # write per version of a record."
        rows = self._select("PARTITION BY Id, source__modified ORDER BY grax__idseq DESC")
        records: dict[str, list[dict[str, Any]]] = {}
        for row in sorted(rows, key=lambda row: (row["Id"], row["source__modified"])):
            records.setdefault(row["Id"], []).append(row)
        return list(records.values())

    def _select(self, window: str) -> list[dict[str, Any]]:
        fields = self.fields
        optional = [
            name if name in self.columns else f"CAST(NULL AS {kind}) AS {name}"
            for name, kind in _OPTIONAL.items()
        ]
        values = [
            f'"{self._column_of(name, typed)}" AS "value {number}"'
            for number, (name, typed) in enumerate(fields.items())
        ]
        result = self._connection.sql(
            f"SELECT {', '.join([*_GUARANTEED, *optional, *values])} FROM files "
            f"QUALIFY row_number() OVER ({window}) = 1"
        ).to_arrow_table()
        rows = result.rename_columns([*_GUARANTEED, *_OPTIONAL, *fields]).to_pylist()
        return [{name: _plain(value) for name, value in row.items()} for row in rows]

    def _column_of(self, name: str, typed: str | None) -> str:
        """Return the column with a field's values: the text if some value has no typed one.

        "Typed fields may vary or clash over time": a field may stop being an integer.
        """
        if typed is None:
            return name
        ((count,),) = self._connection.sql(
            f'SELECT count(*) FROM files WHERE "{name}" IS NOT NULL AND "{typed}" IS NULL'
        ).fetchall()
        return name if count else typed


def _plain(value: Any) -> Any:
    """Return a time without its zone, which is UTC."""
    return value.replace(tzinfo=None) if isinstance(value, datetime) else value


def micros(time: datetime | None) -> int | None:
    """Return a time in microseconds since 1970."""
    return None if time is None else (time - _BEGIN) // timedelta(microseconds=1)
