"""Reads of a part of a stream: single records, a slice of it, or a window of its cursor's times.

A run with one of these sources reads, lands and applies as any other, but the stream's offset stays
where it is: everything else of the stream is read by the next sync, as if this had not happened.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.functions import col, expr, lit

from chronolake.arrow_tasks import to_spark
from chronolake.change_set import RESERVED
from chronolake.description import describe_loaded
from chronolake.errors import ChronolakeError, ConfigurationError, SourceError
from chronolake.frames import select
from chronolake.iceberg import frozen
from chronolake.pipeline.streams import select_streams, source_of, streams_of
from chronolake.source.protocol import (
    CaughtUp,
    SelectiveSource,
    Snapshot,
    StreamFailure,
    WindowedSource,
)
from chronolake.types import PRESENT, ROW_ID, Kind, literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from pyspark.sql import DataFrame

    from chronolake.config import Project
    from chronolake.lake import Lake
    from chronolake.pipeline.streams import Stream
    from chronolake.source.protocol import (
        ChangeBatch,
        Offset,
        ReadProgress,
        Source,
        StreamDescriptor,
        Where,
    )
    from chronolake.types import Column

#: The most records of a slice that the source may lack; each of them is looked up.
_MOST_MISSING: Final = 10_000
#: Types of keys whose text in the lake is also their text in the source.
_KEYS: Final = frozenset(
    {Kind.STRING, Kind.SHORT, Kind.INT, Kind.LONG, Kind.BOOLEAN, Kind.NAIVE_DATE, Kind.DECIMAL}
)
_IS_PRESENT: Final = f"{RESERVED}is_there"
_READ_ALL: Final = "`chronolake resync PIPELINE --stream STREAM` reads all of the stream."


def source_of_records(
    project: Project, pipeline: str, stream: str, where: Where, *, is_slice: bool
) -> Source:
    """Return a source that reads some records of a stream.

    Args:
        project: the configuration.
        pipeline: the pipeline's name.
        stream: the stream's name.
        where: the records, by columns and values of the source.
        is_slice: whether `where` is a slice. If not, it contains the keys of single records.

    Raises:
        ConfigurationError: the stream does not exist, its source cannot read single records, or the
            columns cannot be used.
        SourceError: the source cannot be read.
    """
    source, found = _select(project, pipeline, stream)
    if not isinstance(source, SelectiveSource):
        raise ConfigurationError(
            f"The source of the pipeline {pipeline} cannot read single records.",
            hint=f"PostgreSQL, MySQL and JDBC sources can. {_READ_ALL}",
        )
    key = found.descriptor.key
    if not key or ROW_ID in key:
        raise ConfigurationError(
            f"The stream {stream} has no primary key by which its records could be looked up.",
            hint=_READ_ALL,
        )
    if not is_slice:
        _expect_keys(where, key)
    found.rules.expect_plain(
        sorted({*key, *(name for record in where for name in record)}),
        place=found.place,
        reason="its records are looked up by it",
    )
    return _RecordsOf(source, found, where, is_slice)


def source_of_window(
    project: Project, pipeline: str, stream: str, begin: datetime, end: datetime
) -> Source:
    """Return a source that reads what changed in a stream within a time range.

    Args:
        project: the configuration.
        pipeline: the pipeline's name.
        stream: the stream's name.
        begin: the earliest time.
        end: the latest time, exclusive.

    Raises:
        ConfigurationError: the stream does not exist, or its source cannot read a time range.
        SourceError: the source cannot be read.
    """
    source, found = _select(project, pipeline, stream)
    if not isinstance(source, WindowedSource):
        raise ConfigurationError(
            f"The source of the pipeline {pipeline} cannot read the changes of a time range.",
            hint=f"APIs by a manifest and Python functions can. {_READ_ALL}",
        )
    if end <= begin:
        raise ConfigurationError(
            "The end of the time range is not later than its begin.", hint="Correct --from or --to."
        )
    source.expect_window(stream)
    return _WindowOf(source, found, begin, end)


def _select(project: Project, pipeline: str, stream: str) -> tuple[Source, Stream]:
    source = source_of(project, pipeline)
    (found,) = select_streams(streams_of(project, pipeline, source), pipeline, [stream])
    return source, found


def _expect_keys(where: Where, key: Sequence[str]) -> None:
    for record in where:
        if {*record} != {*key}:
            raise ConfigurationError(
                f"{', '.join(record)} is not the key: it consists of {', '.join(key)}.",
                hint="Give the values of all of its columns, such as "
                f"--key {','.join(f'{name}=…' for name in key)}.",
            )


class _Part:
    """What all sources of a part of a stream have in common."""

    source: SelectiveSource | WindowedSource
    stream: Stream

    def discover(self) -> list[StreamDescriptor]:
        """Return the streams of the whole source."""
        return list(self.source.discover())

    def acknowledge(self, positions: Mapping[str, Offset]) -> None:
        """Let the source discard what has landed."""
        self.source.acknowledge(positions)

    def _nothing_landed(self) -> StreamFailure:
        failure = SourceError(
            f"Nothing of the stream {self.stream.name} has been read yet.",
            hint=f"Run `chronolake sync {self.stream.pipeline} --stream {self.stream.name}` first.",
        )
        return StreamFailure(self.stream.name, failure)


@dataclass
class _WindowOf(_Part):
    """The changes of a stream within a time range, as a source."""

    source: WindowedSource
    stream: Stream
    begin: datetime
    end: datetime

    def read(
        self,
        lake: Lake,
        positions: Mapping[str, Offset | None],
        *,
        full_refresh: bool,  # noqa: ARG002 - only the time range is read
    ) -> Iterator[ChangeBatch | ReadProgress | StreamFailure]:
        """Read the changes."""
        position = positions[self.stream.name]
        if position is None:
            yield self._nothing_landed()
            return
        yield from self.source.read_window(lake, self.stream.name, position, self.begin, self.end)


@dataclass
class _RecordsOf(_Part):
    """Some records of a stream, as a source."""

    source: SelectiveSource
    stream: Stream
    where: Where
    is_slice: bool
    _positions: dict[str, Offset] = field(default_factory=dict, init=False)

    def acknowledge(self, positions: Mapping[str, Offset]) -> None:
        """Note what has landed, and let the source discard it."""
        self._positions.update(positions)
        super().acknowledge(positions)

    def read(
        self,
        lake: Lake,
        positions: Mapping[str, Offset | None],
        *,
        full_refresh: bool,  # noqa: ARG002 - only the selected records are read
    ) -> Iterator[ChangeBatch | Snapshot | ReadProgress | CaughtUp | StreamFailure]:
        """Read the records; those that do not exist any more are deleted."""
        name = self.stream.name
        position = positions[name]
        if position is None:
            yield self._nothing_landed()
        elif not self.is_slice:
            yield from self._look_up(lake, position, self.where)
        else:
            try:
                yield from self._read_slice(lake, position)
            except ChronolakeError as failure:
                yield StreamFailure(name, failure)

    def _read_slice(
        self, lake: Lake, position: Offset
    ) -> Iterator[ChangeBatch | Snapshot | ReadProgress | CaughtUp | StreamFailure]:
        """Read the slice, and look up the table's records of the slice that are not in it.

        They may have moved into another slice.
        """
        missing: list[dict[str, str]] = []
        for batch in self.source.read_where(lake, self.stream.name, position, self.where):
            if not isinstance(batch, Snapshot):
                yield batch
                continue
            rows = to_spark(batch.rows).persist()
            try:
                there = rows.withColumn(_IS_PRESENT, lit(True))
                yield replace(batch, rows=there, present=_IS_PRESENT)
                # Everything that has landed is in the table then.
                yield CaughtUp(self.stream.name)
                missing = self._missing(lake, rows, batch.columns)
            finally:
                rows.unpersist()
        if missing:
            landed = self._positions.get(self.stream.name, position)
            yield from self._look_up(lake, landed, missing)

    def _look_up(
        self, lake: Lake, position: Offset, where: Where
    ) -> Iterator[ChangeBatch | Snapshot | ReadProgress | CaughtUp | StreamFailure]:
        """Read records by their keys, and mark those that do not exist."""
        for batch in self.source.read_where(lake, self.stream.name, position, where):
            if not isinstance(batch, Snapshot):
                yield batch
                continue
            rows = to_spark(batch.rows).withColumn(_IS_PRESENT, lit(True))
            keys = [column.name for column in batch.columns if column.primary_key]
            asked = _asked(lake, rows, keys, where)
            # One query of the source: two could return different records.
            both = rows.join(asked, keys, "full_outer").withColumn(
                _IS_PRESENT, expr(f"coalesce({_IS_PRESENT}, false)")
            )
            yield replace(batch, rows=both, present=_IS_PRESENT)

    def _missing(
        self, lake: Lake, rows: DataFrame, columns: Sequence[Column]
    ) -> list[dict[str, str]]:
        """Return the keys of the table's records of the slice that are not among the rows.

        Raises:
            SourceError: there are too many, or their keys have a type that cannot be looked up.
        """
        table = lake.catalog.find(self.stream.table)
        if table is None:
            return []
        description = describe_loaded(table)
        key = [column.name for column in columns if column.primary_key]
        names = self.stream.names.lake_names([*key, *(name for w in self.where for name in w)])
        stored = {name: description.by_name.get(names.get(name, name)) for name in key}
        if any(column is None or column.type.kind not in _KEYS for column in stored.values()):
            raise SourceError(
                f"Records of the stream {self.stream.name} cannot be looked up by keys of this "
                "type, so those that the source lacks stay in the table.",
                table=str(self.stream.table),
                hint=_READ_ALL,
            )
        conditions = []
        for record in self.where:
            cells = []
            for name, text in record.items():
                column = description.by_name.get(names.get(name, name))
                if column is None:
                    return []
                value = f"try_cast({literal(text)} AS {column.type.sql})"
                cells.append(f"{quote(column.name)} = {value}")
            conditions.append(f"({' AND '.join(cells)})")
        with frozen(table, lake.spark) as known:
            found = (
                lake.spark.table(known.sql)
                .where(PRESENT[description.mode])
                .where(" OR ".join(conditions))
                .select([col(quote(names.get(name, name))).alias(name) for name in key])
            )
            missed = found.join(select(rows, map(quote, key)), key, "left_anti")
            texts = select(
                missed.limit(_MOST_MISSING + 1),
                (f"CAST({quote(name)} AS STRING) AS {quote(name)}" for name in key),
            )
            missing = [row.asDict() for row in texts.collect()]
        if len(missing) > _MOST_MISSING:
            raise SourceError(
                f"The source lacks more than {_MOST_MISSING:,} records of this slice. Nothing was "
                "deleted.",
                table=str(self.stream.table),
                hint=f"Check the slice. {_READ_ALL}",
            )
        return missing


def _asked(lake: Lake, rows: DataFrame, keys: Sequence[str], where: Where) -> DataFrame:
    """Return the keys of records that were asked for, with the types of the rows."""
    types = {item.name: item.dataType.simpleString() for item in rows.schema.fields}
    texts = [[record[name] for name in keys] for record in where]
    given = lake.spark.createDataFrame(texts, ", ".join(f"{quote(name)} string" for name in keys))
    return select(
        given, (f"CAST({quote(name)} AS {types[name]}) AS {quote(name)}" for name in keys)
    ).distinct()
