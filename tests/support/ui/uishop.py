"""A lake for the web UI: all modes, hostile values, a long timeline, an unreadable table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from chronolake import core
from chronolake.change_set import OP, SEQ, UNMODIFIED, Op
from chronolake.formatting import cells
from chronolake.lake import Lake
from chronolake.types import (
    ACTIVE,
    DELETED,
    END,
    START,
    SYNCED,
    TMAX_TEXT,
    Column,
    ColumnType,
    TableName,
    quote,
)

ORDERS: Final = TableName("shop", "orders")
CUSTOMERS: Final = TableName("shop", "customers")
CARTS: Final = TableName("shop", "carts")
NOTES: Final = TableName("shop", "notes")
SENSOR: Final = TableName("plant", "sensor")
ODD: Final = TableName("sch.e ma", "ta'ble <b>\"🦆`")
NEW: Final = TableName("shop", "brand_new")
BROKEN: Final = TableName("shop", "broken")
NAMES: Final = (ORDERS, CUSTOMERS, CARTS, NOTES, SENSOR, ODD, NEW, BROKEN)

SCRIPT: Final = "<script>alert(1)</script>"
LONG_TEXT: Final = "a very long text, " * 4_000
READINGS: Final = 10_000
#: Two times to compare `shop.orders` at: before and after some were deleted and restored.
BEFORE: Final = "2026-10-20T12:00:00Z"
AFTER: Final = "2026-11-10T12:00:00Z"

_BEGIN: Final = datetime(2026, 10, 1, 8, tzinfo=UTC)
_ORDERS: Final = 180
_ODD_KEY: Final = "k e.y\"'<i>"
_KEYS: Final = frozenset({"id", "book", "page", _ODD_KEY})


def column(text: str) -> Column:
    """Parse a column: `name*:TYPE`, with a star for a key column."""
    name, _, kind = text.rpartition(":")
    return Column(name.removesuffix("*"), ColumnType.parse(kind), primary_key=name.endswith("*"))


def of_history(*texts: str) -> list[Column]:
    times = (f"{START}*:UTC_DATETIME", f"{END}:UTC_DATETIME", f"{ACTIVE}:BOOLEAN")
    return [column(text) for text in (*texts, f"{SYNCED}:UTC_DATETIME", *times)]


def iso(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


Version = tuple[dict[str, Any], str, str]


def send(
    lake: Lake,
    name: TableName,
    columns: Sequence[Column],
    rows: Iterable[tuple[Op, dict[str, Any]]],
    batch: str,
) -> None:
    """Publish a batch of rows, each a dictionary of texts by column."""
    texts = [
        (int(op), place, None, *(None if (cell := row.get(column.name)) is None else str(cell)
                                 for column in columns))
        for place, (op, row) in enumerate(rows)
    ]  # fmt: skip
    fields = ", ".join(f"{quote(column.name)} string" for column in columns)
    frame = lake.spark.createDataFrame(
        texts, f"{OP} int, {SEQ} bigint, {UNMODIFIED} array<bigint>, {fields}"
    )
    frame = frame.select(
        OP,
        SEQ,
        UNMODIFIED,
        *(F.col(quote(column.name)).cast(column.type.sql) for column in columns),
    )
    is_history = any(column.name == START for column in columns)
    write = core.write_history_batch if is_history else core.write_batch
    write(lake, name, frame, columns=columns, batch=batch)


def versions(rows: Iterable[Version]) -> list[tuple[Op, dict[str, Any]]]:
    """Return versions of a batch, with the rows for the earliest start of each record."""
    sent, first = [], {}
    for reported, start, end in rows:
        active = str(end == TMAX_TEXT).lower()
        sent.append(
            (Op.REPLACE, {**reported, SYNCED: start, START: start, END: end, ACTIVE: active})
        )
        key = str({name: reported[name] for name in reported if name in _KEYS})
        if key not in first or start < first[key][START]:
            first[key] = {**reported, START: start}
    return [*((Op.EARLIEST, row) for row in first.values()), *sent]


def _orders() -> tuple[list[Version], list[Version], list[dict[str, Any]]]:
    """Return three batches: the orders, their later states, and which orders were deleted."""
    first, second, deleted = [], [], []
    for number in range(_ORDERS):
        placed = _BEGIN + timedelta(hours=number * 5, minutes=number % 7)
        paid, shipped = placed + timedelta(hours=9 + number % 30), placed + timedelta(days=12)
        reported = {
            "id": 100 + number,
            "customer": f"customer {number % 17}",
            "amount": f"{(number * 37) % 900 + 5}.50",
            "note": None if number % 3 else f"note {number}",
        }
        millisecond = timedelta(milliseconds=1)
        first.append(({**reported, "status": "placed"}, iso(placed), iso(paid - millisecond)))
        first.append(({**reported, "status": "paid"}, iso(paid), TMAX_TEXT))
        if number % 2 == 0:
            second.append(({**reported, "status": "shipped"}, iso(shipped), TMAX_TEXT))
        if number % 9 == 4:
            gone = shipped + timedelta(days=2)
            deleted.append({"id": 100 + number, SYNCED: iso(gone), END: iso(gone), ACTIVE: "false"})
    # A version that ended when it began, and a record that is deleted and comes back.
    at = "2026-10-15T10:00:00.000Z"
    first.append(({"id": 99, "customer": "nobody", "status": "typo"}, at, at))
    return first, second, deleted


def _notes() -> list[Version]:
    texts = {
        ("script", 1): SCRIPT,
        ("quotes", 2): "a 'quoted\" \\ & <b>bold</b>",
        ("unicode", 3): "🦆 Ünïcødé \u202eright to left\u202c and a bell \x07",
        ("long", 4): LONG_TEXT,
        ("empty", 5): "",
        (SCRIPT, 6): "a hostile key",
        ("<img src=x onerror=alert(1)>", None): "a null in the key",
        (None, None): "nothing but nulls",
        ("plus+percent%&=#?", 7): "a key for URLs",
    }
    return [
        ({"book": book, "page": page, "text": text, "extra": '{"a": [1, null]}', "raw": None},
         "2026-10-01T00:00:00.000Z", TMAX_TEXT)
        for (book, page), text in texts.items()
    ]  # fmt: skip


def build(lake: Lake) -> None:
    """Fill an empty lake."""
    orders = of_history("id*:LONG", "customer:STRING", "status:STRING", "amount:DECIMAL(12,2)",
                        "note:STRING")  # fmt: skip
    core.create(lake, ORDERS, orders)
    first, second, deleted = _orders()
    send(lake, ORDERS, orders, versions(first), "orders-1")
    send(lake, ORDERS, orders, versions(second), "orders-2")
    gone = [(op, {**row, START: row[END]} if op is Op.EARLIEST else row)
            for op in (Op.EARLIEST, Op.DELETE) for row in deleted]  # fmt: skip
    send(lake, ORDERS, orders, gone, "orders-3")
    back = [({"id": 104, "customer": "customer 4", "status": "back", "amount": "1.00"},
             "2026-11-12T08:00:00.000Z", TMAX_TEXT)]  # fmt: skip
    send(lake, ORDERS, orders, versions(back), "orders-4")

    notes = of_history("book*:STRING", "page*:LONG", "text:STRING", "extra:JSON", "raw:BINARY")
    core.create(lake, NOTES, notes)
    send(lake, NOTES, notes, versions(_notes()), "notes-1")

    customers = [column(text) for text in ("id*:LONG", "name:STRING", "city:STRING",
                                           f"{SYNCED}:UTC_DATETIME")]  # fmt: skip
    core.create(lake, CUSTOMERS, customers)
    people = [{"id": n, "name": f"Name {n}", "city": ("Oslo", "Lima", None)[n % 3],
               SYNCED: "2026-11-01T00:00:00Z"} for n in range(30)]  # fmt: skip
    send(lake, CUSTOMERS, customers, [(Op.REPLACE, person) for person in people], "people-1")
    moved = [{**person, "city": "Kyoto"} for person in people[:5]]
    send(lake, CUSTOMERS, customers, [(Op.REPLACE, person) for person in moved], "people-2")

    carts = [column(text) for text in ("id*:STRING", "things:INT", f"{SYNCED}:UTC_DATETIME",
                                       f"{DELETED}:BOOLEAN")]  # fmt: skip
    core.create(lake, CARTS, carts)
    rows = [{"id": f"cart {n}", "things": n, SYNCED: "2026-11-01T00:00:00Z",
             DELETED: str(n % 4 == 0).lower()} for n in range(12)]  # fmt: skip
    send(lake, CARTS, carts, [(Op.REPLACE, row) for row in rows], "carts-1")

    sensor = of_history("id*:INT", "reading:DOUBLE", "state:STRING")
    core.create(lake, SENSOR, sensor)
    lake.spark.sql(
        f"""INSERT INTO chronolake.{SENSOR.sql}
        SELECT 1 AS id, id % 97 / 4 AS reading, CASE WHEN id % 500 < 480 THEN 'up' ELSE 'down' END,
          timestamp_seconds(1767225600 + id * 900),
          timestamp_seconds(1767225600 + id * 900) AS {START},
          CASE WHEN id = {READINGS - 1} THEN TIMESTAMP '{TMAX_TEXT}' WHEN id % 1000 = 7
               THEN timestamp_seconds(1767225600 + id * 900 + 60)
               ELSE timestamp_millis((1767225600 + (id + 1) * 900) * 1000 - 1) END AS {END},
          id = {READINGS - 1} AS {ACTIVE}
        FROM range({READINGS})"""
    )
    odd = of_history(f"{_ODD_KEY}*:STRING", "va`lue:STRING")
    core.create(lake, ODD, odd)
    reported = {odd[0].name: SCRIPT, odd[1].name: "x"}
    send(lake, ODD, odd, versions([(reported, "2026-10-01T00:00:00.000Z", TMAX_TEXT)]), "odd-1")
    for name in (NEW, BROKEN):
        core.create(lake, name, of_history("id*:LONG", "v:STRING"))


def expected(lake: Lake) -> dict[str, Any]:
    """Return the past as Spark reports it, as the cells that the page shows."""

    def rows(frame: DataFrame) -> list[dict[str, Any]]:
        found = frame.orderBy("id").toArrow()
        columns = {name: cells(found[name]) for name in found.column_names}
        return [
            {name: column[place] for name, column in columns.items()}
            for place in range(found.num_rows)
        ]

    orders = lake.table(ORDERS)
    return {at: rows(orders.as_of(at)) for at in (BEFORE, AFTER)}


def break_one(lake: Lake) -> None:
    """Delete the metadata of a table."""
    found = lake.spark.sql(f"DESCRIBE EXTENDED chronolake.{BROKEN.sql}").collect()
    place = next(row["data_type"] for row in found if row["col_name"] == "Location")
    for file in (Path(place.removeprefix("file:")) / "metadata").glob("*.metadata.json"):
        file.unlink()
