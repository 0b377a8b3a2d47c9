"""What others add to a target table is kept by loads, or the load is an error that lists it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from chronolake.config import MysqlTarget, PostgresTarget
from chronolake.errors import TargetChangedError, TargetError
from chronolake.target import mysql
from chronolake.target.database import Relation, TargetSession
from chronolake.target.limits import TargetColumn, target_columns
from chronolake.target.selection import database_of
from chronolake.target.state import Published
from chronolake.types import Column, ColumnType, Kind, TableName
from support.target.sessions import change_rows, load_rows
from support.target.targets import Target

_NAME = TableName("sales", "keyed")
_POSTGRES = pytest.mark.parametrize("config", ["postgres"], indirect=True)
_REFUSED = re.compile("that others have added.*users_own")
_ADDED = {
    "postgres": [
        "ALTER TABLE {t} ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY only_first ON {t} TO reader USING (id = 1)",
        "GRANT SELECT ON {t} TO reader",
        "GRANT UPDATE (v) ON {t} TO reader",
        "CREATE INDEX users_own ON {t} (v)",
        "ALTER TABLE {t} ADD CONSTRAINT checked CHECK (id > 0)",
        "COMMENT ON TABLE {t} IS 'of a user'",
        "CREATE PUBLICATION published FOR TABLE {t}",
    ],
    "mysql": [
        "CREATE INDEX users_own ON {t} (v(10))",
        "ALTER TABLE {t} ADD CONSTRAINT checked CHECK (id > 0)",
        "CREATE TRIGGER noticed BEFORE DELETE ON {t} FOR EACH ROW SET @noticed = 1",
    ],
}


def _table(target: Target) -> str:
    return "sales.keyed" if isinstance(target.config, PostgresTarget) else "keyed"


def _columns(session: TargetSession, *, is_keyed: bool = True) -> tuple[TargetColumn, ...]:
    columns = [
        Column("id", ColumnType(Kind.LONG), primary_key=is_keyed),
        Column("v", ColumnType(Kind.STRING)),
        Column("j", ColumnType(Kind.JSON)),
    ]
    numbered = [(column, number) for number, column in enumerate(columns)]
    return target_columns(session.limits, _NAME, numbered, {"id"} if is_keyed else ())


def _rows(rows: dict[int, str | None]) -> pa.RecordBatch:
    ids = pa.array(list(rows), pa.int64())
    texts = pa.array(list(rows.values()), pa.string())
    json = pa.array(["{}"] * len(rows))
    return pa.RecordBatch.from_arrays([ids, texts, json], ["id", "v", "j"])


@contextmanager
def _session(target: Target, **settings: Any) -> Iterator[TargetSession]:
    config = target.config.model_copy(update=settings)
    schema = "reporting" if isinstance(config, MysqlTarget) else "sales"
    with database_of("reporting", config).open(Relation(schema, "keyed")) as session:
        yield session


def _load(
    target: Target,
    rows: dict[int, str | None],
    base: Published | None = None,
    *,
    is_keyed: bool = True,
    takes_over: bool = False,
    **settings: Any,
) -> Published:
    with _session(target, **settings) as session:
        columns = _columns(session, is_keyed=is_keyed)
        return load_rows(session, columns, _rows(rows), base, takes_over=takes_over)


def _change(
    target: Target, base: Published, operations: str, rows: dict[int, str | None], **settings: Any
) -> Published:
    with _session(target, **settings) as session:
        return change_rows(session, base, operations, _rows(rows))


def _stored(target: Target) -> dict[int, str | None]:
    return dict(target.run(f"SELECT id, v FROM {_table(target)} ORDER BY id"))  # type: ignore[arg-type]


def _add(target: Target) -> list[str]:
    """Add to the table what a user may add, and return its names."""
    if isinstance(target.config, PostgresTarget):
        target.run("DROP PUBLICATION IF EXISTS published", "DROP ROLE IF EXISTS reader")
        target.run("CREATE ROLE reader", "GRANT USAGE ON SCHEMA sales TO reader")
    target.run(*(text.format(t=_table(target)) for text in _ADDED[target.config.type]))
    return _added(target)


def _added(target: Target) -> list[str]:
    schema = "reporting" if isinstance(target.config, MysqlTarget) else "sales"
    relation = Relation(schema, "keyed")
    survey = database_of("reporting", target.config).survey([relation])
    return sorted(map(str, survey.additions[relation]))


@pytest.fixture(autouse=True)
def _remove_role(target: Target) -> Iterator[None]:
    yield
    if isinstance(target.config, PostgresTarget):
        target.run("DROP SCHEMA IF EXISTS sales CASCADE", "DROP PUBLICATION IF EXISTS published")
        target.run("DROP ROLE IF EXISTS reader")


@pytest.mark.parametrize("is_keyed", [True, False])
def test_load_keeps_what_others_have_added(target: Target, *, is_keyed: bool) -> None:
    base = _load(target, {1: "a", 2: "b", 3: None}, is_keyed=is_keyed)
    assert _added(target) == []
    added = _add(target)
    assert "index users_own" in added
    assert len(added) >= len(_ADDED[target.config.type]) - 1
    rows: dict[int, str | None] = {1: "a", 2: "changed", 4: "new"}
    base = _load(target, rows, base, is_keyed=is_keyed)
    assert _stored(target) == rows
    assert _added(target) == added
    if isinstance(target.config, PostgresTarget):
        found = target.run("SET ROLE reader", "SELECT id FROM sales.keyed")
        assert found == [(1,)]
    assert target.leftovers() == []
    if is_keyed:
        _change(target, base, "UD", {1: "again", 2: None})
        assert _stored(target) == {1: "again", 4: "new"}


def test_load_that_would_lose_additions_is_an_error_that_lists_them(target: Target) -> None:
    base = _load(target, {1: "a"})
    added = _add(target)
    with pytest.raises(TargetChangedError, match="would lose") as caught:
        _load(target, {1: "b"}, base, is_keyed=False)
    for name in added:
        assert name in caught.value.message
    assert "--take-over" in (caught.value.hint or "")
    assert _stored(target) == {1: "a"}
    _load(target, {1: "b"}, base, is_keyed=False, takes_over=True)
    assert _stored(target) == {1: "b"}
    assert _added(target) == []


def test_take_over_of_changed_rows_keeps_additions(target: Target) -> None:
    base = _load(target, {1: "a", 2: "b"})
    added = _add(target)
    target.run(f"UPDATE {_table(target)} SET v = 'foreign' WHERE id = 1")
    with pytest.raises(TargetChangedError, match="UPDATE by the user"):
        _load(target, {1: "a"}, base)
    base = _load(target, {1: "a"}, base, takes_over=True)
    assert _stored(target) == {1: "a"}
    assert _added(target) == added
    _load(target, {1: "c"}, base)
    assert _stored(target) == {1: "c"}


def test_foreign_keys_of_others_are_kept_and_named(target: Target) -> None:
    base = _load(target, {1: "a", 2: "b"})
    table, other = _table(target), _table(target).replace("keyed", "referencing")
    target.run(
        f"CREATE TABLE {other} (id bigint, CONSTRAINT users_own FOREIGN KEY (id) "
        f"REFERENCES {table} (id))",
        f"INSERT INTO {other} VALUES (1)",
    )
    base = _load(target, {1: "c", 3: "d"}, base)
    base = _change(target, base, "UD", {1: "e", 3: None})
    with pytest.raises(TargetError, match=_REFUSED) as caught:
        _change(target, base, "D", {1: None})
    assert not isinstance(caught.value, TargetChangedError)
    with pytest.raises(TargetError, match=_REFUSED):
        _load(target, {2: "f"}, base)
    assert _stored(target) == {1: "e"}
    with pytest.raises(TargetError, match="users_own"):
        _load(target, {1: "f"}, base, is_keyed=False, takes_over=True)
    assert _stored(target) == {1: "e"}
    target.run(f"DROP TABLE {other}")
    _load(target, {2: "f"}, base)
    assert _stored(target) == {2: "f"}


def test_unique_index_of_others_is_named(target: Target) -> None:
    base = _load(target, {1: "a", 2: "b"})
    text = "v" if isinstance(target.config, PostgresTarget) else "v(20)"
    target.run(f"CREATE UNIQUE INDEX users_own ON {_table(target)} ({text})")
    with pytest.raises(TargetError, match=_REFUSED) as caught:
        _change(target, base, "I", {3: "b"})
    assert not isinstance(caught.value, TargetChangedError)
    # A missing row is still a change by others.
    with pytest.raises(TargetChangedError, match="does not have the rows"):
        _change(target, base, "I", {2: "c"})
    assert _stored(target) == {1: "a", 2: "b"}


def test_triggers_of_others_are_reported(target: Target) -> None:
    base = _load(target, {1: "a"})
    table = _table(target)
    statements: Sequence[str] = [
        f"CREATE TRIGGER changing BEFORE INSERT ON {table} FOR EACH ROW SET NEW.v = 'x'"
    ]
    if isinstance(target.config, PostgresTarget):
        statements = [
            (
                "CREATE FUNCTION sales.f() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN "
                "RETURN NULL; END$$"
            ),
            (
                f"CREATE TRIGGER changing BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION "
                "sales.f()"
            ),
        ]
    target.run(*statements)
    assert _added(target) == ["trigger changing"]
    if isinstance(target.config, PostgresTarget):
        # The trigger suppresses rows, which is noticed.
        with pytest.raises(TargetError, match="trigger or rule of others"):
            _load(target, {1: "a", 2: "b"}, base)
        assert _stored(target) == {1: "a"}


def test_detection_of_changes_can_be_switched(target: Target) -> None:
    base = _load(target, {1: "a"}, detect_changes=False)
    assert not base.has_triggers
    base = _change(target, base, "U", {1: "b"})
    assert base.has_triggers
    target.run(f"INSERT INTO {_table(target)} (id) VALUES (5)")
    with pytest.raises(TargetChangedError, match="INSERT by the user"):
        _change(target, base, "U", {1: "c"})
    base = _load(target, {1: "c"}, base, takes_over=True)
    base = _change(target, base, "U", {1: "d"}, detect_changes=False)
    target.run(f"UPDATE {_table(target)} SET v = 'x'", f"DELETE FROM {_table(target)} WHERE id > 1")
    _change(target, base, "U", {1: "e"}, detect_changes=False)
    assert _stored(target) == {1: "e"}


@_POSTGRES
def test_own_schemas_suffice_without_create_on_the_database(target: Target) -> None:
    assert isinstance(target.config, PostgresTarget)
    target.run("DROP ROLE IF EXISTS loader", "CREATE ROLE loader LOGIN PASSWORD 'x'")
    (database,) = target.run("SELECT current_database()")[0]
    target.run(
        f"REVOKE CREATE ON DATABASE {database} FROM PUBLIC",
        "CREATE SCHEMA sales AUTHORIZATION loader",
        "CREATE SCHEMA chronolake AUTHORIZATION loader",
    )
    address = urlsplit(target.config.dsn)
    dsn = f"postgresql://loader:x@{address.hostname}:{address.port}{address.path}"
    try:
        base = _load(target, {1: "a"}, dsn=dsn)
        _change(target, base, "U", {1: "b"}, dsn=dsn)
        assert _stored(target) == {1: "b"}
    finally:
        target.run("DROP OWNED BY loader CASCADE", "DROP ROLE loader")


@_POSTGRES
def test_view_with_the_name_is_not_replaced(target: Target) -> None:
    target.run("CREATE SCHEMA sales", "CREATE VIEW sales.keyed AS SELECT 1 AS id")
    with pytest.raises(TargetChangedError, match="not an ordinary table"):
        _load(target, {1: "a"}, takes_over=True)


@pytest.mark.parametrize("config", ["mariadb"], indirect=True)
def test_change_in_the_moment_before_a_swap_is_an_error(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = _load(target, {1: "a"})

    def change(name: str) -> None:
        if name == "target.before-swap":
            target.run("UPDATE keyed SET v = 'foreign'")

    monkeypatch.setattr(mysql, "reach", change)
    with pytest.raises(TargetChangedError, match="UPDATE by the user"):
        _load(target, {1: "b"}, base)
    assert _stored(target) == {1: "foreign"}


@_POSTGRES
def test_row_that_does_not_fit_in_a_page_is_named(target: Target) -> None:
    with _session(target) as session:
        columns = [Column(f"c{n}", ColumnType(Kind.LONG)) for n in range(1_200)]
        numbered = [(column, number) for number, column in enumerate(columns)]
        wide = target_columns(session.limits, _NAME, numbered, {"c0"})
        rows = pa.RecordBatch.from_pydict({column.name: pa.array([7]) for column in columns})
        with pytest.raises(TargetError, match="does not fit in a page"):
            load_rows(session, wide, rows)
