"""Proposals for folders of files: dated copies of tables, records and events."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from chronolake.errors import ConfigurationError, SourceError
from chronolake.extras import require
from chronolake.formatting import format_count
from chronolake.scaffold.document import Entry, literal
from chronolake.scaffold.proposal import ProposedPipeline, name_from
from chronolake.scaffold.sample import Sample, ending_of, read_sample
from chronolake.source.files.path_template import PathTemplate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from chronolake.scaffold.origin import Request

#: A day with or without a time, and a month.
_DATES: Final = (
    re.compile(
        r"(?<!\d)(?P<Y>\d{4})(?P<sep>[-_/.]?)(?P<m>\d{2})(?P=sep)(?P<d>\d{2})"
        r"(?:(?P<t>[T_ -]|(?<=\d)T)(?P<H>\d{2})(?P<c>[-:_]?)(?P<M>\d{2})(?P=c)(?P<S>\d{2})"
        r"(?P<z>Z)?)?(?!\d)"
    ),
    re.compile(r"(?<!\d)(?P<Y>\d{4})(?P<sep>[-_/.])(?P<m>\d{2})(?!\d)"),
)
_YEARS: Final = range(1970, 2101)
_NUMBERS: Final = re.compile(
    r"(?<![A-Za-z0-9])(?:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\d+)"
    r"(?![A-Za-z0-9])"
)
_PLACEHOLDER: Final = re.compile(r"\{[^{}]*\}")
#: Words in paths that do not name a table.
_NO_NAMES: Final = frozenset(
    {"", "part", "parts", "data", "date", "dt", "day", "ds", "snapshot", "export", "dump", "copy",
     "backup", "full", "c000", "snappy"}
)  # fmt: skip
#: Files are copies of a table if they share at least this part of their keys.
_SHARED: Final = 0.5
_DATA_LAKE: Final = Path("parquet", "v2")
_CONFIRM: Final = "Confirm that it identifies a row."


@dataclass(frozen=True)
class Folder:
    """A folder of files.

    Attributes:
        root: the folder, or its copy.
        address: the folder as chronolake.yml names it.
        load: is called before a file is read.
        options: further entries of sources that read it.
        shown: the folder as errors name it.
    """

    root: Path
    address: str
    load: Callable[[Path], None]
    options: tuple[Entry, ...]
    shown: str

    @classmethod
    def of(cls, request: Request, root: Path) -> Folder:
        """Return a folder of this machine."""
        return cls(root, request.relative(root), lambda _file: None, (), str(root))

    def sample(self, file: Path) -> Sample:
        """Return rows of a file."""
        self.load(file)
        try:
            return read_sample(file)
        except SourceError as failure:
            name = f"{self.shown}/{file.relative_to(self.root).as_posix()}"
            message = failure.message.replace(str(file), name)
            raise SourceError(message, file=name, hint=failure.hint) from failure


@dataclass(frozen=True)
class FileGroup:
    """Files of a table.

    Attributes:
        template: their path below the folder, with placeholders.
        files: the files in the order of their dates, or of their names.
        dates: how many dates they have.
        stream: the table's name.
    """

    template: str
    files: tuple[Path, ...]
    dates: int
    stream: str


@dataclass(frozen=True)
class _Key:
    """A proposed key; empty without one.

    Attributes:
        columns: its columns.
        comment: why they are proposed.
    """

    columns: tuple[str, ...]
    comment: str


def propose_files(request: Request, place: Path) -> list[ProposedPipeline]:
    """Return the pipelines for a file, or for the files of a folder.

    Raises:
        ConfigurationError: there are no data files.
        SourceError: a file cannot be read.
    """
    if any(char in str(place) for char in "{}*"):
        raise ConfigurationError(
            f"The path {place} contains a character that is a placeholder in paths of files.",
            hint="Rename the folder: its name must not contain {, } or *.",
        )
    name = request.name or name_from(place.stem if place.is_file() else place.name)
    folder = Folder.of(request, place.parent if place.is_file() else place)
    return propose_folder(request, folder, name, only=place.name if place.is_file() else None)


def propose_folder(
    request: Request, folder: Folder, name: str, *, only: str | None
) -> list[ProposedPipeline]:
    """Return the pipelines for the files of a folder.

    Args:
        request: what the pipelines are proposed for.
        folder: the folder.
        name: the name of the first pipeline.
        only: the path of the only file below the folder that counts; None: all count.

    Raises:
        ConfigurationError: there are no data files.
        SourceError: a file cannot be read.
    """
    root = folder.root
    if only is None:
        if (root / _DATA_LAKE).is_dir():
            return _data_lakes(folder, name)
        if list((root / "metadata").glob("*.metadata.json")):
            return [_versioned_table(folder, name, "iceberg")]
        if (root / "_delta_log").is_dir():
            return [_versioned_table(folder, name, "delta")]
    files = sorted(_files_below(root)) if only is None else [root / only]
    proposals = []
    for group in _groups(folder, files):
        last = group.files[-1].relative_to(root).as_posix()
        request.report(f"Reading {folder.shown}/{last} ...")
        proposals.append(_GroupProposal.of(folder, group))
    return [
        replace(found, source=(*found.source, *folder.options))
        for found in _pipelines(name, proposals)
    ]


def _files_below(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root, followlinks=True):
        folders[:] = [inner for inner in folders if inner[0] not in "._"]
        for file in names:
            if file[0] not in "._":
                yield Path(folder, file)


def _groups(folder: Folder, files: Sequence[Path]) -> list[FileGroup]:
    """Return the data files in groups with the same path apart from dates and numbers."""
    root = folder.root
    by_template: dict[str, list[tuple[str, Path]]] = {}
    others: dict[str, int] = {}
    for file in files:
        if ending_of(file.name)[0] is None:
            others[file.suffix] = others.get(file.suffix, 0) + 1
            continue
        template, date = _template_of(file.relative_to(root).as_posix())
        by_template.setdefault(template, []).append((date, file))
    if not by_template:
        listed = ", ".join(sorted(others)) or "none"
        raise ConfigurationError(
            f"{folder.shown} contains no data files; endings of its files: {listed}.",
            hint="Files of the formats Parquet, Avro, CSV and JSON lines are supported: .parquet, "
            ".avro, .csv, .tsv, .jsonl, .ndjson and .json; the last ones also with .gz or .zst.",
        )
    found = []
    for template, dated in by_template.items():
        dated.sort(key=lambda item: (item[0], item[1].name))
        paths = tuple(path for _, path in dated)
        # A single file has its own name.
        shown = template if len(paths) > 1 or "{" in template else _own_name(root, paths[0])
        dates = len({date for date, _ in dated}) if "{" in template else 0
        found.append(FileGroup(shown, paths, dates, _stream_of(shown, root)))
    return _distinct(sorted(found, key=lambda group: group.template))


def _own_name(root: Path, file: Path) -> str:
    return file.relative_to(root).as_posix()


def _template_of(path: str) -> tuple[str, str]:
    """Return a path with placeholders for its last date and for numbers, and the date."""
    for pattern in _DATES:
        matches = [found for found in pattern.finditer(path) if _is_date(found)]
        if matches:
            last = max(matches, key=lambda found: (len(found[0]), found.start()))
            before, after = _starred(path[: last.start()]), _starred(path[last.end() :])
            return f"{before}{{date:{_format_of(last)}}}{after}", _sortable(last)
    return _starred(path), ""


def _starred(text: str) -> str:
    for pattern in _DATES:
        text = pattern.sub(lambda found: "*" if _is_date(found) else found[0], text)
    return re.sub(r"\*+", "*", _NUMBERS.sub("*", text))


def _is_date(found: re.Match[str]) -> bool:
    parts = found.groupdict()
    numbers = [int(parts.get(name) or default) for name, default in _PARTS]
    try:
        datetime(*numbers)  # type: ignore[arg-type]  # noqa: DTZ001 - only checked
    except ValueError:
        return False
    return numbers[0] in _YEARS


_PARTS: Final = (("Y", 1), ("m", 1), ("d", 1), ("H", 0), ("M", 0), ("S", 0))


def _sortable(found: re.Match[str]) -> str:
    parts = found.groupdict()
    return "".join(parts.get(name) or "" for name, _ in _PARTS)


def _format_of(found: re.Match[str]) -> str:
    """Return a date's format in directives of strftime."""
    parts = found.groupdict()
    text = f"%Y{parts['sep']}%m"
    if parts.get("d"):
        text += f"{parts['sep']}%d"
    if parts.get("H"):
        colon = parts["c"]
        text += f"{parts['t']}%H{colon}%M{colon}%S" + ("%z" if parts["z"] else "")
    return text


