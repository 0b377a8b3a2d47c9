"""A lake to measure on, and the product's own ways to write to it."""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import structlog
from pyspark.sql import DataFrame, SparkSession

from chronolake import batch_files, core
from chronolake.change_set import Op
from chronolake.config import load
from chronolake.lake import Lake
from harness.batches import FORM, Batch
from harness.clock import machine, say
from harness.customers import HISTORY, HISTORY_NAMES, LIVE, LIVE_NAMES, Made

_REQUIRED_LIVE: Final = {
    Op.REPLACE: frozenset(LIVE_NAMES),
    Op.UPDATE: frozenset(LIVE_NAMES),
    Op.DELETE: frozenset({"id"}),
}
_REQUIRED_HISTORY: Final = {
    Op.EARLIEST: frozenset({"id", "_fivetran_start"}),
    Op.REPLACE: frozenset(HISTORY_NAMES),
    Op.UPDATE: frozenset(HISTORY_NAMES),
    Op.DELETE: frozenset({"id", "_fivetran_end"}),
}


def options(claim: str | None, *, repeat: int) -> argparse.ArgumentParser:
    """Return a parser with the flags that every measurement has."""
    parser = argparse.ArgumentParser(
        description=claim, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="tiny: shows that it works")
    parser.add_argument("--repeat", type=int, default=repeat, help="measured rounds")
    parser.add_argument("--folder", type=Path, help="where the lake is made; default: temporary")
    parser.add_argument("--driver-memory", help="Spark's, such as 8g; default: the product's")
    return parser


@contextmanager
def opened(
    flags: argparse.Namespace, *, fsync: bool = True, settings: Mapping[str, Any] | None = None
) -> Iterator[tuple[Lake, Path]]:
    """Make a lake, and a folder for batches beside it; both are removed when the block ends.

    Args:
        flags: those of `options`.
        fsync: whether commits survive a loss of power.
        settings: others of the lake.
    """
    say(machine())
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    conf = {"spark.driver.memory": flags.driver_memory} if flags.driver_memory else {}
    with tempfile.TemporaryDirectory(dir=flags.folder, prefix="chronolake-bench-") as folder:
        sent = Path(folder, "sent")
        sent.mkdir()
        place = Path(folder, "lake")
        overrides = {"spark.conf": conf, "fsync": str(fsync).lower(), **(settings or {})}
        config = load(place, overrides=overrides)
        with Lake.open(place, config=config) as lake:
            yield lake, sent


def changes(
    lake: Lake, made: Made, batch: Batch, *, history: bool, spark: SparkSession | None = None
) -> DataFrame:
    """Return a batch's change set as the server reads it, lazily and in the same session."""
    size = sum(Path(file.path).stat().st_size for file in batch.files)
    return batch_files.read(
        spark or lake.session_for(made.name, size),
        batch.files,
        HISTORY if history else LIVE,
        FORM,
        required=_REQUIRED_HISTORY if history else _REQUIRED_LIVE,
        table=str(made.name),
        batch=batch.name,
    )


def apply(
    lake: Lake, made: Made, batch: Batch, *, history: bool, decoded: DataFrame | None = None
) -> core.BatchResult:
    """Apply a batch to its table by ours, from its files or from its decoded rows."""
    rows = changes(lake, made, batch, history=history) if decoded is None else decoded
    write = core.write_history_batch if history else core.write_batch
    columns = HISTORY if history else LIVE
    return write(lake, made.name, rows, columns=columns, batch=batch.name)


@contextmanager
def kept(frame: DataFrame) -> Iterator[DataFrame]:
    """Compute and cache a frame while the block runs."""
    frame.persist()
    try:
        frame.count()
        yield frame
    finally:
        frame.unpersist()
