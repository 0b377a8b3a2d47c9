"""Commits to a REST catalog: the first of two writers wins, and replacements happen once or not."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import pytest
from py4j.protocol import Py4JError
from pyiceberg.catalog.rest import RestCatalog
from pyspark.errors import PySparkException

from chronolake import core, rest_catalog
from chronolake.cancellation import cancel_if
from chronolake.core import migration
from chronolake.errors import (
    CallCancelledError,
    CatalogError,
    ChronolakeError,
    CommitConflictError,
    SchemaError,
)
from chronolake.iceberg import HIDDEN, IcebergTable
from chronolake.lake import Lake
from chronolake.types import DELETED, SYNCED, Column, ColumnType, Kind, Mode, TableName
from support.catalogs.oauth import OAuth
from support.catalogs.server import RestCatalogServer
from support.lakes import lake_config
from support.store.faulty_proxy import (
    Answer,
    Fault,
    FaultyProxy,
    LoseResponse,
    refused_by_catalog,
)
from support.waiting import wait_until

_COMMIT: Final = r"POST /v1/namespaces/[^/]*/tables/[^/]+$"
_COLUMNS: Final = (
    Column("id", ColumnType(Kind.INT), primary_key=True),
    Column("name", ColumnType(Kind.STRING)),
    Column(SYNCED, ColumnType(Kind.UTC_DATETIME)),
    Column(DELETED, ColumnType(Kind.BOOLEAN)),
)


@pytest.fixture
def lake(tmp_path: Path, proxy: FaultyProxy) -> Iterator[Lake]:
    uri = f"http://127.0.0.1:{proxy.port}"
    with Lake.open(tmp_path, config=lake_config(tmp_path, **{"catalog.uri": uri})) as opened:
        yield opened


@pytest.fixture
def name(lake: Lake) -> TableName:
    """Return a table with the records 0 to 4."""
    found = TableName(f"s_{uuid4().hex[:8]}", "t")
    core.create(lake, found, _COLUMNS)
    _insert(lake, found, 0, 5)
    return found


def _insert(lake: Lake, name: TableName, begin: int, end: int) -> None:
    lake.spark.sql(
        f"INSERT INTO chronolake.{name.sql} "
        f"SELECT CAST(id AS INT), 'name ' || id, now(), false FROM range({begin}, {end})"
    )


def _rows(rest: RestCatalogServer, name: TableName) -> list[dict[str, Any]]:
    with RestCatalog("reader", uri=rest.uri) as catalog:
        table = catalog.load_table((*name.levels, name.table))
        found: list[dict[str, Any]] = table.scan().to_arrow().to_pylist()
    return found


def _ids(rest: RestCatalogServer, name: TableName) -> list[int]:
    return sorted(row["id"] for row in _rows(rest, name))


def _set_property(table: IcebergTable) -> None:
    table.commit(table.builder().setProperties(table.catalog.map({"a": "b"})).build())


def _move_hidden(table: IcebergTable) -> None:
    table.commit(table.builder().setBranchSnapshot(table.snapshot_id, HIDDEN).build())


def _move_other(table: IcebergTable) -> None:
    table.commit(table.builder().setBranchSnapshot(table.snapshot_id, "other").build())


def _rename_column(table: IcebergTable) -> None:
    table.java.updateSchema().renameColumn("name", "title").commit()


def _append(table: IcebergTable) -> None:
    table.java.newAppend().commit()


@pytest.mark.sampled
@pytest.mark.parametrize("first", [_append, _move_hidden, _rename_column])
@pytest.mark.parametrize("second", [_set_property, _move_other])
def test_a_commit_to_a_table_that_has_changed_is_refused(
    lake: Lake,
    name: TableName,
    first: Callable[[IcebergTable], None],
    second: Callable[[IcebergTable], None],
) -> None:
    """Iceberg's own requirements concern only what a commit changes."""
    stale = lake.catalog.load(name)
    first(lake.catalog.load(name))

    with pytest.raises(CommitConflictError):
        second(stale)
    second(stale.reload())


