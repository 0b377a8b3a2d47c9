"""Tables are rebuilt after full refreshes of sources and after columns were renamed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import orjson
import pyarrow as pa
import pytest

from chronolake.errors import ConfigurationError, SourceError
from chronolake.failpoints import FAILPOINTS
from chronolake.lake import Lake
from chronolake.landing import Control, ControlKind, land_control
from chronolake.pipeline.lease import hold_lease
from chronolake.pipeline.rebuild import differences, rebuild
from chronolake.pipeline.store import Status, Store
from chronolake.pipeline.streams import streams_of
from chronolake.pipeline.sync import RunResult, sync
from chronolake.source.protocol import raw_folder
from chronolake.types import ACTIVE, DELETED, END, START, Column, ColumnType, Kind
from support import pipeline_model
from support.datalakes import iceberg, project
from support.lake.register import STREAM, Key, Register
from support.pipeline_model import LandedRow
from support.seeds import with_drawn_seeds

_PIPELINES: Final = (
    "  shop:\n    source: {{type: data_lake_v2, path: none, org: X}}\n    mode: {}\n"
)


class Shop:
    """The pipeline of a register."""

    def __init__(self, folder: Path, mode: str = "history") -> None:
        self.folder = folder
        self.project = project(folder, _PIPELINES.format(mode))
        self.register = Register(self.project)
        self.lake = Lake.open(self.project.lake.path, config=self.project.lake)
        self.raw = raw_folder(self.project, "shop", STREAM)

    def sync(self, *, full_refresh: bool = False) -> RunResult:
        return sync(
            self.lake, self.project, "shop", source=self.register, full_refresh=full_refresh
        )

    def synced(self, *, full_refresh: bool = False) -> None:
        result = self.sync(full_refresh=full_refresh)
        assert result.status is Status.SUCCEEDED, result.streams

    def configured(self, mode: str) -> None:
        self.project = project(self.folder, _PIPELINES.format(mode))

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (
            iceberg(self.project, "shop", STREAM).scan().to_arrow().to_pylist()
        )
        return found

    def names(self) -> list[str]:
        """Return the table's data columns, in their order."""
        names = iceberg(self.project, "shop", STREAM).schema().column_names
        return [name for name in names if not name.startswith(("_", "source__"))]

    def versions(self) -> list[tuple[Any, ...]]:
        found = iceberg(self.project, "shop", STREAM).scan().to_arrow()
        for column in (START, END):
            place = found.column_names.index(column)
            found = found.set_column(place, column, found[column].cast(pa.int64()))
        columns = [found[name].to_pylist() for name in (*self.names(), START, END, ACTIVE)]
        return sorted(zip(*columns, strict=True), key=repr)

    def present(self) -> list[dict[str, Any]]:
        """Return the current records in the table."""
        names = self.names()
        found = [
            {name: row[name] for name in names}
            for row in self.rows()
            if row.get(ACTIVE, True) and not row.get(DELETED, False)
        ]
        return sorted(found, key=repr)

    def expected(self) -> list[dict[str, Any]]:
        """Return the records of the register."""
        key = [column.name for column in self.register.columns if column.primary_key]
        names = self.names()
        found = [
            {name: {**fields, **dict(zip(key, identity, strict=True))}.get(name) for name in names}
            for identity, fields in self.register.records.items()
        ]
        return sorted(found, key=repr)

    def agrees(self) -> bool:
        (stream,) = streams_of(self.project, "shop", self.register)
        with hold_lease(Store.open(self.project.lake), "shop", above=10**6) as lease:
            found = differences(self.lake, stream, lease)
        return found.missing == found.extra == 0

    def rebuilt(self) -> None:
        (stream,) = streams_of(self.project, "shop", self.register)
        with hold_lease(Store.open(self.project.lake), "shop", above=10**6) as lease:
            rebuild(self.lake, stream, lease)

    def controls(self) -> list[dict[str, Any]]:
        """Return the control records, which anybody can read."""
        files = sorted(self.raw.path.glob("batch=*/control-*.json"), key=lambda file: file.name)
        return [orjson.loads(file.read_bytes()) for file in files]


def _model(rows: list[LandedRow], names: list[str]) -> list[tuple[Any, ...]]:
    found = (
        (
            *version.key,
            *(version.fields.get(name) for name in names[2:]),
            version.start,
            version.end,
            version.active,
        )
        for version in pipeline_model.versions(rows, 1)
    )
    return sorted(found, key=repr)


def _fields(chance: random.Random, names: list[str]) -> dict[str, Any]:
    values = [f"t{chance.randrange(5)}", chance.choice([None, 1, 2, 2**40])]
    return dict(zip(names, values, strict=True))


