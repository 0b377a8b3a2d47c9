"""A thousand tables: the list is shown at once, and unchanged tables are not read again."""

from __future__ import annotations

import re
import shutil
import sqlite3
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from chronolake.config import MaintenanceConfig, load
from chronolake.errors import LakeError
from chronolake.inspect.tables import Health, TableSummary
from chronolake.pipeline.freshness import Freshness, StreamProperties
from chronolake.pipeline.runs import VerificationResult, now
from chronolake.types import Mode, TableName
from chronolake.ui.rendering import ASSETS, environment
from chronolake.ui.site import Overview, TableOverview
from support.ui.uiprocess import start, stop
from support.waiting import wait_until

MANY = 1_000


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a lake whose catalog lists one table under a thousand names."""
    folder = tmp_path_factory.mktemp("many-tables")
    catalog = SqlCatalog("chronolake", uri=f"sqlite:///{folder}/catalog.db")
    catalog.create_namespace("shop")
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
    catalog.create_table(("shop", "t0000"), rows.schema, location=str(folder / "t")).append(rows)
    catalog.engine.dispose()
    with closing(sqlite3.connect(folder / "catalog.db")) as database, database:
        database.executemany(
            "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name, "
            "metadata_location, iceberg_type) SELECT catalog_name, table_namespace, ?, "
            "metadata_location, 'TABLE' FROM iceberg_tables WHERE table_name = 't0000'",
            [(f"t{number:04}",) for number in range(1, MANY)],
        )
    return folder


def test_a_thousand_tables_are_listed_at_once_and_read_in_the_background(
    many: Path,
) -> None:
    served = start(many)
    try:
        httpx.get(served.url + "/record")
        begun = time.monotonic()
        first = httpx.get(served.url)
        took = time.monotonic() - begun
        assert first.status_code == 200
        assert took < 5, f"it took {took:.1f} s"
        assert "of 1,000 tables" in first.text
        wait_until(
            lambda: "data-unread" not in httpx.get(f"{served.url}/part/tables").text,
            "the tables are not read",
        )
        begun = time.monotonic()
        again = httpx.get(f"{served.url}/part/tables?search=t09&sort=rows&order=down")
        assert time.monotonic() - begun < 3
        assert "of 100 tables" in again.text
    finally:
        stop(served)


def test_a_table_that_has_not_changed_is_not_read_again(tmp_path: Path) -> None:
    catalog = SqlCatalog("chronolake", uri=f"sqlite:///{tmp_path}/catalog.db")
    catalog.create_namespace("shop")
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
    kept, changed = (
        catalog.create_table(("shop", name), rows.schema, location=str(tmp_path / name))
        for name in ("kept", "changed")
    )
    for table in (kept, changed):
        table.append(rows)
    overview = Overview(load(tmp_path))

    def counted() -> dict[str, int | None]:
        return {seen.name.table: seen.rows for seen in overview.tables(30)}

    assert counted() == {"changed": 3, "kept": 3}
    Path(kept.metadata_location).unlink()
    changed.append(rows)
    assert counted() == {"changed": 6, "kept": 3}
    catalog.drop_table(("shop", "kept"))
    assert counted() == {"changed": 6}
    overview.close()
    catalog.engine.dispose()


@pytest.mark.long
def test_a_copied_lake_reports_that_its_tables_are_located_elsewhere(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()
    catalog = SqlCatalog("chronolake", uri=f"sqlite:///{original}/catalog.db")
    catalog.create_namespace("shop")
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
    place = f"file://{original}/t"
    catalog.create_table(("shop", "orders"), rows.schema, location=place).append(rows)
    catalog.engine.dispose()
    shutil.copytree(original, copy)
    words = "1 of 1 tables are stored outside this lake, for example shop.orders"
    for folder, is_copy in ((original, False), (copy, True)):
        served = start(folder)
        try:
            assert (words in httpx.get(f"{served.url}/part/tables").text) is is_copy
        finally:
            stop(served)


def test_with_a_rest_catalog_a_table_is_read_again_after_a_while() -> None:
    now = time.monotonic()
    name = TableName("s", "t")
    # A REST catalog returns a table's metadata location only when the table is loaded.
    assert TableOverview(name, None, read_at=now - 5).is_current(None)
    assert not TableOverview(name, None, read_at=now - 15).is_current(None)
    assert TableOverview(name, "a", read_at=now - 15).is_current("a")
    assert not TableOverview(name, "a", read_at=now).is_current("b")


def test_a_table_that_could_not_be_read_is_read_again_after_a_while() -> None:
    now = time.monotonic()
    failed = TableOverview(
        TableName("s", "t"), "a", failure=LakeError("It was away."), read_at=now - 5
    )
    assert failed.is_current("a")
    assert not replace(failed, read_at=now - 15).is_current("a")


@pytest.mark.parametrize(
    ("small", "ratio", "rows", "maintenance_reasons"),
    [
        (63, 0.19, 10**6, []),
        (64, 0.0, 10**6, ["64 small files"]),
        (0, 0.2, 40_000, ["20% of the stored rows are deleted"]),
        # Too few rows for a compaction, by maintenance's rules.
        (0, 0.2, 39_000, []),
        (0, 0.9, 100, []),
        (1_500, 1.0, 0, ["1,500 small files", "100% of the stored rows are deleted"]),
    ],
)
def test_a_table_needs_care_when_maintenance_would_do_something(
    small: int, ratio: float, rows: int, maintenance_reasons: list[str]
) -> None:
    name = TableName("s", "t")
    summary = TableSummary(name, Mode.LIVE, (), (), rows, None, 1, 0, 1, None, None)
    seen = TableOverview(name, None, summary, Health(small, 1, ratio, None, 1))

    assert seen.maintenance_reasons(MaintenanceConfig()) == maintenance_reasons


def health_of(health: Health, fresh: Freshness | None) -> str:
    """Return the words of the column, one space between them."""
    name = TableName("s", "t")
    summary = TableSummary(name, Mode.LIVE, (), (), 100, None, 1, 0, 1, None, None)
    template = environment().get_template("health.html")
    reported = template.render(
        seen=TableOverview(name, None, summary, health), known=fresh, limits=MaintenanceConfig()
    )
    return " ".join(re.sub("<[^>]*>", " ", reported).split())


def test_health_shows_all_that_is_known_and_only_verified_tables_are_good() -> None:
    stream_properties = StreamProperties(TableName("s", "t"))
    verified = VerificationResult("s.t", now(), holds=True, rows=1, against_lake=False)
    kept = Health(3, 9, 0.05, now(), 2)

    reported = health_of(kept, Freshness(stream_properties, verified=verified))
    assert reported.startswith("good 3 small files 5 % of rows deleted compacted")
    assert health_of(Health(0, 1, 0.0, None, 1), Freshness(stream_properties)) == (
        "files OK never verified"
    )
    # A store that cannot be read does not mean that nothing was verified.
    assert health_of(Health(1, 1, 0.0, None, 1), None) == (
        "files OK 1 small file verification unknown"
    )
    assert health_of(Health(70, 90, 0.0, None, 1), Freshness(stream_properties)) == (
        "needs maintenance 70 small files never verified"
    )


@pytest.mark.parametrize("badge", ["soft-delete", "changed", "warn", "good", "bad", "history"])
def test_badges_can_be_read_in_light_and_dark(badge: str) -> None:
    css = (ASSETS / "page.css").read_text(encoding="utf-8")
    rule = re.search(
        rf"\.badge\.{badge}\b[^{{]*{{ background: var\((.*?)\); color: var\((.*?)\)", css
    )
    assert rule is not None
    soft, strong = (re.findall(rf"{name}: #([0-9a-f]{{6}});", css) for name in rule.groups())
    assert len(soft) == len(strong) == 3
    for color, other in zip(soft, strong, strict=True):
        dark, light = sorted([luminance(color), luminance(other)])
        assert (light + 0.05) / (dark + 0.05) >= 4.5
    # Amber has one meaning: maintenance is needed.
    assert (rule[2] == "--warn") == (badge == "warn")


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, as WCAG defines it."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
