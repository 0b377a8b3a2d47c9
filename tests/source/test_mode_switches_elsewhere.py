"""Tables of functions, connectors and MySQL are switched while a sync of their pipeline reads."""

from __future__ import annotations

import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from chronolake.config import Project, load_project
from chronolake.lake import Lake
from chronolake.pipeline.store import Status
from chronolake.pipeline.sync import RunResult, sync
from chronolake.types import ACTIVE, DELETED
from support.connectors import Shop, stream, tap_stream
from support.datalakes import iceberg
from support.python_functions import MODULE
from support.source.mysql_fixtures import address, shop
from support.source.mysql_servers import MysqlShop
from support.waiting import wait_until

__all__ = ["address", "shop"]

pytestmark = pytest.mark.long

_RECORDS = "for key in (1, 2):\n    record('orders', id=key, note=note_of(key))\n"
#: Returns the note of all records; the second one waits until a file allows it.
_READ = """
import time
from pathlib import Path

def note_of(key):
    folder = Path({folder!r})
    note = (folder / "note").read_text()
    if key == 2 and note == "b":
        with (folder / "reads").open("a") as reads:
            reads.write("x")
        while not (folder / "go").exists():
            time.sleep(0.05)
    return note
"""


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Shop]:
    path = list(sys.path)
    yield Shop(tmp_path / "project")
    sys.path[:] = path
    sys.modules.pop(MODULE, None)


def _python(programs: Shop, read: str) -> None:
    function = """
        @chronolake.stream(key="id")
        def orders():
            for key in (1, 2):
                yield {"id": key, "note": note_of(key)}
    """
    code = f"import chronolake\n{read}\n{textwrap.dedent(function)}"
    (programs.folder / f"{MODULE}.py").write_text(code)
    programs.configure({"type": "python", "run": f"{MODULE}:orders"})


def _airbyte(programs: Shop, read: str) -> None:
    programs.airbyte([stream("orders")], f"{read}\n{_RECORDS}")


def _singer(programs: Shop, read: str) -> None:
    schema = "raw(json.dumps({'type': 'SCHEMA', 'stream': 'orders', 'key_properties': ['id'], "
    schema += "'schema': STREAMS[0]['schema']}).encode() + b'\\n')"
    programs.singer([tap_stream("orders")], f"{read}\n{schema}\n{_RECORDS}")


def _switched_during_a_sync(
    lake: Lake,
    project: Callable[[], Project],
    *,
    is_held: Callable[[], bool],
    switch: Callable[[], None],
    table: Callable[[], pa.Table],
    release: Callable[[], object],
) -> None:
    """Sync, switch the table to live mode while the source holds back a record, and release it."""
    results: list[RunResult] = []
    thread = threading.Thread(
        target=lambda: results.append(sync(lake, project(), "shop", reread=project))
    )
    thread.start()
    try:
        wait_until(is_held, "The source is not read.")
        switch()
        wait_until(lambda: ACTIVE not in table().column_names, "The table is not switched.")
        assert not results
    finally:
        release()
        thread.join()
    (result,) = results
    assert result.status is Status.SUCCEEDED, result.streams
    assert not {ACTIVE, DELETED} & set(table().column_names)


@pytest.mark.parametrize("kind", [_python, _airbyte, _singer], ids=lambda kind: kind.__name__[1:])
def test_a_table_is_switched_during_a_read_of_a_program(
    programs: Shop, kind: Callable[[Shop, str], None]
) -> None:
    """The program runs once, and nothing is read again."""
    folder = programs.folder
    (folder / "note").write_text("a")
    kind(programs, _READ.format(folder=str(folder)))
    file = programs.project.file
    programs.sync()
    (folder / "note").write_text("b")

    def switch() -> None:
        content = yaml.safe_load(file.read_text())
        content["pipelines"]["shop"]["mode"] = "live"
        file.write_text(yaml.safe_dump(content))

    _switched_during_a_sync(
        programs.lake,
        lambda: load_project(file),
        is_held=(folder / "reads").exists,
        switch=switch,
        table=lambda: iceberg(programs.project, "shop", "orders").scan().to_arrow(),
        release=(folder / "go").touch,
    )

    assert (folder / "reads").read_text() == "x"
    rows = iceberg(programs.project, "shop", "orders").scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["note"]) for row in rows) == [(1, "b"), (2, "b")]


def test_a_table_of_mysql_is_switched_during_a_copy(shop: MysqlShop) -> None:
    """Another table of the pipeline is copied for the first time, and waits for a lock."""
    shop.run(
        "CREATE TABLE small (id INT PRIMARY KEY, note TEXT)", "INSERT INTO small VALUES (1, 'a')"
    )
    shop.sync_or_fail()
    shop.run(
        "UPDATE small SET note = 'b'",
        "CREATE TABLE big (id INT PRIMARY KEY, note TEXT)",
        "INSERT INTO big VALUES (1, 'x'), (2, 'y')",
    )
    connection = shop.connect(database="shop")
    waiting = "SELECT id FROM information_schema.processlist WHERE state LIKE '%metadata lock%'"
    with connection.cursor() as cursor:
        cursor.execute("LOCK TABLES big WRITE")
        _switched_during_a_sync(
            shop.lake,
            lambda: shop.project,
            is_held=lambda: bool(shop.rows(waiting)),
            switch=lambda: shop.configure(mode="live", streams="{shop.big: {mode: history}}"),
            table=lambda: shop.table("small"),
            release=lambda: cursor.execute("UNLOCK TABLES"),
        )
    connection.close()
    rows: list[dict[str, Any]] = shop.table("small").to_pylist()
    assert [(row["id"], row["note"]) for row in rows] == [(1, "b")]
    assert shop.versions("big", ["id", "note"]) == [(1, "x", True), (2, "y", True)]