def _changed(register: Register, chance: random.Random, number: int) -> None:
    """Make some changes that are logged."""
    names = [column.name for column in register.columns if not column.primary_key]
    for _ in range(number):
        key: Key = chance.choice("ab"), chance.randrange(4)
        if key in register.records and chance.random() < 0.3:
            register.delete(key)
        elif key in register.records and chance.random() < 0.5:
            fields = _fields(chance, names)
            fields[names[0]] = register.records[key][names[0]]
            register.put(key, fields, omitted=names[0])
        else:
            register.put(key, _fields(chance, names))


@pytest.mark.long
def test_a_full_refresh_lands_what_differs(tmp_path: Path) -> None:
    there = Shop(tmp_path)
    register = there.register
    for no, title in enumerate(["kept", "changed", "gone"]):
        register.put(("a", no), {"title": title, "pages": no})
    there.synced()
    before = there.versions()

    # The log does not contain these changes.
    register.records["a", 1]["pages"] = None
    del register.records["a", 2]
    register.records["b", 7] = {"title": "new", "pages": 2**40}
    there.synced()
    assert there.versions() == before, "the log said nothing"
    there.synced(full_refresh=True)

    at = register.now() - 1_000_000
    rows = [row for row, *_ in register.log]
    rows += [
        LandedRow(("a", 1), at, "f", (2, 0), fields={"title": "changed", "pages": None}),
        LandedRow(("a", 2), at, "f", (2, 1), deleted=at, provides_data=False),
        LandedRow(("b", 7), at, "f", (2, 2), fields={"title": "new", "pages": 2**40}),
    ]
    assert there.versions() == _model(rows, there.names())
    assert there.agrees(), "what was read again is in the lake"
    assert there.controls()[-1] == {"format": 1, "kind": "resynced", "at": at}

    files = len(there.raw.files())
    there.synced(full_refresh=True)
    assert len(there.raw.files()) == files, "nothing differs"
    there.rebuilt()
    assert there.versions() == _model(rows, there.names())


@pytest.mark.long
def test_types_that_have_changed_are_compared_by_value(tmp_path: Path) -> None:
    there = Shop(tmp_path)
    register = there.register
    for no in range(3):
        register.put(("a", no), {"title": str(no), "pages": no})
    there.synced()
    files = len(there.raw.files())

    shelf, no, title, pages = register.columns
    register.columns = (
        shelf,
        Column(no.name, ColumnType(Kind.LONG), primary_key=True),
        title,
        Column(pages.name, ColumnType(Kind.STRING)),
    )
    register.records = {
        ("a", 0): {"title": "0", "pages": "0"},
        ("a", 1): {"title": "1", "pages": "one"},
        ("a", 2**33): {"title": "2", "pages": "2"},
    }
    there.synced(full_refresh=True)

    assert there.present() == there.expected()
    assert len(there.raw.files()) > files
    history = [row[:4] for row in there.versions()]
    assert len(history) == 5, "of a record that is the same, nothing lands"
    assert ("a", 0, "0", "0") in history
    assert there.agrees()


@pytest.mark.long
@pytest.mark.parametrize("mode", ["history", "soft-delete", "live"])
@pytest.mark.parametrize("seed", with_drawn_seeds(1, test="reread", number=2))
def test_a_full_refresh_after_any_failure_matches_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, seed: int
) -> None:
    chance = random.Random(seed)
    there = Shop(tmp_path, mode)
    register = there.register
    points = [name for name in FAILPOINTS if name.startswith(("land.", "sync.", "publish."))]
    for _ in range(4):
        _changed(register, chance, 10)
        if chance.random() < 0.5:
            there.synced()
        for key in chance.sample(sorted(register.records), k=min(3, len(register.records))):
            if chance.random() < 0.5:
                del register.records[key]
            else:
                register.records[key] = _fields(chance, ["title", "pages"])
        with monkeypatch.context() as patched:
            patched.setenv("CHRONOLAKE_FAILPOINT", f"{chance.choice(points)}=raise")
            there.sync(full_refresh=True)
    there.synced(full_refresh=True)

    assert there.present() == there.expected()
    assert there.agrees()