def _stream_of(template: str, root: Path) -> str:
    """Return a name for the table of files: the last words of their path that name something."""
    for part in reversed(template.split("/")):
        plain = _PLACEHOLDER.sub(" ", part).replace("*", " ").split(".")[0]
        plain = re.sub(r"[A-Za-z_]+= *$", "", plain)
        words = [word for word in re.split(r"[\W_]+", plain) if word.lower() not in _NO_NAMES]
        if words:
            return "_".join(words)
    return name_from(root.name)


def _distinct(groups: list[FileGroup]) -> list[FileGroup]:
    """Return groups with names that differ."""
    taken: set[str] = set()
    found = []
    for group in groups:
        name, number = group.stream, 1
        while name in taken:
            number += 1
            name = f"{group.stream}_{number}"
        taken.add(name)
        found.append(replace(group, stream=name))
    return found


@dataclass(frozen=True)
class _GroupProposal:
    """How the files of a table are to be read.

    Attributes:
        group: the files.
        path: their path, relative to the folder of chronolake.yml.
        key: the columns that identify a row.
        is_copies: whether each date is a complete copy.
        why: why it is so.
        sample: rows of the last file.
    """

    group: FileGroup
    path: str
    key: _Key
    is_copies: bool
    why: str
    sample: Sample

    @classmethod
    def of(cls, folder: Folder, group: FileGroup) -> _GroupProposal:
        files = group.files
        sample = folder.sample(files[-1])
        earlier = folder.sample(files[0]) if len(files) > 1 else None
        key = _key_of(group, sample, earlier)
        path = f"{folder.address}/{group.template}"
        is_copies, why = False, ""
        dates = format_count(group.dates, "date")
        if group.dates and not key.columns:
            why = (
                f"There are files of {dates}, and no column is unique in them, so each row is an "
                "event. If each file is a complete copy of a table, set type: copies, and its key."
            )
        elif group.dates > 1 and earlier is not None:
            share = earlier.share_in(sample, key.columns)
            is_copies = share >= _SHARED
            shared = f"The last one has {share:.0%} of the rows of the first one"
            why = (
                f"There are files of {dates}. {shared}, so each one is a complete copy of the "
                "table: their differences are its history. If they only contain changes, set "
                "type: files."
                if is_copies
                else f"There are files of {dates}. {shared}, so they contain different records. If "
                "each one is a complete copy of the table, set type: copies."
            )
        elif group.dates:
            is_copies = True
            why = (
                "There are files of one date, which are taken as a complete copy of the table. If "
                "later ones only contain changes, set type: files."
            )
        return cls(group, path, key, is_copies, why, sample)

    @property
    def delimiter(self) -> str | None:
        """Return the delimiter of CSV files, if it is not the default."""
        found = self.sample.delimiter
        default = "\t" if ".tsv" in self.path else ","
        return None if found in {None, default} else found

    def typed(self) -> list[Entry]:
        """Return the types of columns in CSV files as a disabled entry."""
        types = self.sample.types() if self.sample.delimiter else {}
        if not types:
            return []
        comment = (
            "All columns of CSV files are texts, unless their types are set. These are the types "
            f"of {self.group.files[-1].name}."
        )
        return [Entry("types", types, comment, is_disabled=True)]


