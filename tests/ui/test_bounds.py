"""Values that are too long, too wide, damaged or without a key: reported, in bounded memory."""

from __future__ import annotations

import asyncio
import html
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from chronolake.config import LakeConfig
from chronolake.errors import LakeError
from chronolake.inspect import history
from chronolake.types import TableName
from chronolake.ui import links
from chronolake.ui import site as sites
from chronolake.ui.security import Guard
from chronolake.ui.server import application
from chronolake.ui.site import Site
from support.inspect.layout import HISTORY, TMAX, Make
from support.ui.uiprocess import start, stop

NAME = TableName("s", "t")


class Asked:
    """The web UI of a lake, in this process."""

    def __init__(self, config: LakeConfig) -> None:
        self.site = Site(config)
        self._app = application(self.site, Guard(None, only_loopback=True))

    def get(self, path: str) -> httpx.Response:
        async def answered() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, raise_app_exceptions=False)
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost"
            ) as client:
                return await client.get(path)

        return asyncio.run(answered())


@pytest.fixture
def asked(config: LakeConfig) -> Iterator[Asked]:
    made = Asked(config)
    yield made
    made.site.close()


def _timelines(page: str) -> list[str]:
    found = re.findall(r'<th scope="row"[^>]*><a href="(/record[^"]*)"', page)
    return [html.unescape(link) for link in found]


def test_long_keys_lead_to_their_own_record_or_to_what_to_do(
    config: LakeConfig, make: Make
) -> None:
    keys = ["k" * 10_000, "k" * 12_000, "é" * 7_000, "é" * 20_000]
    make(NAME, ["id*:STRING", "v:STRING"], [(key, f"<{len(key)}>") for key in keys])
    served = start(config.path)
    try:
        with httpx.Client(base_url=served.url) as client:
            paths = _timelines(client.get("/past?table=s.t").text)
            found = [client.get(path) for path in paths]
    finally:
        stop(served)
    # A path that arrives in one piece is read whole anyway; the server's smallest read is larger.
    assert all(len(path) < 60_000 for path in paths)
    assert [response.status_code for response in found] == [200, 200, 200, 400]
    for key, page in zip(keys[:3], found, strict=False):
        assert f"&lt;{len(key)}&gt;" in page.text
    assert "too long for a URL" in found[-1].text
    assert "chronolake history" in found[-1].text


def test_a_key_is_never_cut(asked: Asked, make: Make) -> None:
    make(NAME, ["id*:STRING", "v:INT"], [("k" * 48_000, 1)])

    for path in ("/record", "/part/versions", "/part/timeline"):
        answer = asked.get(f"{path}?table=s.t&key.id={'k' * 60_000}")
        assert answer.status_code == 400
        assert "too long" in answer.text
    assert urlsplit(links.record(NAME, {"id": "k" * 60_000})).query == "table=s.t&long=id"


def test_blanks_around_a_pasted_number_are_nothing(asked: Asked, make: Make) -> None:
    make(NAME, ["id*:LONG", "v:STRING"], [(104, "this one")])

    assert "this one" in asked.get("/record?table=s.t&key.id=%20104 ").text
    assert asked.get("/part/keys?table=s.t&column=id&key.id=%2010").json() == ["104"]


@pytest.mark.parametrize("than", ["2026-01-01", "now", "gestern"])
def test_two_times_of_a_table_without_a_key_are_explained_on_its_page(
    asked: Asked, make: Make, than: str
) -> None:
    make(NAME, ["v:STRING"], [("a",)])

    assert 'class="field" hidden' in asked.get("/past?table=s.t").text
    page = asked.get(f"/past?table=s.t&than={than}")
    assert page.status_code == 400
    assert "s.t at a point in time" in page.text
    assert "data-past-form" in page.text
    assert 'aria-label="Pages of this table"' in page.text
    assert "AlterTable" not in page.text
    assert ("no primary key" in page.text) == (than != "gestern")


