"""An existing table of versions (SCD type 2): dbt snapshots, Fivetran's history mode, AUTO CDC.

Each row is a version of a record, with the times from which and up to which it was valid. The
record was deleted where one version ends before the next one begins.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog

from chronolake.change_set import DELETED_AT, MODIFIED, PROVIDES_DATA, PURGED_AT, RESERVED, SEQUENCE
from chronolake.config import FileFormat
from chronolake.errors import SourceError
from chronolake.landing import ColumnRules
from chronolake.source.files.delta_versions import newest_version
from chronolake.source.files.file_list import fingerprint, root_of
from chronolake.source.files.iceberg_snapshots import (
    read_state,
    state_in_catalog,
    state_in_folder,
)
from chronolake.source.files.path_template import PathTemplate
from chronolake.source.files.sftp import list_source, stage
from chronolake.source.protocol import (
    CaptureMethod,
    ChangeBatch,
    StreamDescriptor,
    StreamFailure,
    raw_folder,
)
from chronolake.stream_modes import StreamCapabilities
from chronolake.types import EPSILON_MICROS, literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from chronolake.config import HistorySource, Project
    from chronolake.lake import Lake
    from chronolake.source.files.file_list import SourceFile
    from chronolake.source.protocol import Offset
    from chronolake.types import Column

log = structlog.get_logger(__name__)

_METADATA: Final = ".metadata.json"
_SYSTEM_PREFIXES: Final = ("_fivetran_",)
_SYSTEM_COLUMNS: Final = frozenset(
    ("dbt_scd_id", "dbt_valid_from", "dbt_valid_to", "dbt_updated_at", "dbt_is_deleted")
)
_BEGIN: Final = f"{RESERVED}begin"
_FINISH: Final = f"{RESERVED}finish"
_NEXT: Final = f"{RESERVED}next"
#: The begin of the year 9999, in microseconds since 1970: versions that end later are active.
_FOREVER: Final = 253_370_764_800_000_000


class HistoryTable:
    """The versions of a table, as files or as an Iceberg table."""

    def __init__(self, project: Project, pipeline: str, config: HistorySource) -> None:
        self._project = project
        self._pipeline = pipeline
        self._config = config

    def discover(self) -> list[StreamDescriptor]:
        """Return the stream with the table's versions."""
        name = self._config.stream
        return [
            StreamDescriptor(
                StreamCapabilities(name, reports_changes=True, is_history_only=True),
                CaptureMethod.OBSERVED_CHANGES,
                self._epsilon,
                raw_folder(self._project, self._pipeline, name),
                is_ours=True,
                key=tuple(self._config.key),
            )
        ]

    def read(
        self, lake: Lake, positions: Mapping[str, Offset | None], *, full_refresh: bool
    ) -> Iterator[ChangeBatch | StreamFailure]:
        """Read all versions, if the table has changed since it was read."""
        for name, stored in positions.items():
            try:
                files = self._files()
                found = fingerprint(files)
                before = stored or {}
                if found != before.get("fingerprint") or full_refresh:
                    reads = before.get("reads", 0) + 1
                    position = {"fingerprint": found, "reads": reads}
                    hides = self._project.pipelines[self._pipeline].hides_values
                    with stage(files, self._config.sftp, lake, is_hidden=hides) as local:
                        yield self._read(lake, name, local, position)
            except SourceError as failure:
                yield StreamFailure(name, failure)

    def acknowledge(self, positions: Mapping[str, Offset]) -> None:
        """Do nothing: the table belongs to another program."""

    @property
    def _epsilon(self) -> int:
        """Return the distance of two versions: Fivetran writes ends with milliseconds."""
        return EPSILON_MICROS if self._config.end.startswith("_fivetran_") else 1

    def _files(self) -> list[SourceFile]:
        config = self._config
        if config.table is not None:
            return [state_in_catalog(self._project.lake, config, config.table).current()]
        assert config.path is not None  # noqa: S101 - the configuration is checked
        storage = config.storage or self._project.lake.object_storage
        base = self._project.file.parent
        if config.path.endswith(_METADATA):
            return [read_state(root_of(config.path, base, storage)).current()]
        if config.format is FileFormat.ICEBERG:
            return [state_in_folder(root_of(config.path, base, storage)).current()]
        if config.format is FileFormat.DELTA:
            return [newest_version(root_of(config.path, base, storage))]
        place = f"{self._project.file}: pipelines.{self._pipeline}.source.path"
        template = PathTemplate(config.path.rstrip("/"), config.time_zone, place)
        listed = list_source(template.root, base, config, storage)
        files = [file for file in listed if template.match(file.name) is not None]
        if not files:
            raise SourceError(
                "No file matches the path.",
                file=config.path,
                hint="Check `path`: a file, a folder, a path with *, or the metadata file of an "
                "Iceberg table. For the folder of a table, set `format` to iceberg or delta.",
            )
        return sorted(files, key=lambda file: file.name)

    def _read(
        self, lake: Lake, name: str, files: Sequence[SourceFile], position: Offset
    ) -> ChangeBatch:
        rows, columns = self._rows(lake, files)
        data = [column for column in columns if not self._is_excluded(column.name)]
        versions = self._intervals(rows, {column.name: column for column in columns})
        rules = ColumnRules.of(self._project.pipelines[self._pipeline], name)
        is_hidden = any(rules.rule_of(column) is not None for column in self._config.key)
        _expect_intervals(versions, self._config, files[0], has_example=not is_hidden)
        gap = f"({_NEXT} IS NULL OR {_NEXT} - {_FINISH} > {EPSILON_MICROS}L)"
        found = versions.selectExpr(
            *(quote(column.name) for column in data),
            f"{_BEGIN} AS {MODIFIED}",
            f"{literal(format(position['reads'], '08x'))} AS {SEQUENCE}",
            f"IF({gap}, {_FINISH}, NULL) AS {DELETED_AT}",
            f"CAST(NULL AS BIGINT) AS {PURGED_AT}",
            f"true AS {PROVIDES_DATA}",
        )
        return ChangeBatch(name, found, data, position)

    def _rows(self, lake: Lake, files: Sequence[SourceFile]) -> tuple[DataFrame, list[Column]]:
        from chronolake.source.files.formats import (  # noqa: PLC0415 - loads Spark
            FileReader,
            format_of,
        )

        config = self._config
        place = f"{self._project.file}: pipelines.{self._pipeline}.source.path"
        if config.location.endswith(_METADATA):
            found = FileFormat.ICEBERG
        else:
            found = format_of(files[0].name, config, place=place)
        storage = config.storage or self._project.lake.object_storage
        return FileReader(lake.spark, found, config, storage).read(files, config.key)

    def _is_excluded(self, name: str) -> bool:
        config = self._config
        given = {config.start, config.end, config.deleted, *config.exclude}
        is_system = name in _SYSTEM_COLUMNS or name.startswith(_SYSTEM_PREFIXES)
        return name not in config.key and (name in given or is_system)

    def _intervals(self, rows: DataFrame, columns: Mapping[str, Column]) -> DataFrame:
        """Return versions with their times in microseconds, and the start of the next version."""
        from chronolake.source.files.formats import (  # noqa: PLC0415 - loads Spark
            UNCLEAR_MARK,
            marks_of,
            micros_of,
        )

        config = self._config
        named = [config.start, config.end, *([config.deleted] if config.deleted else [])]
        missing = [name for name in named if name not in columns]
        if missing:
            raise SourceError(
                f"The table has no column {', '.join(missing)}.",
                file=config.location,
                hint=f"Its columns are {', '.join(columns)}.",
            )
        if config.deleted is not None:
            unclear = literal(f"{UNCLEAR_MARK.format(column=config.deleted)}.")
            is_deleted = marks_of(config.deleted, error=f"raise_error({unclear})")
            rows = rows.where(f"NOT ({is_deleted})")
        begin, finish = (
            micros_of(columns[name], config.time_zone) for name in (config.start, config.end)
        )
        record = ", ".join(map(quote, config.key))
        timed = rows.selectExpr("*", f"{begin} AS {_BEGIN}", f"{finish} AS {RESERVED}end")
        return timed.selectExpr(
            "*",
            f"IF({RESERVED}end >= {_FOREVER}L, NULL, {RESERVED}end) AS {_FINISH}",
            f"lead({_BEGIN}) OVER (PARTITION BY {record} ORDER BY {_BEGIN}) AS {_NEXT}",
        )


