"""The snapshots of an Iceberg table as dated copies, from the table's metadata file."""

from __future__ import annotations

import gzip
import re
from typing import TYPE_CHECKING, Any, Final

import orjson

from chronolake.errors import SourceError
from chronolake.source.files.file_list import SourceFile
from chronolake.types import EPSILON_MICROS

if TYPE_CHECKING:
    from pathlib import Path

#: `00012-….metadata.json` and `v12.metadata.json`, maybe compressed.
_METADATA: Final = re.compile(r"v?(\d+)(?:-[^.]*)?(?:\.gz)?\.metadata\.json(?:\.gz)?")


def list_snapshots(folder: Path) -> list[tuple[int, SourceFile]]:
    """Return the snapshots that were current in a table's main branch, with their times.

    Snapshots without changes (compactions) are left out, and so are those that were never current
    because the same commit added another one. Of snapshots that follow each other within two
    milliseconds, the last one is used. The identity of each is its number.

    Args:
        folder: the table's folder.

    Raises:
        SourceError: the folder does not belong to an Iceberg table, or its metadata cannot be read.
    """
    path = _newest_metadata(folder)
    try:
        content = path.read_bytes()
        is_packed = content[:2] == b"\x1f\x8b"
        metadata: dict[str, Any] = orjson.loads(gzip.decompress(content) if is_packed else content)
    except (OSError, ValueError) as failure:
        raise SourceError(
            "The metadata of the Iceberg table cannot be read.",
            file=str(path),
            hint="Check the file, and its permissions.",
        ) from failure
    operations = {
        snapshot["snapshot-id"]: (snapshot.get("summary") or {}).get("operation")
        for snapshot in metadata.get("snapshots", [])
    }
    found: list[tuple[int, SourceFile]] = []
    for entry in _committed_snapshots(metadata):
        number, at_micros = entry["snapshot-id"], entry["timestamp-ms"] * 1_000
        if number not in operations or operations[number] == "replace":
            # It has expired, or has the rows of the one before it.
            continue
        if found and at_micros - found[-1][0] < 2 * EPSILON_MICROS:
            found.pop()
        name = f"snapshot {number}"
        found.append((at_micros, SourceFile(path, name, 0, f"{number}", at_micros)))
    return found


def _committed_snapshots(metadata: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of the log of snapshots that were the last ones of their commits."""
    entries: list[dict[str, Any]] = metadata.get("snapshot-log", [])
    commits = {entry["timestamp-ms"] for entry in metadata.get("metadata-log", [])}
    commits.add(metadata["last-updated-ms"])
    # Only the last commits are known.
    last = {
        max((at for at in (entry["timestamp-ms"] for entry in entries) if at <= commit), default=0)
        for commit in commits
    }
    first = min(commits)
    return [
        entry
        for entry in entries
        if entry["timestamp-ms"] in last or entry["timestamp-ms"] <= first
    ]


def _newest_metadata(folder: Path) -> Path:
    numbered = [
        (int(matched[1]), path.stat().st_mtime_ns, path)
        for path in (folder / "metadata").glob("*.metadata.json*")
        if (matched := _METADATA.fullmatch(path.name))
    ]
    if not numbered:
        raise SourceError(
            "The folder contains no metadata of an Iceberg table.",
            file=str(folder / "metadata"),
            hint="Set `path` to the folder of the table, which contains `metadata`.",
        )
    return max(numbered)[2]