def _key_of(group: FileGroup, sample: Sample, earlier: Sample | None) -> _Key:
    """Return the columns that identify a row in the last file, and also in the first one."""
    samples = [sample] if earlier is None else [earlier, sample]
    single = [
        name
        for name in sample.keys(group.stream)
        if all(found.is_unique([name]) for found in samples)
    ]
    names = f"{group.files[-1].name}" + ("" if earlier is None else f" and {group.files[0].name}")
    rows = format_count(sum(found.rows for found in samples), "row")
    limit = "" if all(found.is_whole for found in samples) else "first "
    where = f"in the {limit}{rows} of {names}"
    if single:
        others = f" Also unique: {', '.join(single[1:6])}." if len(single) > 1 else ""
        verb = f"{single[0]} is unique and never null {where}."
        return _Key((single[0],), f"{verb}{others} {_CONFIRM}")
    for columns in sample.composite_keys(group.stream):
        if all(found.is_unique(columns) for found in samples):
            both = " and ".join(columns)
            return _Key(columns, f"{both} together are unique {where}. {_CONFIRM}")
    return _Key((), f"No column is unique {where}.")


def _pipelines(name: str, proposals: Sequence[_GroupProposal]) -> list[ProposedPipeline]:
    """Return the pipelines of groups: one for all copies, and one for each other table."""
    found = []
    by_delimiter: dict[str | None, list[_GroupProposal]] = {}
    for proposal in proposals:
        if proposal.is_copies:
            by_delimiter.setdefault(proposal.delimiter, []).append(proposal)
    others = [proposal for proposal in proposals if not proposal.is_copies]
    is_single = len(by_delimiter) + len(others) == 1
    for number, group in enumerate(by_delimiter.values(), 1):
        own = name if number == 1 else f"{name}_{number}"
        found.append(_copies(own, group, schema=None if own == name else name))
    for other in others:
        own = name if is_single else f"{name}_{name_from(other.group.stream)}"
        found.append(_records(own, other, schema=None if own == name else name))
    return found


