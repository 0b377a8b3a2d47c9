"""What a user's program looks like: type-checked as a test, never run."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import chronolake
from chronolake import inspect
from chronolake.config import LakeConfig, load


def states(folder: Path) -> list[str]:
    config: LakeConfig = load(folder, overrides={"spark.master": "local[2]"})
    try:
        with chronolake.Lake.open(folder, config=config) as lake:
            orders: chronolake.LakeTable = lake.table("shop.orders")
            orders.df.show()
            orders.history(id=1).show()
            orders.as_of(datetime(2024, 5, 1, tzinfo=UTC)).show()
            orders.as_of("2024-05-01T00:00:00Z").show()
            rows: int = len(orders.current().to_pandas()) + orders.to_arrow().num_rows
            frame: chronolake.LakeFrame = lake.sql("SELECT :n AS n", n=rows)
            frame.to_polars()
            columns: tuple[chronolake.Column, ...] = orders.describe().columns
            tables: list[chronolake.TableName] = lake.tables()
            return [column.name for column in columns] + [str(table) for table in tables]
    except chronolake.ChronolakeError as error:
        place: dict[str, str | int] = error.place
        return [error.message, error.hint or "", str(place), str(error.retryable)]


def synced(folder: Path) -> list[str]:
    result: chronolake.RunResult = chronolake.sync("shop", project=folder, streams=["orders"])
    return [f"{stream.table_name} {stream.written}" for stream in result.streams] + [str(result)]


def timeline(folder: Path) -> list[tuple[str | None, str]]:
    name = chronolake.TableName.parse("shop.orders")
    found: inspect.Timeline = inspect.history(load(folder), name, {"id": "1"})
    return [(version.start, version.ending.value) for version in found.versions]
