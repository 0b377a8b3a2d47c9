"""An error in one of Spark's tasks is reported with its own message."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest
from pyspark.errors import PythonException

from chronolake.errors import SourceError
from chronolake.iceberg import spark_words
from chronolake.lake import Lake


def _words_of(lake: Lake, error: Exception) -> str | None:
    """Return the reported message of an error that a task raises."""

    def fail(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            raise error from ValueError("The reason.")
        yield from ()

    with pytest.raises(PythonException) as raised:
        lake.spark.range(3).mapInArrow(fail, "id bigint").collect()
    return spark_words(raised.value)


def test_an_error_in_a_task_keeps_its_message_location_and_hint(lake: Lake) -> None:
    error = SourceError("No:\nit is odd.", table="t", hint="Mend it.")
    assert _words_of(lake, error) == "No: it is odd. (table 't') Mend it."


def test_any_other_error_in_a_task_names_its_origin_and_no_value(lake: Lake) -> None:
    reported = str(_words_of(lake, ValueError("The value 7.")))
    assert reported.startswith("A Spark task failed with ValueError in test_task_errors.py, line ")
    assert "value 7" not in reported
