"""A few rows are read by the driver: its errors are those of the data, and contain no values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest

from chronolake.arrow_tasks import ArrowRows, are_here
from chronolake.errors import BatchError, LakeError


def rows_with(failure: Exception | None) -> ArrowRows:
    def read(places: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if failure is not None:
            raise failure
        yield from places

    def unused() -> object:
        raise AssertionError("Spark is not needed")

    return ArrowRows(unused, read, "number bigint", pa.table({"number": [1, 2]}))  # type: ignore[arg-type]


def test_rows_are_read_without_spark_and_by_all_steps() -> None:
    def double(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"twice": [2 * number for number in batch["number"].to_pylist()]})

    rows = rows_with(None).then(double, "twice bigint")
    assert are_here(rows)
    assert rows.collect() == [{"twice": 2}, {"twice": 4}]


def test_an_unexpected_error_contains_no_value() -> None:
    with pytest.raises(LakeError) as caught:
        rows_with(pa.ArrowInvalid("Failed to parse string: 'a-secret'")).collect()
    assert "ArrowInvalid in test_arrow_tasks.py" in str(caught.value)
    assert "a-secret" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("failure", [BatchError("no key"), OSError(28, "No space left on device")])
def test_errors_of_the_data_and_the_disk_are_kept(failure: Exception) -> None:
    with pytest.raises(type(failure)) as caught:
        rows_with(failure).collect()
    assert caught.value is failure
