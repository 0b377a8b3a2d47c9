"""Files that never change are read once: in a bucket, each read takes a request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from chronolake import core
from chronolake.errors import LakeError
from chronolake.lake import Lake
from chronolake.location import plain
from chronolake.types import Column, ColumnType, Kind, TableName

_NAME = TableName("caches", "orders")
_COLUMNS = (
    Column("id", ColumnType(Kind.LONG), primary_key=True),
    Column("_fivetran_synced", ColumnType(Kind.UTC_DATETIME)),
)


@pytest.fixture(scope="module")
def metadata(lake: Lake) -> Path:
    """Create a table with a row; return its current metadata file."""
    core.create(lake, _NAME, _COLUMNS)
    lake.sql(f"INSERT INTO {_NAME.sql} VALUES (1, current_timestamp())")
    (table,) = lake.catalog.peek([_NAME])
    assert table is not None
    return Path(plain(table.metadata_file))


@contextmanager
def _removed(files: Sequence[Path]) -> Iterator[None]:
    """Let files be missing in the block."""
    assert files
    for file in files:
        file.rename(file.with_suffix(".moved"))
    try:
        yield
    finally:
        for file in files:
            file.with_suffix(".moved").rename(file)


def test_a_metadata_file_is_read_once(lake: Lake, metadata: Path) -> None:
    reader = Lake.prepare(lake.config)
    (before,) = reader.catalog.peek([_NAME])
    with _removed([metadata]):
        (after,) = reader.catalog.peek([_NAME])
        with pytest.raises(LakeError):
            Lake.prepare(lake.config).catalog.peek([_NAME])

    assert before is not None
    assert after is not None
    assert after.metadata_file == before.metadata_file
    assert after.rows == before.rows == 1


def test_a_manifest_is_read_once(lake: Lake, metadata: Path) -> None:
    statement = f"SELECT id FROM {_NAME.sql}"
    before = lake.sql(statement).collect()
    with _removed(list(metadata.parent.glob("*-m*.avro"))):
        after = lake.sql(statement).collect()

    assert after == before
    assert len(after) == 1
