"""What a pipeline consists of: the streams of its source, and how each is kept."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from chronolake.config import OnPurge, StreamConfig
from chronolake.errors import ConfigurationError, TableExistsError
from chronolake.limits import StreamTraits, check_mode
from chronolake.rawlake import ObjectFolder, objects_of
from chronolake.types import EPSILON_MICROS, Mode, TableName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chronolake.config import PipelineConfig, Project


class Sight(StrEnum):
    """What a stream can see of the changes in its source."""

    #: Every change, from a log.
    EVERY_CHANGE = "every-change"
    #: The state at each look: what changed back and forth between two looks is not seen.
    OBSERVED_CHANGES = "observed-changes"
    #: What differs between two complete reads.
    SNAPSHOT_DIFF = "snapshot-diff"


@dataclass(frozen=True)
class Stream:
    """One stream of a pipeline, and the table that it fills.

    Attributes:
        pipeline: the pipeline's name.
        name: the stream's name in the source.
        table: the table.
        mode: the mode that the configuration wants.
        keep_source_timestamp: whether a history table keeps the source's own time as a column.
        sight: what the stream can see.
        epsilon_micros: microseconds between versions of a record.
        on_purge: what becomes of a record whose data the source has forgotten.
        folder: the stream's record versions.
    """

    pipeline: str
    name: str
    table: TableName
    mode: Mode
    keep_source_timestamp: bool
    sight: Sight
    epsilon_micros: int
    on_purge: OnPurge
    folder: ObjectFolder

    @property
    def identity(self) -> str:
        """The stream as tables know it."""
        return f"{self.pipeline}/{self.name}"


def pipeline_of(project: Project, name: str) -> PipelineConfig:
    """A pipeline of a project.

    Raises:
        ConfigurationError: there is none of that name.
    """
    if name in project.pipelines:
        return project.pipelines[name]
    near = difflib.get_close_matches(name, project.pipelines, n=1)
    known = ", ".join(project.pipelines) or "none"
    raise ConfigurationError(
        f"{project.file} has no pipeline {name!r}.",
        hint=f"Did you mean {near[0]!r}?" if near else f"It has: {known}.",
    )


def streams_of(project: Project, pipeline: str) -> list[Stream]:
    """The streams of a pipeline.

    Raises:
        ConfigurationError: there is no such pipeline, a stream that is configured is none of the
            source's, cannot have its mode, or shares its table with another.
        SourceError: the source cannot be read.
    """
    config = pipeline_of(project, pipeline)
    root = (project.file.parent / Path(config.source.path).expanduser()).resolve()
    there = objects_of(root, config.source.org)
    names = there if config.source.objects is None else list(dict.fromkeys(config.source.objects))
    for name in names:
        # Nothing may have been written for an object yet; but one that is nearly there is a slip.
        near = difflib.get_close_matches(name, set(there) - set(names), n=1, cutoff=0.8)
        if name not in there and near:
            raise ConfigurationError(
                f"{project.file}: pipelines.{pipeline}.source.objects: the source has no object "
                f"{name!r}.",
                hint=f"Did you mean {near[0]!r}?",
            )
    for name in config.streams:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            raise ConfigurationError(
                f"{project.file}: pipelines.{pipeline}.streams.{name}: the source has no such "
                "stream.",
                hint=f"Did you mean {near[0]!r}?" if near else f"It has: {', '.join(names)}.",
            )
    streams = [
        _stream(project, pipeline, name, ObjectFolder(root, config.source.org, name))
        for name in names
    ]
    tables: dict[TableName, str] = {}
    for stream in streams:
        if (other := tables.setdefault(stream.table, stream.name)) != stream.name:
            raise ConfigurationError(
                f"{project.file}: the streams {other} and {stream.name} of {pipeline} have one "
                f"table, {stream.table}.",
                hint=f"Give one of them another: pipelines.{pipeline}.streams.{other}.table.",
            )
    return streams


def expect_filled_by(stream: Stream, owner: str | None) -> None:
    """Refuse a table that another stream fills, or none.

    Args:
        stream: the stream that the table is meant for.
        owner: the `pipeline/stream` that fills it, or None.

    Raises:
        TableExistsError: it is not the stream's.
    """
    if owner == stream.identity:
        return
    whose = f"it is filled by {owner}" if owner else "no pipeline fills it"
    raise TableExistsError(
        f"The stream {stream.identity} cannot fill the table: {whose}.",
        table=str(stream.table),
        hint="Give the stream another table: "
        f"pipelines.{stream.pipeline}.streams.{stream.name}.table.",
    )


def chosen(streams: Sequence[Stream], pipeline: str, names: Sequence[str]) -> list[Stream]:
    """Those of a pipeline's streams that are named, or all if none is.

    Raises:
        ConfigurationError: one that is named is not there.
    """
    by_name = {stream.name: stream for stream in streams}
    for name in names:
        if name not in by_name:
            raise ConfigurationError(
                f"The pipeline {pipeline} has no stream {name!r}.",
                hint=f"It has: {', '.join(by_name) or 'none'}.",
            )
    return [by_name[name] for name in dict.fromkeys(names)] or list(streams)


def _stream(project: Project, pipeline: str, name: str, folder: ObjectFolder) -> Stream:
    config = project.pipelines[pipeline]
    own = config.streams.get(name, StreamConfig())
    mode = own.mode or config.mode
    # Each version of a Data Lake v2 has its time.
    check_mode(StreamTraits(name, tells_changes=True, is_reimported=False), mode)
    kept = own.keep_source_timestamp
    return Stream(
        pipeline=pipeline,
        name=name,
        table=TableName(config.target_schema or pipeline, own.table or name),
        mode=mode,
        keep_source_timestamp=config.keep_source_timestamp if kept is None else kept,
        # A backup looks at its source now and then.
        sight=Sight.OBSERVED_CHANGES,
        epsilon_micros=EPSILON_MICROS,
        on_purge=own.on_purge or config.on_purge,
        folder=folder,
    )
