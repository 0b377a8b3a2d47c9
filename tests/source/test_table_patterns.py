"""Tables are included and excluded by names and patterns, with every kind of source."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from chronolake.config import Project
from chronolake.errors import ConfigurationError
from chronolake.pipeline.streams import source_of, streams_of
from support.datalakes import DataLake, project
from support.declarative.apis import Api
from support.source.apishop import ApiShop
from support.source.databases import Shop

_CASES = [
    ("", {"a", "b", "b_log"}),
    ("include: [b]", {"b"}),
    ("include: ['B*']", {"b", "b_log"}),
    ("exclude: ['*_log']", {"a", "b"}),
    ("include: ['b*', a], exclude: ['*_LOG', 'x*']", {"a", "b"}),
    ("include: ['[ab]']", {"a", "b"}),
]
_TABLES = ("a", "b", "b_log")


def _names(of: Project, pipeline: str) -> set[str]:
    return {stream.name.rpartition(".")[2] for stream in streams_of(of, pipeline)}


@pytest.mark.parametrize(("patterns", "names"), _CASES)
def test_jdbc(tmp_path: Path, patterns: str, names: set[str]) -> None:
    tables = ", ".join(f"{name}: {{key: [id]}}" for name in _TABLES)
    source = f"{{type: jdbc, url: 'jdbc:sqlite:{tmp_path}/x.db', tables: {{{tables}}}}}"
    of = project(tmp_path, f"  p:\n    source: {source}\n    tables: {{{patterns}}}\n")
    assert _names(of, "p") == names


@pytest.mark.parametrize(
    ("patterns", "names"),
    [("include: [dbo.b]", {"b"}), ("include: ['DBO.*'], exclude: ['*.b*']", {"a"})],
)
def test_sql_server(tmp_path: Path, patterns: str, names: set[str]) -> None:
    tables = ", ".join(f"dbo.{name}: {{key: [id]}}" for name in _TABLES)
    source = f"{{type: sqlserver, url: 'jdbc:sqlserver://db', method: cdc, tables: {{{tables}}}}}"
    of = project(tmp_path, f"  p:\n    source: {source}\n    tables: {{{patterns}}}\n")
    assert _names(of, "p") == names


@pytest.mark.parametrize(("patterns", "names"), _CASES)
def test_data_lake(tmp_path: Path, patterns: str, names: set[str]) -> None:
    files = DataLake(tmp_path / "theirs")
    for name in _TABLES:
        files.write(name, [{"Id": "1", "source__modified": 0, "grax__idseq": "1"}])
    source = "{type: data_lake_v2, path: ./theirs, org: X}"
    of = project(tmp_path, f"  p:\n    source: {source}\n    tables: {{{patterns}}}\n")
    assert _names(of, "p") == names


def test_api(tmp_path: Path) -> None:
    with Api() as api:
        shop = ApiShop(tmp_path, api)
        shop.configure(
            "orders: {}", "soft: {}", "turns: {}", more="tables: {exclude: ['t*', soft]}"
        )
        shop.put(1)
        assert [stream.name for stream in streams_of(shop.project, "shop")] == ["orders"]
        shop.sync_or_fail()
    assert shop.rows("orders", "id") == [(1,)]


@pytest.mark.sampled
@pytest.mark.parametrize("method", ["logical_replication", "snapshot_diff"])
def test_postgresql(shop: Shop, method: str) -> None:
    shop.run(
        "CREATE SCHEMA audit",
        *(
            f"CREATE TABLE {name} (id int PRIMARY KEY)"
            for name in ("a", "b", "b_log", "audit.c", "audit.d")
        ),
        "INSERT INTO b VALUES (1)",
    )
    shop.configure(
        method=method,
        more=", schemas: [public, audit]",
        rules="tables: {include: ['public.*', audit.c], exclude: ['*_log']}",
    )
    shop.prepare()
    assert list(source_of(shop.project, "shop").discover()) != []
    assert {stream.name for stream in streams_of(shop.project, "shop")} == {
        "public.a",
        "public.b",
        "audit.c",
    }
    shop.sync_or_fail()
    assert shop.present("b", ["id"]) == [(1,)]
    shop.run("INSERT INTO b VALUES (2)", "INSERT INTO b_log VALUES (1)")
    shop.sync_or_fail()
    assert shop.present("b", ["id"]) == [(1,), (2,)]
    assert not list(shop.folder.rglob("*b_log*"))
    shop.run("DROP SCHEMA audit CASCADE")


@pytest.mark.parametrize(
    ("patterns", "problem"),
    [
        ("include: ['x*']", "no stream of the source matches"),
        ("include: [a, bb]", "the source has no stream 'bb'"),
        ("include: [a, b], exclude: [b]", "the source has no stream 'b', or `exclude` excludes it"),
    ],
)
def test_patterns_that_match_nothing(tmp_path: Path, patterns: str, problem: str) -> None:
    with closing(sqlite3.connect(tmp_path / "x.db")):
        tables = ", ".join(f"{name}: {{key: [id]}}" for name in _TABLES)
        source = f"{{type: jdbc, url: 'jdbc:sqlite:{tmp_path}/x.db', tables: {{{tables}}}}}"
        of = project(tmp_path, f"  p:\n    source: {source}\n    tables: {{{patterns}}}\n")
        with pytest.raises(ConfigurationError, match=problem):
            streams_of(of, "p")


def test_settings_of_excluded_streams_are_kept(tmp_path: Path) -> None:
    tables = ", ".join(f"{name}: {{key: [id]}}" for name in _TABLES)
    source = f"{{type: jdbc, url: 'jdbc:sqlite:{tmp_path}/x.db', tables: {{{tables}}}}}"
    more = "tables: {exclude: [a]}\n    streams: {a: {mode: live}}"
    assert _names(project(tmp_path, f"  p:\n    source: {source}\n    {more}\n"), "p") == {
        "b",
        "b_log",
    }