def _expect_intervals(
    versions: DataFrame, config: HistorySource, file: SourceFile, *, has_example: bool
) -> None:
    """Raise unless the versions of each record follow each other.

    Args:
        versions: the versions with their times.
        config: the source.
        file: a file with versions, for the error.
        has_example: whether the error contains the key of a record.

    Raises:
        SourceError: a version has no start, ends before it starts, or overlaps the next one.
    """
    key = ", ".join(f"CAST({quote(name)} AS STRING)" for name in config.key)
    is_keyless = " OR ".join(f"{quote(name)} IS NULL" for name in config.key)
    flaws = {
        "have no key": is_keyless,
        f"have no {config.start}": f"{_BEGIN} IS NULL",
        f"end before they start ({config.end} is before {config.start})": f"{_FINISH} < {_BEGIN}",
        "overlap the next version of their record": f"{_NEXT} IS NOT NULL AND "
        f"({_FINISH} IS NULL OR {_FINISH} > {_NEXT} OR {_BEGIN} = {_NEXT})",
    }
    found = []
    for number, flaw in enumerate(flaws.values()):
        is_flawed = f"coalesce({flaw}, false)"
        found += [
            f"count_if({is_flawed}) AS count{number}",
            f"min(IF({is_flawed}, concat_ws(', ', {key}), NULL)) AS example{number}",
        ]
    (row,) = versions.selectExpr(*found).collect()
    for number, flaw in enumerate(flaws):
        if row[f"count{number}"]:
            names = ", ".join(config.key)
            example = row[f"example{number}"]
            such = f", such as one of {names} = {example}" if example and has_example else ""
            raise SourceError(
                f"{row[f'count{number}']:,} versions {flaw}{such}.",
                file=str(file.path),
                hint="Correct the table, or check `key`, `start` and `end`. Nothing was imported.",
            )
