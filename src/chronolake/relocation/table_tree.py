"""A table's metadata for another location: metadata file, manifest lists, manifests, delete files.

Each of them contains absolute locations and is written again under a new name; data files stay as
they are. Names depend only on the table's state and its new location, so that an attempt after a
crash writes the same files.

Source: the Iceberg specification, versions 2 and 3, and its Puffin specification.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from threading import Lock
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from chronolake.errors import LakeError
from chronolake.identity import version_of
from chronolake.relocation.avro_file import change_records
from chronolake.relocation.lake_files import missing_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chronolake.relocation.avro_file import Record
    from chronolake.relocation.lake_files import LakeFiles, Moves
    from chronolake.types import TableName

#: Field ids of manifest lists and manifests.
_MANIFEST_PATH: Final = 500
_MANIFEST_LENGTH: Final = 501
_STATUS: Final = 0
_DATA_FILE: Final = 2
_FILE_PATH: Final = 100
_FILE_SIZE: Final = 104
_LOWER_BOUNDS: Final = 125
_UPPER_BOUNDS: Final = 128
_SPLIT_OFFSETS: Final = 132
_CONTENT: Final = 134
_REFERENCED_FILE: Final = 143
#: The status of an entry whose file is no longer part of the table.
_DELETED: Final = 2
_POSITION_DELETES: Final = 1
#: The column of a position delete file that contains the data files' locations.
_PATH_COLUMN: Final = "file_path"
_PATH_ID: Final = 2147483546

_PUFFIN: Final = b"PFA1"
#: After a Puffin file's footer: the footer's size, four bytes of flags, and the magic.
_PUFFIN_END: Final = 12
_COMPRESSED_FOOTER: Final = 1

_GZIP: Final = b"\x1f\x8b"
#: Requests to an object store that run at the same time.
_THREADS: Final = 8
_MAX_MISSING: Final = 1_000
#: A suffix that an earlier move has added to a name.
_SUFFIX: Final = re.compile(r"-at-[0-9a-f]{16}(?=\.|$)")


@dataclass(frozen=True)
class RelocatedTable:
    """A table or view with metadata for its new location.

    Attributes:
        name: the table.
        before: the location of its metadata file, as the catalog has it.
        after: the location of the new metadata file.
        previous: the new location of the earlier metadata file.
        data_files: number of data files that stay as they are.
        rewritten: number of files that were written again.
    """

    name: TableName
    before: str
    after: str
    previous: str
    data_files: int
    rewritten: int


class TableTree:
    """The files of one table that contain locations.

    Args:
        name: the table.
        metadata_file: the location of its metadata file, as the catalog has it.
        moves: the old and new folders.
        files: the lake's files.
    """

    def __init__(self, name: TableName, metadata_file: str, moves: Moves, files: LakeFiles) -> None:
        self._name = name
        self._before = metadata_file
        self._moves = moves
        self._files = files
        self._here = moves.of(metadata_file)
        self._folder = ""
        self._data_files: set[str] = set()
        self._missing: set[str] = set()
        self._deletes: dict[str, tuple[str, int]] = {}
        self._lock = Lock()
        self._began = files.written

    def relocate(self) -> RelocatedTable:
        """Write the table's metadata for its new location; the catalog does not refer to it yet.

        Raises:
            LakeLocationError: a file is missing, or is outside of the lake's folders.
            LakeError: a file is damaged.
            StorageError: a file cannot be read or written.
        """
        metadata = self._read_json(self._here)
        self._folder = self._moves.of(metadata["location"])
        lists = [item["manifest-list"] for item in metadata.get("snapshots", ())]
        manifests: dict[str, tuple[str, int]] = {}
        found: set[str] = set()
        self._parallel(lambda location: self._collect_manifests(location, found), lists)
        self._parallel(lambda location: self._move_manifest(location, manifests), sorted(found))
        if self._missing:
            raise missing_error(sorted(self._missing))
        self._parallel(lambda location: self._move_manifest_list(location, manifests), lists)
        after = self._new_metadata_name()
        self._files.write(after, orjson.dumps(self._moved_metadata(metadata)))
        return RelocatedTable(
            self._name,
            self._before,
            after,
            self._here,
            len(self._data_files),
            self._files.written - self._began,
        )

    def _parallel(self, work: Callable[[str], None], locations: list[str]) -> None:
        with ThreadPoolExecutor(_THREADS) as threads:
            for _ in threads.map(work, locations):
                pass

    @contextmanager
    def _damaged(self, location: str) -> Iterator[None]:
        """Convert any error about the content of a file."""
        try:
            yield
        except (ValueError, LookupError, TypeError, zlib.error, pa.ArrowException) as failure:
            raise LakeError(
                f"A file of the table cannot be read: {type(failure).__name__}.",
                table=str(self._name),
                file=location,
                hint="Restore the file from another backup.",
            ) from failure

    def _read_json(self, location: str) -> dict[str, Any]:
        content = self._files.read(location)
        with self._damaged(location):
            data = gzip.decompress(content) if content.startswith(_GZIP) else content
            metadata: dict[str, Any] = orjson.loads(data)
            if any("manifest-list" not in item for item in metadata.get("snapshots", ())):
                raise ValueError("a snapshot of format version 1 has no manifest list")
            return metadata

    def _collect_manifests(self, location: str, found: set[str]) -> None:
        place = self._moves.of(location)
        content = self._files.read(place)

        def collect(record: Record) -> None:
            path = record.text(_MANIFEST_PATH)
            assert path is not None  # noqa: S101 - a required field
            with self._lock:
                found.add(path)

        with self._damaged(place):
            change_records(content, collect)

    def _move_manifest_list(self, location: str, manifests: dict[str, tuple[str, int]]) -> None:
        place = self._moves.of(location)
        content = self._files.read(place)

        def change(record: Record) -> None:
            new, size = manifests[record.text(_MANIFEST_PATH) or ""]
            record.set_text(_MANIFEST_PATH, new)
            record.set_number(_MANIFEST_LENGTH, size)

        with self._damaged(place):
            changed = change_records(content, change)
        self._files.write(self._new_name(place), changed)

    def _move_manifest(self, location: str, manifests: dict[str, tuple[str, int]]) -> None:
        place = self._moves.of(location)
        content = self._files.read(place)

        def change(record: Record) -> None:
            file = record.record(_DATA_FILE)
            self._move_entry(file, is_live=record.number(_STATUS) != _DELETED)
            record.set_record(_DATA_FILE, file)

        with self._damaged(place):
            changed = change_records(content, change)
        new = self._new_name(place)
        self._files.write(new, changed)
        with self._lock:
            manifests[location] = new, len(changed)

    def _move_entry(self, file: Record, *, is_live: bool) -> None:
        """Change the locations of a manifest's entry, and write its delete file again."""
        path = file.text(_FILE_PATH) or ""
        place = self._moves.of(path)
        content = file.number(_CONTENT) or 0
        if (referenced := file.text(_REFERENCED_FILE)) is not None:
            file.set_text(_REFERENCED_FILE, self._moves.of(referenced))
        is_there = is_live and self._is_there(
            place, file.number(_FILE_SIZE), is_data=content != _POSITION_DELETES
        )
        if content == _POSITION_DELETES:
            self._move_bounds(file)
        if content != _POSITION_DELETES or not is_there:
            # A delete file that is no longer part of the table may have been removed.
            file.set_text(_FILE_PATH, place)
            return
        new, size = self._move_deletes(place)
        file.set_text(_FILE_PATH, new)
        file.set_number(_FILE_SIZE, size)
        file.set_null(_SPLIT_OFFSETS)

    def _is_there(self, place: str, size: int | None, *, is_data: bool) -> bool:
        """Return whether a file exists at the new location with its size, and note a missing one.

        Raises:
            LakeLocationError: too many files are missing.
        """
        with self._lock:
            if place in self._data_files:
                return True
            if is_data:
                self._data_files.add(place)
            if self._files.size_of(place, self._folder) == size:
                return True
            self._missing.add(place)
            if len(self._missing) > _MAX_MISSING:
                raise missing_error(sorted(self._missing))
            return False

    def _move_bounds(self, file: Record) -> None:
        """Change the smallest and the greatest location in a position delete file's statistics."""
        for field_id in (_LOWER_BOUNDS, _UPPER_BOUNDS):
            bounds = file.bytes_by_number(field_id)
            if bounds and _PATH_ID in bounds:
                new = self._moves.find(bounds[_PATH_ID].decode(errors="replace"))
                if new is None:
                    # A bound may be cut off; without one, no file is excluded.
                    del bounds[_PATH_ID]
                else:
                    bounds[_PATH_ID] = new.encode()
                file.set_bytes_by_number(field_id, bounds)

    def _move_deletes(self, place: str) -> tuple[str, int]:
        """Write a delete file for the new locations; return its location and size."""
        with self._lock:
            if place in self._deletes:
                return self._deletes[place]
        content = self._files.read(place)
        with self._damaged(place):
            if content.startswith(_PUFFIN):
                moved = moved_vectors(content, self._moves)
            elif content.startswith(b"PAR1"):
                moved = moved_positions(content, self._moves)
            else:
                raise ValueError("a delete file is neither Puffin nor Parquet")
        new = self._new_name(place)
        with self._lock:
            if place not in self._deletes:
                self._files.write(new, moved)
                self._deletes[place] = new, len(moved)
            return self._deletes[place]

    def _new_name(self, place: str) -> str:
        """Return the name of a file's successor, which no other state of the table refers to."""
        folder, _, name = place.rpartition("/")
        digest = hashlib.sha256(f"{self._before}\n{self._here}\n{place}".encode()).hexdigest()[:16]
        path = PurePosixPath(_SUFFIX.sub("", name))
        return f"{folder}/{path.stem}-at-{digest}{path.suffix}"

    def _new_metadata_name(self) -> str:
        folder, _, _ = self._here.rpartition("/")
        digest = hashlib.sha256(f"{self._before}\n{self._here}".encode()).digest()
        number = (version_of(self._before) or 0) + 1
        return f"{folder}/{number:05}-{UUID(bytes=digest[:16])}.metadata.json"

    def _moved_metadata(self, metadata: dict[str, Any]) -> dict[str, Any]:
        moved = {**metadata, "location": self._folder}
        moved["properties"] = {
            key: self._moves.find(value) or value
            for key, value in metadata.get("properties", {}).items()
        }
        if "view-uuid" in metadata:
            return moved
        moved["snapshots"] = [
            {**item, "manifest-list": self._new_name(self._moves.of(item["manifest-list"]))}
            for item in metadata.get("snapshots", ())
        ]
        files = [dict(item) for item in metadata.get("metadata-log", ())]
        for item in files:
            item["metadata-file"] = self._moves.find(item["metadata-file"]) or item["metadata-file"]
        last = {"metadata-file": self._here, "timestamp-ms": metadata["last-updated-ms"]}
        moved["metadata-log"] = [*files, last]
        for kind in ("statistics", "partition-statistics"):
            if kind in metadata:
                moved[kind] = [
                    {**item, "statistics-path": self._moves.of(item["statistics-path"])}
                    for item in metadata[kind]
                ]
        return moved


