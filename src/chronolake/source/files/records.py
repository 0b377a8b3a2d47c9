"""Files with records or events: each file is read once.

A row is a version of the record that its key identifies, at the time in a column, in the file's
path, or of the file. Without a key, each row is an event of its own. The offset of a stream lists
the files that have landed, with a fingerprint of each. A file that has changed is read again.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import structlog

from chronolake.change_set import DELETED_AT, MODIFIED, PROVIDES_DATA, PURGED_AT, RESERVED, SEQUENCE
from chronolake.config import FileFormat
from chronolake.errors import SourceError
from chronolake.formatting import format_count
from chronolake.source.files.file_list import fingerprint
from chronolake.source.files.path_template import PathTemplate
from chronolake.source.files.sftp import list_source, stage
from chronolake.source.protocol import (
    CaptureMethod,
    ChangeBatch,
    CheckResult,
    DeclaredColumns,
    Level,
    StreamDescriptor,
    StreamFailure,
    raw_folder,
)
from chronolake.stream_modes import StreamCapabilities
from chronolake.types import Column, ColumnType, Kind, literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from chronolake.config import FilesSource, Project
    from chronolake.lake import Lake
    from chronolake.source.files.file_list import SourceFile
    from chronolake.source.files.formats import FileReader
    from chronolake.source.protocol import Offset

log = structlog.get_logger(__name__)

#: The key of events: a row's file, and its number in it.
EVENT_KEY: Final = ("source_file", "source_row")
#: Files that land together, at most, and their bytes.
_MOST_FILES: Final = 1_000
_MOST_BYTES: Final = 8 * 2**30
_NUMBER: Final = f"{RESERVED}file_number"
_NAME: Final = f"{RESERVED}file"
_TIME: Final = f"{RESERVED}file_time"
_LOCATION: Final = f"{RESERVED}location"


class RecordFiles:
    """The files of a folder or bucket, as records or events."""

    def __init__(self, project: Project, pipeline: str, config: FilesSource) -> None:
        self._project = project
        self._pipeline = pipeline
        self._config = config

    def discover(self) -> list[StreamDescriptor]:
        """Return the streams of the files."""
        return [
            StreamDescriptor(
                StreamCapabilities(name, reports_changes=True),
                CaptureMethod.OBSERVED_CHANGES,
                1,
                raw_folder(self._project, self._pipeline, name),
                is_ours=True,
                key=self._key,
                cursor=self._config.modified,
                has_all_columns=False,
            )
            for name in self._names
        ]

    def check(
        self,
        *,
        create: bool,  # noqa: ARG002 - there is nothing to create
        positions: Mapping[str, Offset] | None = None,  # noqa: ARG002 - files do not depend on them
    ) -> list[CheckResult]:
        """Check that the folder exists, and has matching files."""
        count = sum(map(len, self._files.values()))
        where = self._config.path
        if not count:
            fix = "Correct source.path in chronolake.yml, unless they are still to come."
            return [CheckResult(where, Level.WARNING, "matches no files", fix=fix)]
        return [CheckResult(where, Level.OK, f"matches {format_count(count, 'file')}")]

    def read(
        self, lake: Lake, positions: Mapping[str, Offset | None], *, full_refresh: bool
    ) -> Iterator[ChangeBatch | StreamFailure]:
        """Read the new and changed files of each stream; on a full refresh, all files."""
        for name, offset in positions.items():
            try:
                yield from self._read_stream(lake, name, offset or {}, full_refresh=full_refresh)
            except SourceError as failure:
                yield StreamFailure(name, failure)

    def acknowledge(self, positions: Mapping[str, Offset]) -> None:
        """Do nothing: files are not deleted in the source."""

    @property
    def _key(self) -> tuple[str, ...]:
        return tuple(self._config.key or EVENT_KEY)

    @property
    def _is_hidden(self) -> bool:
        return self._project.pipelines[self._pipeline].hides_values

    @cached_property
    def _template(self) -> PathTemplate:
        place = f"{self._project.file}: pipelines.{self._pipeline}.source.path"
        found = PathTemplate(self._config.path, self._config.time_zone, place)
        # Placeholders that are not valid raise.
        _ = found.pattern
        return found

    @cached_property
    def _names(self) -> list[str]:
        if self._template.has_stream:
            return sorted(self._files)
        return [self._config.stream or self._template.default_stream or self._pipeline]

    @cached_property
    def _files(self) -> dict[str, list[tuple[int, SourceFile]]]:
        """Return the files of each stream with their times, in the order in which they are read."""
        config, template = self._config, self._template
        storage = config.storage or self._project.lake.object_storage
        default = config.stream or template.default_stream or self._pipeline
        found: dict[str, list[tuple[int, SourceFile]]] = {}
        for file in list_source(template.root, self._project.file.parent, config, storage):
            match = template.match(file.name)
            if match is not None:
                at = file.modified_micros if match.at_micros is None else match.at_micros
                found.setdefault(match.stream or default, []).append((at, file))
        if not found:
            log.warning("no_files_match", pipeline=self._pipeline, path=config.path)
        for files in found.values():
            files.sort(key=lambda item: (item[0], item[1].name))
        return found

    def _read_stream(
        self, lake: Lake, name: str, offset: Offset, *, full_refresh: bool
    ) -> Iterator[ChangeBatch]:
        listed = self._files.get(name, [])
        prints = {file.name: fingerprint([file]) for _, file in listed}
        known = {} if full_refresh else offset.get("files", {})
        # Files that were removed are forgotten: the offset is not longer than the list of files.
        landed = {file: known[file] for file in prints if file in known}
        pending = [item for item in listed if landed.get(item[1].name) != prints[item[1].name]]
        number = int(offset.get("read", 0))
        reader = self._reader(lake, name) if pending else None
        batches = list(_batches(pending))
        columns: set[str] = set()
        for batch_number, files in enumerate(batches, 1):
            assert reader is not None  # noqa: S101 - there are files
            is_changed = any(file.name in landed for _, file in files)
            landed |= {file.name: prints[file.name] for _, file in files}
            position = {"files": dict(landed), "read": number + len(files)}
            listed_files = [file for _, file in files]
            with stage(listed_files, self._config.sftp, lake, is_hidden=self._is_hidden) as local:
                times = [at for at, _ in files]
                dated = list(zip(times, local, strict=True))
                batch = self._read_files(reader, name, dated, position, is_changed=is_changed)
                columns |= {column.name for column in batch.columns}
                # Each line of JSON has its own fields, but other files have columns.
                has_columns = reader.format is not FileFormat.JSON_LINES
                if has_columns and batch_number == len(batches):
                    batch = replace(batch, declared=DeclaredColumns(frozenset(columns)))
                yield batch
            number += len(files)

    def _reader(self, lake: Lake, name: str) -> FileReader:
        from chronolake.source.files.formats import (  # noqa: PLC0415 - loads Spark
            FileReader,
            format_of,
        )

        _, first = self._files[name][0]
        path = first.name if self._config.path.endswith(("*", "/")) else self._config.path
        found = format_of(path, self._config, place=self._template.place)
        storage = self._config.storage or self._project.lake.object_storage
        return FileReader(lake.spark, found, self._config, storage)

    def _read_files(
        self,
        reader: FileReader,
        name: str,
        files: Sequence[tuple[int, SourceFile]],
        position: Offset,
        *,
        is_changed: bool,
    ) -> ChangeBatch:
        from pyspark.sql.functions import broadcast  # noqa: PLC0415 - slow to import

        from chronolake.frames import select  # noqa: PLC0415 - loads Spark
        from chronolake.source.files.formats import FILE, ROW  # noqa: PLC0415

        config = self._config
        rows, columns = reader.read_places([file for _, file in files], config.key or ())
        # Rows of a file that is read later win.
        number = position["read"] - len(files)
        places = reader.spark.createDataFrame(
            pa.table(
                {
                    _LOCATION: [str(file.path) for _, file in files],
                    _NAME: [file.name for _, file in files],
                    _NUMBER: [number + count for count in range(len(files))],
                    _TIME: pa.array([at for at, _ in files], pa.int64()),
                }
            )
        )
        placed = rows.join(broadcast(places), rows[FILE] == places[_LOCATION])
        by_name = {column.name: column for column in columns}
        data = [column for column in columns if column.name != config.deleted]
        keys = set(config.key or ())
        cells = [
            f"coalesce({quote(column.name)}, {_missing(column.name)}) AS {quote(column.name)}"
            if column.name in keys
            else quote(column.name)
            for column in data
        ]
        if config.key is None:
            for event_column in EVENT_KEY:
                if event_column in by_name:
                    raise SourceError(
                        f"The files have a column {event_column}, which identifies events.",
                        file=config.path,
                        hint="Set `key`, or rename the column in the files.",
                    )
            data = [
                Column(EVENT_KEY[0], ColumnType(Kind.STRING), primary_key=True),
                Column(EVENT_KEY[1], ColumnType(Kind.LONG), primary_key=True),
                *data,
            ]
            cells = [f"{_NAME} AS {EVENT_KEY[0]}", f"{ROW} AS {EVENT_KEY[1]}", *cells]
        at = self._micros(by_name)
        deleted = "false"
        if config.deleted is not None and config.deleted in by_name:
            deleted = _is_marked(config.deleted)
        versions = select(
            placed,
            [
                *cells,
                f"{at} AS {MODIFIED}",
                f"concat(lpad(hex({_NUMBER}), 8, '0'), lpad(hex({ROW}), 12, '0')) AS {SEQUENCE}",
                f"IF({deleted}, {at}, NULL) AS {DELETED_AT}",
                f"CAST(NULL AS BIGINT) AS {PURGED_AT}",
                f"NOT {deleted} AS {PROVIDES_DATA}",
            ],
        )
        # A row without a time of its own has the time of its file, also if only others changed.
        is_undated = config.modified is None and not self._template.formats
        may_repeat = is_changed and is_undated and config.key is not None
        return ChangeBatch(name, versions, data, position, may_repeat=may_repeat)

    def _micros(self, columns: Mapping[str, Column]) -> str:
        """Return SQL for the time of a row in microseconds since 1970."""
        from chronolake.source.files.formats import micros_of  # noqa: PLC0415 - loads Spark

        modified = self._config.modified
        if modified is None:
            return _TIME
        self._expect_column(modified, columns)
        found = micros_of(columns[modified], self._config.time_zone)
        return f"coalesce({found}, {_missing(modified)})"

    def _expect_column(self, name: str, columns: Mapping[str, Column]) -> None:
        if name not in columns:
            raise SourceError(
                f"The files have no column {name}.",
                file=self._config.path,
                hint=f"Their columns are {', '.join(columns)}.",
            )


def _missing(column: str) -> str:
    """Return SQL that raises an error for a row without a value, with its file and number."""
    return _row_error(f"A row has no {column}")


def _is_marked(column: str) -> str:
    """Return SQL for whether a column marks a row's record as deleted."""
    from chronolake.source.files.formats import UNCLEAR_MARK, marks_of  # noqa: PLC0415

    return marks_of(column, error=_row_error(UNCLEAR_MARK.format(column=column)))


def _row_error(problem: str) -> str:
    """Return SQL that raises an error about a row, with its file and number."""
    from chronolake.source.files.formats import ROW  # noqa: PLC0415 - loads Spark

    begin, place = literal(f"{problem}: row "), literal(" of the file ")
    return f"raise_error(concat({begin}, {ROW} + 1, {place}, {_NAME}, '.'))"


def _batches(
    files: Sequence[tuple[int, SourceFile]],
) -> Iterator[list[tuple[int, SourceFile]]]:
    """Yield the files that land together."""
    batch: list[tuple[int, Any]] = []
    size = 0
    for at, file in files:
        if batch and (len(batch) == _MOST_FILES or size + file.size > _MOST_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((at, file))
        size += file.size
    if batch:
        yield batch