@pytest.mark.long
def test_modes_are_switched_repeatedly(
    lake: Lake, name: TableName, rest: RestCatalogServer
) -> None:
    used: dict[int, tuple[str, str]] = {}
    for number, mode in enumerate((Mode.HISTORY, Mode.SOFT_DELETE, Mode.HISTORY, Mode.SOFT_DELETE)):
        assert core.switch_mode(lake, name, mode)
        assert _ids(rest, name) == list(range(number, 5))
        # Nothing is left of the partitioning by a column that the table no longer has.
        lake.spark.sql(f"DELETE FROM chronolake.{name.sql} WHERE id = {number}")
        assert _ids(rest, name) == list(range(number + 1, 5))
        table = lake.catalog.load(name)
        assert table.metadata.specs().size() == 1
        assert table.is_unwritten is False
        for field in table.fields:
            assert used.setdefault(field.field_id, (field.name, field.type)) == (
                field.name,
                field.type,
            )
    assert {column.name for column in _COLUMNS} == {field.name for field in table.fields}


@pytest.mark.long
def test_a_replacement_does_not_lose_rows_that_are_appended_meanwhile(
    lake: Lake, name: TableName, rest: RestCatalogServer, proxy: FaultyProxy
) -> None:
    pending = True

    def append_first(request: str, _: Mapping[str, str], body: bytes) -> Answer | None:
        nonlocal pending
        if pending and request.startswith("POST") and b"remove-snapshots" in body:
            pending = False
            _insert(lake, name, 5, 7)
        return None

    proxy.guard = append_first

    core.switch_mode(lake, name, Mode.HISTORY)

    assert not pending
    assert _ids(rest, name) == list(range(7))


@pytest.mark.long
def test_a_rewrite_keeps_field_ids_and_rows(
    lake: Lake, name: TableName, rest: RestCatalogServer
) -> None:
    core.switch_mode(lake, name, Mode.HISTORY)
    before = {field.name: field.field_id for field in lake.catalog.load(name).fields}
    description = lake.describe(name)
    assert description is not None
    wanted = [
        replace(column, type=ColumnType(Kind.STRING)) if column.name == "id" else column
        for column in description.columns
    ]

    core.alter(lake, name, wanted, drop_columns=False)

    after = {field.name: field.field_id for field in lake.catalog.load(name).fields}
    assert after.pop("id") > max(before.values())
    assert after.items() <= before.items()
    assert sorted(row["id"] for row in _rows(rest, name)) == ["0", "1", "2", "3", "4"]


@pytest.mark.long
def test_tables_are_copied_renamed_and_dropped(
    lake: Lake, name: TableName, rest: RestCatalogServer
) -> None:
    copy, renamed = TableName(name.schema, "copy"), TableName(name.schema, "renamed")
    migration.copy_table(lake, name, copy)
    migration.rename_table(lake, copy, renamed)

    assert lake.tables()
    assert _ids(rest, renamed) == list(range(5))
    migration.drop_table(lake, renamed)
    assert renamed not in lake.tables()
    assert _ids(rest, name) == list(range(5))


def test_a_cancelled_creation_keeps_the_files_of_a_renamed_table(
    lake: Lake, name: TableName, rest: RestCatalogServer
) -> None:
    """The catalog stores a new table where the one was created that had its name before."""
    kept = TableName(name.schema, "kept")
    migration.rename_table(lake, name, kept)
    # As a prefix, the folder's name is also that of this one's.
    longer = TableName(name.schema, f"{name.table}_longer")
    core.create(lake, longer, _COLUMNS)
    _insert(lake, longer, 0, 3)

    with (
        cancel_if(lambda: lake.catalog.find(name) is not None),
        pytest.raises(CallCancelledError),
    ):
        core.create(lake, name, _COLUMNS)

    assert lake.catalog.find(name) is None
    assert _ids(rest, kept) == list(range(5))
    assert _ids(rest, longer) == list(range(3))


@pytest.mark.long
def test_a_table_in_the_folder_of_a_renamed_one_is_written(
    lake: Lake, name: TableName, rest: RestCatalogServer
) -> None:
    """The metadata of the renamed table is newer, and does not belong to the new one."""
    _insert(lake, name, 5, 7)
    kept = TableName(name.schema, "kept")
    migration.rename_table(lake, name, kept)
    core.create(lake, name, _COLUMNS)
    assert lake.catalog.load(name).location == lake.catalog.load(kept).location

    for changed in (name, kept):
        core.switch_mode(lake, changed, Mode.HISTORY)

    assert _ids(rest, name) == []
    assert _ids(rest, kept) == list(range(7))


@pytest.mark.parametrize("name", ["s.`a#b`", "s.`a?b`", "`s#1`.t"])
def test_tables_that_would_share_a_folder_are_refused(lake: Lake, name: str) -> None:
    """Iceberg's FileIO for S3 writes all files of `…/a#b/` to the object `…/a`."""
    with pytest.raises(SchemaError, match=r"cuts off at [#?]"):
        core.create(lake, TableName.parse(name), _COLUMNS)


