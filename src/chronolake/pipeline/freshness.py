"""How fresh tables are, what their streams can see, and whether they kept what they promise.

All of it comes from the tables' own properties, the operational store, and the folders of landed
files: no source is asked, and no Spark is started.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from chronolake.errors import SourceError
from chronolake.landing import ObjectFolder
from chronolake.pipeline.properties import LAKE_PROPERTY, SIGHT_PROPERTY, WATERMARK_PROPERTY
from chronolake.pipeline.run_history import behind_seconds, last_runs, verified
from chronolake.types import STREAM_PROPERTY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chronolake.config import LakeConfig
    from chronolake.inspect.catalog import LookedUp
    from chronolake.pipeline.run_history import LastRuns
    from chronolake.pipeline.runs import StreamRun, Verified
    from chronolake.types import TableName


@dataclass(frozen=True)
class Waiting:
    """Files that have landed and are not in their table yet: their number, and their bytes."""

    files: int
    bytes: int


@dataclass(frozen=True)
class Filled:
    """What a table says of the stream that fills it, published with its rows.

    Attributes:
        name: which table.
        stream: `pipeline/stream`; None: no pipeline fills it.
        capture_method: what the stream can see of its source (`source.offered.Sight`), or None.
        folder: where the files lie that it is made of, or None.
        watermark: the last of them that is in it, or None.
    """

    name: TableName
    stream: str | None = None
    capture_method: str | None = None
    folder: str | None = None
    watermark: str | None = None

    @classmethod
    def of(cls, table: LookedUp) -> Self:
        """What a table says."""
        reported = table.table.properties
        names = (STREAM_PROPERTY, SIGHT_PROPERTY, LAKE_PROPERTY, WATERMARK_PROPERTY)
        return cls(table.name, *(reported.get(name) for name in names))


@dataclass(frozen=True)
class Freshness:
    """What is known of a table beside its rows.

    Attributes:
        filled: what the table itself says.
        pipeline: the pipeline that fills it; None: none does.
        stream: the stream of that pipeline, or None.
        fresh_as_of: when the last run began that succeeded: the table has all that its source had
            then. None: there was none, or nobody knows.
        behind_seconds: how long ago that is, or None.
        waiting: files that have landed and are not in the table; None: they cannot be seen now.
        last: what became of the stream when it last ran, or None.
        verified: what `chronolake verify` found last, or None.
    """

    filled: Filled
    pipeline: str | None = None
    stream: str | None = None
    fresh_as_of: str | None = None
    behind_seconds: float | None = None
    waiting: Waiting | None = None
    last: StreamRun | None = None
    verified: Verified | None = None


def freshness(
    config: LakeConfig, tables: Iterable[Filled], *, with_waiting: bool = True
) -> dict[TableName, Freshness]:
    """How fresh tables are.

    Args:
        config: the lake.
        tables: what tables say of themselves; it holds until they are published again.
        with_waiting: whether folders of landed files are listed, some for each table.

    Raises:
        LakeError: the operational store does not answer.
    """
    # Names may hold slashes: only both together tell which stream is meant.
    lately = {"/".join(key): (key, last) for key, last in last_runs(config).items()}
    checked = verified(config)
    return {
        table.name: _freshness(table, lately, checked.get(str(table.name)), with_waiting)
        for table in tables
    }


def waiting_in(folder: ObjectFolder, watermark: str | None) -> Waiting:
    """What waits in a folder behind a watermark (`ObjectFolder.files`).

    Raises:
        SourceError: the folder cannot be read.
    """
    files = folder.files(after=watermark)
    return Waiting(len(files), sum(file.size for file in files))


def _freshness(
    table: Filled,
    lately: dict[str, tuple[tuple[str, str], LastRuns]],
    checked: Verified | None,
    with_waiting: bool,  # noqa: FBT001 - as its caller was told
) -> Freshness:
    if table.stream is None:
        return Freshness(table, verified=checked)
    pipeline, _, stream = table.stream.partition("/")
    (pipeline, stream), found = lately.get(table.stream, ((pipeline, stream), None))
    fresh = None if found is None else found.fresh_as_of
    return Freshness(
        table,
        pipeline,
        stream,
        fresh,
        behind_seconds(fresh),
        _waiting(table) if with_waiting else None,
        None if found is None else found.last,
        checked,
    )


def _waiting(table: Filled) -> Waiting | None:
    folder = None if table.folder is None else ObjectFolder.at(Path(table.folder))
    if folder is None or not folder.path.is_dir():
        return None
    try:
        return waiting_in(folder, table.watermark)
    except SourceError:
        # It has just gone away, or may not be read by who looks.
        return None