@pytest.mark.long
def test_renamed_columns_keep_their_values(tmp_path: Path) -> None:
    there = Shop(tmp_path)
    register, chance = there.register, random.Random(7)
    _changed(register, chance, 30)
    there.synced()
    register.rename({"title": "name", "no": "number"})
    _changed(register, chance, 1)
    there.synced()
    assert there.names() == ["shelf", "number", "name", "pages"]
    assert there.agrees(), "nothing but the names has changed"

    # Another column gets the old name, two exchange their names, and all of it lands at once.
    _changed(register, chance, 10)
    register.rename({"name": "pages", "pages": "name"})
    _changed(register, chance, 10)
    register.rename({"pages": "title"})
    _changed(register, chance, 10)
    there.synced()

    assert there.names() == ["shelf", "number", "title", "name"]
    rows = []
    for row, columns, _ in register.log:
        now = dict(zip([column.name for column in columns], there.names(), strict=True))
        fields = {now[name]: value for name, value in row.fields.items()}
        omitted = frozenset(now[name] for name in row.omitted)
        rows.append(LandedRow(**{**vars(row), "fields": fields, "omitted": omitted}))
    assert there.versions() == _model(rows, there.names())
    assert there.present() == there.expected()
    assert there.agrees()
    there.rebuilt()
    assert there.versions() == _model(rows, there.names())
    named = [control["fields"] for control in there.controls() if control["kind"] == "named"]
    assert named[-1] == {"name": 4, "number": 2, "shelf": 1, "title": 3}
    assert len(named) == 4


@pytest.mark.long
def test_a_name_that_was_left_is_another_columns(tmp_path: Path) -> None:
    there = Shop(tmp_path)
    register = there.register
    register.put(("a", 1), {"title": "first", "pages": 1})
    there.synced()
    register.drop("title")
    register.put(("a", 1), {"pages": 2})
    register.rename({"pages": "title"})
    register.put(("a", 1), {"title": 3})
    there.synced()

    assert there.names() == ["shelf", "no", "title_3", "title"]
    values = [row[2:4] for row in there.versions()]
    assert sorted(values, key=repr) == [("first", 1), (None, 2), (None, 3)]
    assert there.agrees()


@pytest.mark.long
def test_names_do_not_depend_on_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = Shop(tmp_path)
    register = there.register
    register.put(("a", 1), {"title": "first", "pages": 1})
    there.synced()
    register.put(("a", 1), {"title": "again", "pages": 1})
    for names, point in (
        ({"title": "pages", "pages": "title"}, "land.staged"),
        ({"pages": "name"}, "land.done"),
        ({"title": "pages"}, "land.file-published"),
        ({"name": "title", "pages": "size"}, "land.checkpointed"),
    ):
        register.rename(names)
        now = [column.name for column in register.columns]
        register.put(("a", 2), {now[2]: f"at {point}", now[3]: 2})
        with monkeypatch.context() as patched:
            patched.setenv("CHRONOLAKE_FAILPOINT", f"{point}=raise")
            assert there.sync().status is Status.FAILED
    there.synced()

    assert there.names() == ["shelf", "no", "title", "size"]
    values = [row[2:4] for row in there.versions()]
    assert values == [
        ("again", 1),
        ("first", 1),
        ("at land.checkpointed", 2),
        ("at land.done", 2),
        ("at land.file-published", 2),
        ("at land.staged", 2),
    ]
    assert there.present() == there.expected()
    assert there.agrees()


def test_the_lake_records_the_modes_of_its_table(tmp_path: Path) -> None:
    there = Shop(tmp_path)
    there.register.put(("a", 1), {"title": "first", "pages": 1})
    there.synced()
    there.synced()
    there.configured("live")
    there.synced()
    there.configured("history")
    there.synced()

    kept = [control["mode"] for control in there.controls() if control["kind"] == "kept"]
    assert kept == ["history", "live", "history"]


def test_a_table_with_names_of_before_is_not_compared(tmp_path: Path) -> None:
    there = Shop(tmp_path)
    register = there.register
    register.put(("a", 1), {"title": "first", "pages": 1})
    there.synced()
    (stream,) = streams_of(there.project, "shop", register)
    with hold_lease(Store.open(there.project.lake), "shop", above=10**6) as lease:
        fields = {"shelf": 1, "no": 2, "name": 3, "pages": 4}
        control = Control(ControlKind.NAMED, {"fields": fields})
        land_control(there.raw, control, guard=lease.expect_held)
        with pytest.raises(ConfigurationError, match="no longer matches its configuration"):
            differences(there.lake, stream, lease)


def test_a_control_record_of_the_future_is_refused(tmp_path: Path) -> None:
    there = Shop(tmp_path)
    there.register.put(("a", 1), {"title": "first", "pages": 1})
    there.synced()
    file, *_ = there.raw.path.glob("batch=*/control-*.json")
    file.write_bytes(orjson.dumps({"format": 1, "kind": "sharded", "id": "1"}))

    result = there.sync()
    assert result.status is Status.FAILED
    assert "does not know the control record's kind" in (result.streams[0].error or "")
    file.write_bytes(b"{")
    with pytest.raises(SourceError, match="cannot be read"):
        there.rebuilt()
