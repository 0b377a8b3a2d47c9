"""What is kept of a run: how it went, and how each of its streams did."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum


class Status(StrEnum):
    """What became of a run, or of one of its streams."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    PARTIAL = "partial"
    FAILED = "failed"
    #: It runs as far as the store knows, and its process is gone. Never stored.
    DEAD = "dead"
    #: A word that this version does not know stands in the store. Never stored.
    UNKNOWN = "not known"


class Stage(StrEnum):
    """What a running stream does."""

    #: Other streams of the run come first.
    WAITING = "waiting"
    #: What its source has is read, and lands in our own raw lake.
    LANDING = "landing"
    #: What has landed is brought into its table.
    APPLYING = "applying"


@dataclass(frozen=True)
class Run:
    """One run of a pipeline.

    Attributes:
        id: its identity.
        pipeline: which pipeline.
        began: when, ISO 8601 in UTC.
        ended: when, or None.
        status: what became of it.
        holder: the process, as host and number.
        error: what kept it as a whole from going on, or None.
        hint: what to do about that, or None.
    """

    id: str
    pipeline: str
    began: str
    ended: str | None
    status: Status
    holder: str
    error: str | None = None
    hint: str | None = None


@dataclass(frozen=True)
class StreamRun:
    """One stream in one run.

    Attributes:
        run: the run's identity.
        stream: which stream.
        table_name: the table that it fills.
        status: what became of it.
        files: files that were applied.
        bytes: their size.
        rows: their rows, duplicates included.
        written: rows of the table that are new or changed.
        seconds: how long it took.
        position: how far the table has come in its source, or None.
        error: why it failed and where, or None.
        hint: what to do about that, or None.
        stage: what it does; None: it has ended.
        rows_read: rows that the source gave, as far as that is known, or None.
        landed_files: files that have landed in our own raw lake; None: somebody else writes it.
        landed_bytes: their size, or None.
        landed_rows: their rows, or None.
        files_left: files that are still to be applied; None: it has not come so far.
        bytes_left: their size, or None.
        position_before: how far the table was before the run, or None.
        state_before: how far the stream was in its source before the run, as JSON
            (`statediff.kept`), or None.
        state_after: the same after it, or None.
    """

    run: str
    stream: str
    table_name: str
    status: Status
    files: int = 0
    bytes: int = 0
    rows: int = 0
    written: int = 0
    seconds: float = 0.0
    position: str | None = None
    error: str | None = None
    hint: str | None = None
    stage: Stage | None = None
    rows_read: int | None = None
    landed_files: int | None = None
    landed_bytes: int | None = None
    landed_rows: int | None = None
    files_left: int | None = None
    bytes_left: int | None = None
    position_before: str | None = None
    state_before: str | None = None
    state_after: str | None = None


@dataclass(frozen=True)
class Verified:
    """What `chronolake verify` found last of a table.

    Attributes:
        table_name: which table.
        at: when it was looked at, ISO 8601 in UTC.
        holds: whether all promises held.
        rows: how many rows were looked at.
        against_lake: whether it was also compared with its raw lake.
        broken: the promises that were broken, one a line, or None; no values of rows.
    """

    table_name: str
    at: str
    holds: bool
    rows: int
    against_lake: bool
    broken: str | None = None


def now() -> str:
    """The time as ISO 8601 in UTC, with milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