@pytest.mark.sampled
@pytest.mark.parametrize("refuses", [False, True])
def test_a_catalog_may_not_nest_schemas(
    lake: Lake, name: TableName, rest: RestCatalogServer, proxy: FaultyProxy, *, refuses: bool
) -> None:
    """Some refuse to list the schemas of a schema, others list all schemas again."""

    def answer(request: str, *_: object) -> Answer | None:
        if "parent=" not in request:
            return None
        if refuses:
            return refused_by_catalog(400, "BadRequestException")
        listed = [[name.schema]]
        return Answer(200, json.dumps({"namespaces": listed}).encode())

    proxy.guard = answer

    assert name in lake.tables()
    assert name in rest_catalog.list_tables(lake.config)


@pytest.mark.sampled
@pytest.mark.parametrize("found", ["parent=", "/tables"])
def test_a_schema_that_is_dropped_while_tables_are_listed_is_skipped(
    lake: Lake, name: TableName, rest: RestCatalogServer, proxy: FaultyProxy, found: str
) -> None:
    gone = f"gone_{uuid4().hex[:8]}"
    lake.catalog.ensure_schema(gone)

    def answer(request: str, *_: object) -> Answer | None:
        is_it = request.startswith("GET") and gone in request and found in request
        return refused_by_catalog(404, "NoSuchNamespaceException") if is_it else None

    proxy.guard = answer

    assert name in lake.tables()
    assert name in rest_catalog.list_tables(lake.config)


def test_a_refused_list_of_tables_is_a_clear_error(lake: Lake, proxy: FaultyProxy) -> None:
    lake.tables()
    proxy.fail("GET /v1/namespaces", refused_by_catalog(401, "NotAuthorizedException"), times=99)

    with pytest.raises(CatalogError, match="refuses the credentials"):
        lake.tables()


@pytest.mark.long
def test_tokens_are_renewed_with_the_credential(
    tmp_path: Path, rest: RestCatalogServer, proxy: FaultyProxy
) -> None:
    """A process may run for longer than a token is valid, and a server have no token exchange."""
    oauth = OAuth("chronolake:a-secret-of-tests", seconds=15)
    proxy.guard = oauth.guard
    settings = {
        "catalog.uri": f"http://127.0.0.1:{proxy.port}",
        "catalog.properties": {"credential": oauth.credential},
    }
    name = TableName(f"s_{uuid4().hex[:8]}", "t")
    with Lake.open(tmp_path, config=lake_config(tmp_path, **settings)) as lake:
        core.create(lake, name, _COLUMNS)
        first = oauth.tokens()

        wait_until(lambda: first.isdisjoint(oauth.tokens()), "a token does not end")
        _insert(lake, name, 0, 5)
        core.switch_mode(lake, name, Mode.HISTORY)

    assert _ids(rest, name) == list(range(5))


@pytest.mark.long
@pytest.mark.parametrize(
    "fault",
    [
        LoseResponse(),
        pytest.param(refused_by_catalog(409, "CommitFailedException"), marks=pytest.mark.long),
        pytest.param(refused_by_catalog(500, "InternalServerError"), marks=pytest.mark.long),
        pytest.param(refused_by_catalog(504, "GatewayTimeout"), marks=pytest.mark.long),
        pytest.param(refused_by_catalog(401, "NotAuthorizedException"), marks=pytest.mark.long),
    ],
)
def test_a_failed_commit_leaves_the_old_table_or_the_new_one(
    lake: Lake, name: TableName, rest: RestCatalogServer, proxy: FaultyProxy, fault: Fault
) -> None:
    modes = itertools.cycle((Mode.HISTORY, Mode.SOFT_DELETE))
    for passed in itertools.count():
        mode = next(modes)
        proxy.failed.clear()
        proxy.fail(_COMMIT, fault, after=passed)
        try:
            core.switch_mode(lake, name, mode)
        except (ChronolakeError, Py4JError, PySparkException):
            assert proxy.failed
        proxy.heal()
        assert _ids(rest, name) == list(range(5))
        core.switch_mode(lake, name, mode)
        description = lake.describe(name)
        assert description is not None
        assert description.mode is mode
        assert _ids(rest, name) == list(range(5))
        if not proxy.failed:
            break
    assert passed > 2
