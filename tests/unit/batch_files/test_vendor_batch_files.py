"""The files that the vendor's own tester made."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pytest

from chronolake.batch_files.decoder import ReadOptions, decode_file
from chronolake.batch_files.files import BatchFile, FileForm
from chronolake.change_set import OP, SEQ, Op
from chronolake.change_set import UNMODIFIED as WORDS
from chronolake.types import Column, ColumnType, Kind
from support.batch_columns import values
from support.batch_writer import NULL, UNMODIFIED

FILES = Path(__file__).resolve().parents[4] / "shared/data/partner-sdk/files"
PLAIN = sorted(FILES.glob("*.csv"))
KINDS = {
    "amount": Kind.DOUBLE,
    "bool_val": Kind.BOOLEAN,
    "binary_val": Kind.BINARY,
    "created_at": Kind.NAIVE_DATETIME,
    "customer_id": Kind.LONG,
    "decimal_val": Kind.DECIMAL,
    "double_val": Kind.DOUBLE,
    "event_timestamp": Kind.UTC_DATETIME,
    "float_val": Kind.FLOAT,
    "id": Kind.INT,
    "int_val": Kind.INT,
    "is_active": Kind.BOOLEAN,
    "is_error": Kind.BOOLEAN,
    "long_val": Kind.LONG,
    "naive_date_val": Kind.NAIVE_DATE,
    "naive_datetime_val": Kind.NAIVE_DATETIME,
    "naive_time_val": Kind.NAIVE_TIME,
    "order_date": Kind.UTC_DATETIME,
    "processing_time_ms": Kind.INT,
    "registration_date": Kind.NAIVE_DATE,
    "short_val": Kind.SHORT,
    "stock_count": Kind.INT,
    "total_amount": Kind.FLOAT,
    "total_spent": Kind.DECIMAL,
    "unit_price": Kind.DOUBLE,
    "user_id": Kind.LONG,
    "utc_datetime_val": Kind.UTC_DATETIME,
    "_fivetran_active": Kind.BOOLEAN,
    "_fivetran_deleted": Kind.BOOLEAN,
    "_fivetran_end": Kind.UTC_DATETIME,
    "_fivetran_start": Kind.UTC_DATETIME,
    "_fivetran_synced": Kind.UTC_DATETIME,
}
OPS = {
    "upsert": Op.REPLACE,
    "update": Op.UPDATE,
    "delete": Op.DELETE,
    "earliest": Op.EARLIEST,
}
#: The columns of a change set before the data.
_FIRST = (OP, SEQ, WORDS)
pytestmark = pytest.mark.skipif(not PLAIN, reason="the shared vendor files are not beside the repo")


def rows(file: BatchFile, form: FileForm, columns: tuple[Column, ...]) -> Iterator[object]:
    for batch in decode_file(file, 0, ReadOptions(form, columns, {}, "sample.table", "batch-1")):
        yield from zip(*(values(batch, name) for name in batch.schema.names), strict=True)


@pytest.mark.parametrize("path", PLAIN, ids=lambda path: path.stem)
def test_a_vendor_file_is_read_the_same_in_every_form(path: Path) -> None:
    header, *lines = csv.reader(io.StringIO(path.read_bytes().decode(), newline=""))
    columns = tuple(Column(name, ColumnType(KINDS.get(name, Kind.STRING))) for name in header)
    op = OPS[path.stem.rpartition("_")[2]]
    plain = list(
        rows(BatchFile(str(path), op), FileForm("csv", "off", False, NULL, UNMODIFIED), columns)
    )
    assert len(plain) == len(lines)
    for place, column in enumerate(columns, start=len(_FIRST)):
        for line, row in zip(lines, plain, strict=True):
            text = line[place - len(_FIRST)]
            cell = row[place]  # type: ignore[index]
            assert (cell is None) == (text in (NULL, UNMODIFIED))
            if cell is not None and column.type.kind is Kind.STRING:
                assert cell == text
    for ending, compression, encrypted in ((".zstd", "zstd", False), (".zstd.aes", "zstd", True)):
        other = path.with_name(path.name + ending)
        if other.exists():
            key = Path(f"{other}.key").read_bytes() if encrypted else None
            form = FileForm("csv", compression, encrypted, NULL, UNMODIFIED)  # type: ignore[arg-type]
            assert list(rows(BatchFile(str(other), op, key), form, columns)) == plain