def moved_vectors(content: bytes, moves: Moves) -> bytes:
    """Return a Puffin file of deletion vectors whose footer has the new locations.

    The footer follows the blobs, which stay at their offsets.

    Raises:
        ValueError, LookupError: the file is damaged.
    """
    end = len(content) - _PUFFIN_END
    size = int.from_bytes(content[end : end + 4], "little")
    flags = content[end + 4 : end + 8]
    start = end - size
    if not content.endswith(_PUFFIN) or content[start - 4 : start] != _PUFFIN:
        raise ValueError("the Puffin file is damaged")
    payload = content[start:end]
    if flags[0] & _COMPRESSED_FOOTER:
        payload = pa.CompressedInputStream(pa.BufferReader(payload), "lz4").read()
    footer = orjson.loads(payload)
    for blob in footer["blobs"]:
        properties = blob.get("properties", {})
        if (path := properties.get("referenced-data-file")) is not None:
            properties["referenced-data-file"] = moves.of(path)
    changed = orjson.dumps(footer)
    plain_flags = bytes([flags[0] & ~_COMPRESSED_FOOTER]) + flags[1:]
    return content[:start] + changed + len(changed).to_bytes(4, "little") + plain_flags + _PUFFIN


def moved_positions(content: bytes, moves: Moves) -> bytes:
    """Return a position delete file in Parquet with the new locations.

    Raises:
        pyarrow.ArrowException, LookupError: the file is damaged.
    """
    rows = pq.read_table(pa.BufferReader(content), read_dictionary=[])
    column = rows.schema.get_field_index(_PATH_COLUMN)
    paths = rows.column(column).combine_chunks().dictionary_encode()
    new = pa.array(map(moves.of, paths.dictionary.to_pylist()), pa.string())
    moved = pa.chunked_array([new.take(paths.indices)])
    rows = rows.set_column(column, rows.schema.field(column), moved)
    out = pa.BufferOutputStream()
    pq.write_table(rows, out, compression="zstd")
    return bytes(out.getvalue().to_pybytes())