def _copies(
    name: str, proposals: Sequence[_GroupProposal], *, schema: str | None
) -> ProposedPipeline:
    first = proposals[0]
    entries = [Entry("type", "copies", "Dated copies of tables: their differences are versions.")]
    if len(proposals) == 1:
        entries += [
            Entry("path", literal(first.path), first.why),
            Entry("key", list(first.key.columns), first.key.comment),
        ]
        default = PathTemplate(first.path, "UTC", "").default_stream
        if default != first.group.stream:
            entries.append(Entry("stream", literal(first.group.stream)))
    else:
        tables = [
            Entry(
                proposal.group.stream,
                (
                    Entry("path", literal(proposal.path), proposal.why),
                    Entry("key", list(proposal.key.columns), proposal.key.comment),
                ),
            )
            for proposal in proposals
        ]
        entries.append(Entry("tables", tuple(tables)))
    if first.delimiter is not None:
        entries.append(Entry("delimiter", first.delimiter))
    if len(proposals) == 1:
        entries += first.typed()
    entries.append(
        Entry(
            "max_deleted",
            "20%",
            "A copy that lacks more of the rows of the copy before it is rejected, because it may "
            "be incomplete.",
            is_disabled=True,
        )
    )
    return ProposedPipeline(name, tuple(entries), _schema_of(schema))


def _records(name: str, proposal: _GroupProposal, *, schema: str | None) -> ProposedPipeline:
    key = list(proposal.key.columns)
    entries = [
        Entry("type", "files", "Files with records or events: each one is read once."),
        Entry("path", literal(proposal.path), proposal.why),
    ]
    if key:
        entries.append(Entry("key", key, proposal.key.comment))
    else:
        about = f"{proposal.key.comment} So each row is an event; set a key if there is one."
        entries.append(Entry("key", ["id"], about, is_disabled=True))
    default = PathTemplate(proposal.path, "UTC", "").default_stream
    if default != proposal.group.stream:
        entries.append(Entry("stream", literal(proposal.group.stream)))
    if (changed := proposal.sample.change_time()) is not None:
        comment = "The column with the time of a row's change. Default: the time of the file."
        entries.append(Entry("modified", changed, comment, is_disabled=True))
    if proposal.delimiter is not None:
        entries.append(Entry("delimiter", proposal.delimiter))
    entries += proposal.typed()
    return ProposedPipeline(name, tuple(entries), _schema_of(schema))


def _schema_of(schema: str | None) -> tuple[Entry, ...]:
    return () if schema is None else (Entry("schema", schema, "The schema of its tables."),)


def _data_lakes(folder: Folder, name: str) -> list[ProposedPipeline]:
    """Return a pipeline for each organization of a Data Lake v2."""
    orgs = sorted(of.name.partition("=")[2] for of in (folder.root / _DATA_LAKE).glob("org=*"))
    if not orgs:
        raise SourceError(
            "The data lake has no organizations.",
            file=f"{folder.shown}/{_DATA_LAKE}",
            hint="Set the folder that contains parquet/v2/org=….",
        )
    return [
        ProposedPipeline(
            name if len(orgs) == 1 else f"{name}_{name_from(org)}",
            (
                Entry("type", "data_lake_v2"),
                Entry("path", literal(folder.address), "The folder of parquet/v2."),
                Entry("org", literal(org), "The organization: X of org=X."),
            ),
        )
        for org in orgs
    ]


def _versioned_table(folder: Folder, name: str, kind: str) -> ProposedPipeline:
    """Return the pipeline for an Iceberg or Delta table, whose snapshots or versions are copies.

    Raises:
        ConfigurationError: no key can be proposed.
        MissingExtraError: delta-rs is not installed.
    """
    if kind == "delta":
        require("delta", "A source with a Delta table")
    versions = "snapshot" if kind == "iceberg" else "version"
    files = [file for file in sorted(_files_below(folder.root)) if file.suffix == ".parquet"]
    key = None
    if files:
        group = FileGroup("", tuple(files[-1:]), 0, PurePosixPath(folder.address).name)
        key = _key_of(group, folder.sample(files[-1]), None)
    if key is None or not key.columns:
        raise ConfigurationError(
            f"No column of the {kind.title()} table {folder.shown} is unique.",
            hint=f"Write the pipeline yourself: type: copies, format: {kind}, path and key.",
        )
    entries: list[Any] = [
        Entry("type", "copies", f"Each {versions} of the {kind.title()} table is a copy."),
        Entry("format", kind),
        Entry("path", literal(folder.address)),
        Entry("key", list(key.columns), key.comment),
        *folder.options,
    ]
    return ProposedPipeline(name, tuple(entries))
