"""Dated copies of tables: each copy is compared with the one before it.

Which copies there are is found without Spark. The offset of a stream lists the copies that have
landed, with a fingerprint of their files. A copy is read if it is new, if its files have changed
since it was read, or if it was being read when a run ended.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import structlog

from chronolake.config import VERSIONED, CopiesTable, FileFormat
from chronolake.errors import ConfigurationError, SourceError
from chronolake.instants import datetime_of
from chronolake.source.files.delta_versions import list_versions
from chronolake.source.files.file_list import fingerprint, root_of
from chronolake.source.files.iceberg_snapshots import state_in_catalog, state_in_folder
from chronolake.source.files.path_template import PathTemplate
from chronolake.source.files.sftp import list_source, stage
from chronolake.source.protocol import (
    COPY,
    CaptureMethod,
    ChangeBatch,
    CheckResult,
    CopiesLanded,
    CopyBatch,
    CopyRejected,
    DatedCopy,
    Level,
    StreamDescriptor,
    StreamFailure,
    raw_folder,
)
from chronolake.stream_modes import StreamCapabilities
from chronolake.types import EPSILON_MICROS, TableName, now_micros

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from chronolake.config import CopiesSource, Project
    from chronolake.lake import Lake
    from chronolake.landing import ObjectFolder
    from chronolake.source.files.file_list import SourceFile
    from chronolake.source.files.formats import FileReader
    from chronolake.source.protocol import Offset

log = structlog.get_logger(__name__)

#: Copies that are compared in one pass, at most, and the bytes of their files.
_MOST_COPIES: Final = 64
_MOST_BYTES: Final = 8 * 2**30
#: Copies named in an error.
_NAMED: Final = 3


@dataclass(frozen=True)
class Copy:
    """A copy as its files are listed.

    Attributes:
        at_micros: its time in microseconds since 1970.
        files: its files; none if they were removed before all of its differences have landed.
    """

    at_micros: int
    files: tuple[SourceFile, ...]

    @property
    def name(self) -> str:
        """Return the location of its file, or of the first of its files."""
        if not self.files:
            return f"the copy of {_date(self.at_micros)}, which does not exist any more"
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        return f"{min(self.files, key=lambda file: file.name).path}{more}"

    @property
    def size(self) -> int:
        """Return the size of its files in bytes."""
        return sum(file.size for file in self.files)

    @cached_property
    def fingerprint(self) -> str:
        """Return a text that changes if its files do."""
        return fingerprint(self.files)


@dataclass(frozen=True)
class LandedCopies:
    """The copies of a stream that have landed: its offset.

    Attributes:
        landed: fingerprint and number of rows by time; both are None while a copy lands.
        rejected: fingerprint, circumstances and reason of rejected copies by time. Without
            circumstances, the copy is read again in every run.
        landings: a number that increases with every attempt to land copies, also after the offset
            was lost: microseconds since 1970.
    """

    landed: Mapping[int, tuple[str | None, int | None]]
    rejected: Mapping[int, tuple[str, str, str]]
    landings: int

    @classmethod
    def of(cls, offset: Offset | None) -> LandedCopies:
        """Return the copies of an offset."""
        stored = offset or {}
        return cls(
            {int(at): (found[0], found[1]) for at, found in stored.get("copies", {}).items()},
            {int(at): tuple(found) for at, found in stored.get("rejected", {}).items()},
            stored.get("landings", 0),
        )

    @property
    def offset(self) -> Offset:
        """Return the copies as an offset."""
        return {
            "copies": {str(at): list(found) for at, found in sorted(self.landed.items())},
            "rejected": {str(at): list(found) for at, found in sorted(self.rejected.items())},
            "landings": self.landings,
        }


@dataclass(frozen=True)
class CopyPlan:
    """Copies that are read next.

    Attributes:
        copies: the copies by time.
        before_micros: the time of the last landed copy before them, or None.
        after_micros: the time of the first landed copy after them, or None.
    """

    copies: tuple[Copy, ...]
    before_micros: int | None
    after_micros: int | None


def plan_copies(
    listed: Sequence[Copy],
    state: LandedCopies,
    limits: str,
    *,
    again: frozenset[int] = frozenset(),
    refused: frozenset[int] = frozenset(),
    before: int | None = None,
) -> CopyPlan | None:
    """Return the copies that are read next, or None if there is nothing to read.

    Args:
        listed: the copies that there are, by time.
        state: the copies that have landed.
        limits: the source's settings that reject copies.
        again: times of copies that are read although they have not changed.
        refused: times of copies that were rejected in this run.
        before: a time before all copies as of which the table has rows, or None.
    """
    pending: list[Copy] = []
    size = 0
    by_time = {copy.at_micros: copy for copy in listed}
    for at in sorted({*state.landed, *by_time}):
        copy = by_time.get(at)
        known = at in state.landed
        is_pending = copy is not None and (
            at in again or not known or state.landed[at][0] != copy.fingerprint
        )
        if copy is None or not is_pending:
            if pending:
                return CopyPlan(tuple(pending), before, at)
            if copy is None and state.landed[at][0] is None:
                after = next((later for later in sorted(state.landed) if later > at), None)
                return CopyPlan((Copy(at, ()),), before, after)
            before = at
            continue
        last = pending[-1] if pending else None
        is_refused = at in refused or _is_rejected(copy, state, limits, before, last)
        if at not in again and is_refused:
            if known and pending:
                # It is still in the table, with its former content.
                return CopyPlan(tuple(pending), before, at)
            before = at if known else before
            continue
        if pending and (len(pending) == _MOST_COPIES or size + copy.size > _MOST_BYTES):
            after = next((later for later in sorted(state.landed) if later >= at), None)
            return CopyPlan(tuple(pending), before, after)
        pending.append(copy)
        size += copy.size
    return CopyPlan(tuple(pending), before, None) if pending else None


def _is_rejected(
    copy: Copy, state: LandedCopies, limits: str, before: int | None, last: Copy | None
) -> bool:
    """Return whether a copy was rejected under the same circumstances."""
    found = state.rejected.get(copy.at_micros)
    return found is not None and found[:2] == (
        copy.fingerprint,
        circumstances(state, limits, before, last),
    )


def circumstances(state: LandedCopies, limits: str, before: int | None, last: Copy | None) -> str:
    """Return a text that changes whenever a rejected copy may be accepted.

    Args:
        state: the copies that have landed.
        limits: the source's settings that reject copies.
        before: the time of the last landed copy before it.
        last: the last copy before it that is read with it.
    """
    compared = (
        (last.at_micros, last.fingerprint)
        if last is not None
        else (before, None if before is None else state.landed.get(before, (None,))[0])
    )
    return blake2b(repr((limits, compared)).encode(), digest_size=8).hexdigest()


class DatedCopies:
    """Dated copies of tables in a folder or bucket."""

    def __init__(self, project: Project, pipeline: str, config: CopiesSource) -> None:
        self._project = project
        self._pipeline = pipeline
        self._config = config
        self._positions: dict[str, Offset] = {}

    @property
    def _place(self) -> str:
        return f"{self._project.file}: pipelines.{self._pipeline}.source"

    def discover(self) -> list[StreamDescriptor]:
        """Return a stream for each table of which there are copies."""
        return [
            StreamDescriptor(
                StreamCapabilities(name, reports_changes=True, is_history_only=True),
                CaptureMethod.SNAPSHOT_DIFF,
                self._epsilon(name),
                self._folder(name),
                is_ours=True,
                key=tuple(self._key(name)),
            )
            for name in self._names
        ]

    def check(
        self,
        *,
        create: bool,  # noqa: ARG002 - there is nothing to create
        positions: Mapping[str, Offset] | None = None,  # noqa: ARG002 - files do not depend on them
    ) -> list[CheckResult]:
        """Check that the folder exists, and has copies."""
        count = sum(map(len, self._copies.values()))
        where = self._config.path or self._config.table or "copies"
        if not count:
            fix = "Correct source.path in chronolake.yml, unless they are still to come."
            return [CheckResult(where, Level.WARNING, "matches no files", fix=fix)]
        return [CheckResult(where, Level.OK, "1 copy" if count == 1 else f"{count:,} copies")]

    def read(
        self, lake: Lake, positions: Mapping[str, Offset | None], *, full_refresh: bool
    ) -> Iterator[ChangeBatch | CopyBatch | StreamFailure]:
        """Read the new and changed copies of each table; on a full refresh, all copies."""
        for name, offset in positions.items():
            try:
                yield from self._read_stream(lake, name, offset, full_refresh=full_refresh)
            except SourceError as failure:
                yield StreamFailure(name, failure)

    def acknowledge(self, positions: Mapping[str, Offset]) -> None:
        """Note which copies have landed; nothing is deleted in the source."""
        self._positions |= positions

    def _read_stream(
        self, lake: Lake, name: str, offset: Offset | None, *, full_refresh: bool
    ) -> Iterator[ChangeBatch | CopyBatch | StreamFailure]:
        copies = self._copies.get(name, [])
        state = LandedCopies.of(offset)
        before: int | None = None
        if offset is None and copies and self._folder(name).last() is not None:
            # The offset was lost: each copy may have landed.
            state = replace(state, landed={copy.at_micros: (None, None) for copy in copies})
            before = copies[0].at_micros - 1
        again = frozenset(copy.at_micros for copy in copies) if full_refresh else frozenset()
        reader: FileReader | None = None
        refused: set[int] = set()
        while True:
            plan = plan_copies(
                copies, state, self._limits, again=again, refused=frozenset(refused), before=before
            )
            if plan is None:
                break
            reader = reader or self._reader(lake, name)
            files = [file for copy in plan.copies for file in copy.files]
            hides = self._project.pipelines[self._pipeline].hides_values
            with stage(files, self._config.sftp, lake, is_hidden=hides) as local:
                places = dict(zip(files, local, strict=True))
                yield from self._read_copies(reader, name, plan, state, refused, places=places)
            now = LandedCopies.of(self._positions.get(name, offset))
            tried = {copy.at_micros for copy in plan.copies}
            done = {at for at in tried if now.landed.get(at, ("",))[0] is not None}
            if refused.isdisjoint(tried) and (now == state or not done):
                # The batch could not land, which the pipeline reports.
                return
            again -= {*done, *refused}
            state = now
        failure = self._rejections(copies, state)
        if failure is not None:
            yield StreamFailure(name, failure)

    def _read_copies(
        self,
        reader: FileReader,
        name: str,
        plan: CopyPlan,
        state: LandedCopies,
        refused: set[int],
        *,
        places: Mapping[SourceFile, SourceFile],
    ) -> Iterator[ChangeBatch | CopyBatch]:
        """Yield a batch with the copies of a plan; add the time of one that is rejected.

        Args:
            places: the files as tasks can read them.
        """

        def reject(number: int, reason: str, *, may_be_temporary: bool) -> LandedCopies:
            copy = plan.copies[number - 1]
            last = plan.copies[number - 2] if number > 1 else None
            found = circumstances(state, self._limits, plan.before_micros, last)
            if may_be_temporary:
                found = ""
            log.warning(
                "copy_rejected",
                pipeline=self._pipeline,
                stream=name,
                file=copy.name,
                reason=reason,
            )
            refused.add(copy.at_micros)
            rejected = {**state.rejected, copy.at_micros: (copy.fingerprint, found, reason)}
            return replace(state, rejected=rejected)

        from chronolake.source.files.formats import union_frames  # noqa: PLC0415 - loads Spark

        frames = []
        is_removed = not plan.copies[0].files
        reader.inspect([*places.values()])
        for number, copy in enumerate(() if is_removed else plan.copies, 1):
            try:
                files = [places[file] for file in copy.files]
                frames.append(reader.read(files, self._key(name)))
            except SourceError as failure:
                # Permissions may have changed in the next run.
                rejected = reject(number, f"{failure}", may_be_temporary=True)
                yield _only_position(name, rejected)
                return
        was_landed = {
            copy.at_micros: state.landed[copy.at_micros]
            for copy in plan.copies
            if copy.at_micros in state.landed
        }
        times = [copy.at_micros for copy in plan.copies]
        # If the run ends while they land, some of their differences may be in the table.
        landing = replace(
            state,
            landed={**state.landed, **dict.fromkeys(times, (None, None))},
            landings=max(state.landings + 1, now_micros()),
        )
        yield _only_position(name, landing)

        def position(result: CopiesLanded | CopyRejected) -> Offset:
            if isinstance(result, CopyRejected):
                before = reject(
                    result.number, result.reason, may_be_temporary=result.may_be_temporary
                )
                return replace(before, landings=landing.landings).offset
            found = zip([copy.fingerprint for copy in plan.copies], result.rows, strict=True)
            landed = {**state.landed, **dict(zip(times, found, strict=True))}
            if is_removed:
                del landed[times[0]]
            accepted = {at: value for at, value in state.rejected.items() if at not in times}
            return replace(landing, landed=landed, rejected=accepted).offset

        numbers = [[f"{number} AS {COPY}"] for number in range(1, len(frames) + 1)]
        rows, columns = (None, []) if is_removed else union_frames(frames, numbers)
        before = plan.before_micros
        yield CopyBatch(
            name,
            [
                DatedCopy(copy.name, copy.at_micros, copy.at_micros in was_landed)
                for copy in plan.copies
            ],
            rows,
            columns,
            before_micros=before,
            after_micros=plan.after_micros,
            rows_before=0 if before is None else state.landed.get(before, (None, None))[1],
            sequence=f"{landing.landings:016x}",
            min_rows=0 if is_removed else self._config.min_rows,
            most_deleted=None if is_removed else self._config.most_deleted,
            position=position,
        )

    def _rejections(self, copies: Sequence[Copy], state: LandedCopies) -> SourceError | None:
        """Return an error that names the copies that are rejected now, or None."""
        by_time = {copy.at_micros: copy for copy in copies}
        found = [
            (by_time[at], reason)
            for at, (_, _, reason) in sorted(state.rejected.items())
            if at in by_time
        ]
        if not found:
            return None
        copy, reason = found[0]
        others = len(found) - 1
        more = f" {others} more {'copy was' if others == 1 else 'copies were'} rejected."
        return SourceError(
            f"A copy was rejected: {reason}{more if others else ''} All others are in the table.",
            file=copy.name,
            hint="Replace the copy, or move it elsewhere; if it is right, change min_rows or "
            "max_deleted. The next sync reads it then.",
        )

    def _folder(self, name: str) -> ObjectFolder:
        return raw_folder(self._project, self._pipeline, name)

    @property
    def _limits(self) -> str:
        config = self._config
        return repr((config.min_rows, config.most_deleted, config.key, config.tables, config.types))

    def _reader(self, lake: Lake, name: str) -> FileReader:
        from chronolake.source.files.formats import FileReader, format_of  # noqa: PLC0415 - loads Spark

        found = self._config.format
        if found is None:
            template = self._template(name)
            found = format_of(template.text, self._config, place=template.place)
        storage = self._config.storage or self._project.lake.object_storage
        return FileReader(lake.spark, found, self._config, storage)

    def _key(self, name: str) -> Sequence[str]:
        own = self._config.tables[name].key if self._config.tables else None
        return own or self._config.key or ()

    def _epsilon(self, name: str | None) -> int:
        if self._config.format in VERSIONED:
            return EPSILON_MICROS
        formats = self._template(name).formats
        return 1 if any("%f" in format_ for format_ in formats) else EPSILON_MICROS

    def _table_of(self, name: str | None) -> CopiesTable:
        """Return the settings of a table with a place of its own, or those of the source."""
        config = self._config
        found = (config.tables or {}).get(name or "", CopiesTable())
        return found if _has_place(found) else CopiesTable(path=config.path, table=config.table)

    def _template(self, name: str | None) -> PathTemplate:
        config = self._config
        table = (config.tables or {}).get(name or "", CopiesTable())
        place = f"{self._place}.path" if table.path is None else f"{self._place}.tables.{name}.path"
        found = PathTemplate(table.path or config.path or "", config.time_zone, place)
        if not found.formats and config.format not in VERSIONED:
            raise ConfigurationError(
                f"{place}: the path has no date.",
                hint="Write the place of the date, such as orders_{date:%Y-%m-%d}.parquet.",
            )
        # Placeholders that are not valid raise.
        _ = found.pattern
        return found

    @cached_property
    def _names(self) -> list[str]:
        config = self._config
        if config.tables:
            return list(config.tables)
        if config.table is None and self._template(None).has_stream:
            return sorted(self._copies)
        return [self._only_name]

    @property
    def _only_name(self) -> str:
        """Return the name of the stream if there is only one."""
        config = self._config
        if config.table is not None:
            return config.stream or TableName.parse(config.table).table
        return config.stream or self._template(None).default_stream or self._pipeline

    @cached_property
    def _copies(self) -> dict[str, list[Copy]]:
        """Return the copies of each stream by time, as they are when the run begins."""
        config = self._config
        shared = [name for name, table in (config.tables or {}).items() if not _has_place(table)]
        found: dict[str, list[Copy]] = {}
        for name in [name for name in config.tables or () if name not in shared]:
            found |= self._list(name)
        if shared or not config.tables:
            listed = self._list(None)
            found |= {
                stream: copies
                for stream, copies in listed.items()
                if not config.tables or stream in shared
            }
        return found

    def _list_versions(self, table: CopiesTable) -> list[tuple[int, SourceFile]]:
        """Return the snapshots or versions of a table."""
        if table.table is not None:
            return state_in_catalog(self._project.lake, self._config, table.table).snapshots()
        storage = self._config.storage or self._project.lake.object_storage
        folder = root_of(table.path or "", self._project.file.parent, storage)
        if self._config.format is FileFormat.DELTA:
            return list_versions(folder)
        return state_in_folder(folder).snapshots()

    def _list(self, table: str | None) -> dict[str, list[Copy]]:
        """Return the copies of a table with a place of its own, or those at the source's path."""
        name = table or self._only_name
        if self._config.format in VERSIONED:
            listed = self._list_versions(self._table_of(table))
            return {name: [Copy(at, (file,)) for at, file in listed]}
        template = self._template(table)
        storage = self._config.storage or self._project.lake.object_storage
        base = self._project.file.parent
        files: dict[tuple[str, int], list[SourceFile]] = {}
        for file in list_source(template.root, base, self._config, storage):
            match = template.match(file.name)
            if match is not None and match.at_micros is not None:
                stream = match.stream if template.has_stream and match.stream else name
                files.setdefault((stream, match.at_micros), []).append(file)
        if not files:
            log.warning("no_files_match", pipeline=self._pipeline, path=template.text)
        found: dict[str, list[Copy]] = {}
        for (stream, at), of_copy in sorted(files.items()):
            copies = found.setdefault(stream, [])
            copies.append(Copy(at, tuple(of_copy)))
            if len(copies) > 1 and at - copies[-2].at_micros < 2 * self._epsilon(table):
                raise SourceError(
                    f"The dates of two copies of {stream} are too close to each other.",
                    file=copies[-1].name,
                    hint="Times of copies are at least two milliseconds apart, or two microseconds "
                    "if the path has %f.",
                )
        return found


def _has_place(table: CopiesTable) -> bool:
    return table.path is not None or table.table is not None


def _only_position(name: str, state: LandedCopies) -> ChangeBatch:
    return ChangeBatch(name, None, [], state.offset)


def _date(at_micros: int) -> str:
    return datetime_of(at_micros).isoformat()