def _cut(content: bytes) -> bytes:
    return content[: len(content) // 3]


_PATHS = [
    f"{path}table=s.t&key.id=1"
    for path in ("/record?", "/part/timeline?", "/part/versions?", "/past?", "/part/life?")
]


@pytest.mark.parametrize(
    ("which", "change", "paths"),
    [
        ("*.metadata.json", lambda _: b"{", [*_PATHS, "/table?name=s.t"]),
        ("*.metadata.json", lambda _: b"{}", _PATHS),
        ("snap-*.avro", lambda _: b"x", [*_PATHS, "/table?name=s.t"]),
        ("*-m0.avro", _cut, [*_PATHS, "/table?name=s.t"]),
        ("*.parquet", lambda _: b"PAR1 garbage PAR1", _PATHS),
        ("*.parquet", _cut, _PATHS),
        ("*.parquet", None, _PATHS),
    ],
)
def test_a_damaged_file_is_named_with_what_to_do(
    asked: Asked,
    config: LakeConfig,
    make: Make,
    which: str,
    change: Callable[[bytes], bytes] | None,
    paths: list[str],
) -> None:
    table = make(
        NAME, ["id*:LONG", "v:STRING", *HISTORY], [(1, "a", "2026-01-01T00:00:00Z", TMAX, True)]
    )
    file = _newest(table, which)
    if change is None:
        file.unlink()
    else:
        file.write_bytes(change(file.read_bytes()))

    for path in paths:
        answer = asked.get(path)
        assert answer.status_code == 503, path
        assert file.name in html.unescape(answer.text), path
        assert "What to do" in answer.text
    with pytest.raises(LakeError) as refused:
        history(config, NAME, {"id": "1"})
    assert refused.value.table == "s.t"
    assert file.name in (refused.value.file or "")
    assert refused.value.hint


def _newest(table: Table, which: str) -> Path:
    if which == "*.metadata.json":
        return Path(table.metadata_location.removeprefix("file:"))
    folder = Path(table.location().removeprefix("file:"))
    return max(folder.rglob(which), key=lambda file: file.stat().st_mtime_ns)


def _wide(make: Make, versions: int, columns: int) -> None:
    names = [f"c{number}" for number in range(columns)]
    days = [f"{2000 + number // 300}-{number % 12 + 1:02}-{number // 12 % 25 + 1:02}T00:00:00Z"
            for number in range(versions)]  # fmt: skip
    make(
        NAME,
        ["id*:LONG", *(f"{name}:DOUBLE" for name in names), *HISTORY],
        [(1, *[float(place)] * columns, day, day, False) for place, day in enumerate(sorted(days))],
    )


def test_memory_is_bounded_by_what_versions_hold(
    asked: Asked, config: LakeConfig, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    _wide(make, 120, 99)
    path = "s.t&key.id=1"
    page = asked.get(f"/record?table={path}").text
    # With this many columns, a page shows fewer versions.
    assert len(re.findall(r"data-version=", page)) == 20
    assert "Page 1 of 6" in page
    drawn = asked.get(f"/part/timeline?table={path}").json()
    assert len(drawn["starts"]) == 120
    assert drawn["lanes"][0]["places"] == list(range(1, 120))

    timeline = history(config, NAME, {"id": "1"})
    held = timeline.bytes
    assert 120 * 100 * 8 <= held < 2 * 120 * 100 * 8
    before = pa.total_allocated_bytes()
    assert [version.values["c0"] for version in timeline.versions] == [
        float(number) for number in range(120)
    ]
    assert [len(version.changes) for version in timeline.versions] == [0, *[99] * 119]
    assert timeline.versions[-1].changes[0].old == 118.0
    assert [version.start for version in timeline.outline().versions] == [
        version.start for version in timeline.versions
    ]
    assert pa.total_allocated_bytes() <= before + held // 2

    monkeypatch.setattr(sites, "_MAX_BYTES", held // 2)
    assert asked.get(f"/record?table={path}").status_code == 200  # The timeline is cached.
    refused = asked.get(f"/record?table={path}&key.id=01")
    assert refused.status_code == 400
    assert "exceed the limit" in refused.text
    assert "chronolake query" in refused.text
