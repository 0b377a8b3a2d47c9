"""`chronolake ui` starts at once and without Spark, requires its token, and is read-only."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from chronolake.config import load
from chronolake.ui.server import Address, UiOptions, serve
from support.processes import COMMAND
from support.ui.uiprocess import Served, Shop, start, stop

#: Prints at its end whether it has imported Spark.
WITNESS = (
    "import atexit, sys\n"
    "atexit.register(lambda: print('pyspark' in sys.modules, file=sys.stderr))\n" + COMMAND
)
PAGES = (
    "/",
    "/part/tables",
    "/record",
    "/record?table=shop.orders",
    "/record?table=shop.orders&key.id=104",
    "/part/timeline?table=shop.orders&key.id=104",
    "/part/keys?table=shop.orders&column=id",
    "/past?table=shop.orders&at=2026-10-20&than=2026-11-10",
    "/part/life?table=shop.orders",
    "/table?name=shop.orders",
)


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a lake with a catalog, and no table in it."""
    folder = tmp_path_factory.mktemp("empty-lake")
    SqlCatalog("chronolake", uri=f"sqlite:///{folder}/catalog.db").engine.dispose()
    return folder


@pytest.fixture(scope="module")
def guarded(empty: Path) -> Iterator[Served]:
    """Serve the web UI beyond loopback."""
    served = start(empty, "--host", "0.0.0.0")
    yield served
    assert stop(served) == 0


def test_it_never_knows_spark(shop: Shop) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WITNESS, "ui", "--lake", str(shop.folder), "--port", "0", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    address = httpx.URL(process.stdout.readline().split('"')[3])
    first = httpx.get(address)
    with httpx.Client(base_url=address) as client:
        statuses = {path: client.get(path).status_code for path in PAGES}
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    started = children.read_text().split() if children.exists() else []
    process.send_signal(signal.SIGTERM)
    _, reported = process.communicate(timeout=10)

    assert first.status_code == 200
    assert statuses == dict.fromkeys(PAGES, 200)
    assert started == []
    assert reported == "False\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_quickly_and_well(empty: Path, number: signal.Signals) -> None:
    served = start(empty)
    with httpx.Client(base_url=served.url) as kept_open:
        assert kept_open.get("/").status_code == 200
        begun = time.monotonic()
        served.process.send_signal(number)
        assert served.process.wait(timeout=10) == 0
    assert time.monotonic() - begun < 3
    assert served.process.stdout is not None
    served.process.stdout.close()


def test_it_ends_although_a_page_waits_for_storage(tmp_path: Path) -> None:
    catalog = SqlCatalog("chronolake", uri=f"sqlite:///{tmp_path}/catalog.db")
    catalog.create_namespace("s")
    table = catalog.create_table(("s", "t"), pa.schema([("id", pa.int64())]), str(tmp_path / "t"))
    catalog.engine.dispose()
    # Opening a pipe without a writer blocks forever.
    Path(table.metadata_location).unlink()
    os.mkfifo(table.metadata_location)
    served = start(tmp_path)
    with pytest.raises(httpx.ReadTimeout):
        httpx.get(f"{served.url}/table?name=s.t", timeout=2)
    # The list of tables does not wait for it.
    assert "Reading 1 of 1 tables" in httpx.get(served.url).text
    begun = time.monotonic()
    assert stop(served) == 0
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    "path", ["/", "/nothing/here", "/assets/page.css", "/assets/nothing.css", "/table?name=a.b"]
)
def test_every_answer_is_kept_to_itself_by_the_browser(served: Served, path: str) -> None:
    answer = httpx.get(served.url + path)

    policy = answer.headers["content-security-policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert "server" not in answer.headers
    assert answer.headers["cache-control"]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
@pytest.mark.parametrize("path", ["/", "/assets/page.css", "/part/tables"])
def test_nothing_but_reading_is_answered(served: Served, method: str, path: str) -> None:
    answer = httpx.request(method, served.url + path)

    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD"
    assert httpx.head(served.url + path).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example:8080",
        "localhost.evil.example",
        "",
        "192.0.2.1",
        "[",
        "[::1]x",
        "[::1].evil.example:80",
        "127.0.0.1:80:x",
        "localhost:x",
    ],
)
def test_a_foreign_name_for_this_machine_is_refused(served: Served, host: str) -> None:
    answer = httpx.get(served.url + "/", headers={"host": host})

    assert answer.status_code == 421
    assert "orders" not in answer.text


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:1", "127.0.0.1:9", "[::1]:80", "a.localhost"]
)
def test_loopback_has_several_names(served: Served, host: str) -> None:
    assert httpx.get(served.url + "/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("path", ["/", "/part/tables", "/assets/record.js", "/nothing"])
@pytest.mark.parametrize("query", ["", "token=", "token=wrong", "token=ä"])
def test_outside_loopback_every_request_needs_the_token(
    guarded: Served, path: str, query: str
) -> None:
    assert guarded.token
    for cookies in ({}, {cookie(guarded): "wrong"}, {cookie(guarded): guarded.token}):
        answer = httpx.get(f"{local(guarded)}{path}?{query}", cookies=cookies)
        assert answer.status_code == 401
        assert "chronolake ui" in answer.text
        assert guarded.token not in answer.text
        assert "set-cookie" not in answer.headers


def local(served: Served) -> str:
    return served.url.replace("0.0.0.0", "127.0.0.1")


def cookie(served: Served) -> str:
    return f"chronolake-ui-{served.url.rpartition(':')[2]}"


def test_the_link_with_the_token_becomes_a_cookie_that_scripts_cannot_read(guarded: Served) -> None:
    answer = httpx.get(f"{local(guarded)}/record?table=a.b&token={guarded.token}&null=x%26y")

    assert answer.status_code == 303
    assert answer.headers["location"] == "/record?table=a.b&null=x%26y"
    kept = answer.headers["set-cookie"]
    assert "HttpOnly" in kept
    assert "SameSite=strict" in kept
    # The cookie's value does not help others: it does not contain the token of links.
    assert str(guarded.token) not in kept
    name, _, value = kept.partition(";")[0].partition("=")
    assert name == cookie(guarded)
    assert httpx.get(local(guarded), cookies={name: value}).status_code == 200


@pytest.mark.parametrize("path", ["//evil.example/", "/%2F%2Fevil.example/", "/\\evil.example/"])
def test_the_way_to_the_cookie_leads_nowhere_else(guarded: Served, path: str) -> None:
    with socket.create_connection(("127.0.0.1", int(guarded.url.rpartition(":")[2]))) as raw:
        raw.sendall(f"GET {path}?token={guarded.token} HTTP/1.0\r\nHost: a\r\n\r\n".encode())
        answer = raw.recv(4096).decode()

    place = next(line for line in answer.splitlines() if line.startswith("location:"))
    assert not place.removeprefix("location: ").startswith(("//", "/\\", "http"))


def test_a_link_from_another_site_is_requested_again_automatically(guarded: Served) -> None:
    answer = httpx.get(local(guarded), headers={"sec-fetch-site": "cross-site"})

    assert answer.status_code == 401
    assert answer.headers["refresh"] == "0"
    assert "refresh" not in httpx.get(local(guarded)).headers


def test_a_token_may_stay_the_same_from_start_to_start(empty: Path) -> None:
    served = start(empty, CHRONOLAKE_UI_TOKEN="sixteen letters!")
    try:
        assert served.token == "sixteen letters!"
        assert httpx.get(served.url).status_code == 401
        answer = httpx.get(served.url, params={"token": "sixteen letters!"})
        assert answer.status_code == 303
    finally:
        stop(served)


def words(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", COMMAND, "ui", *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_a_port_in_use_is_a_clear_error(empty: Path, served: Served) -> None:
    port = served.url.rpartition(":")[2]
    done = words("--lake", str(empty), "--port", port, folder=empty)

    assert done.returncode == 1
    assert f"cannot listen on port {port} of 127.0.0.1" in done.stderr
    assert "--port" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        (("--host", "no.such.host.invalid"), {}, "is not a valid address"),
        (("--port", "70000"), {}, "70000 is not a valid TCP port"),
        ((), {"CHRONOLAKE_UI_TOKEN": "short"}, "CHRONOLAKE_UI_TOKEN is too short"),
    ],
)
def test_what_cannot_be_served_is_explained(
    empty: Path, arguments: tuple[str, ...], environment: dict[str, str], expected: str
) -> None:
    done = words("--lake", str(empty), *arguments, folder=empty, **environment)

    assert done.returncode == 1
    assert expected in done.stderr
    assert "What to do" in done.stderr


def test_without_a_lake_or_a_project_the_error_names_what_is_missing(tmp_path: Path) -> None:
    done = words(folder=tmp_path)

    assert done.returncode == 1
    assert "There is no chronolake.yml" in done.stderr
    assert "--lake" in done.stderr


def test_in_a_project_s_folder_its_lake_is_shown_without_its_pipelines_secrets(
    tmp_path: Path,
) -> None:
    (tmp_path / "chronolake.yml").write_text(
        "lake: {path: ponds/a}\n"
        "pipelines: {shop: {source: {type: postgres, dsn: '${NOT_SET_ANYWHERE}'}}}\n",
        encoding="utf-8",
    )
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "ui", "--port", "0", "--no-browser"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    answer = httpx.get(line.removeprefix("The web UI is at ").strip())
    process.terminate()
    process.wait(timeout=10)
    process.stdout.close()

    # A missing lake is a valid state of the page, and reading does not create it.
    assert answer.status_code == 503
    assert f"There is no lake in {tmp_path}/ponds/a" in answer.text
    assert "What to do" in answer.text
    assert not (tmp_path / "ponds").exists()


def test_an_empty_lake_explains_how_to_create_tables(empty: Path) -> None:
    served = start(empty)
    try:
        for path, text in {"/": "no tables yet", "/record": "no tables yet"}.items():
            answer = httpx.get(served.url + path)
            assert answer.status_code == 200
            assert text in answer.text
            assert "chronolake sync" in answer.text
    finally:
        stop(served)


@pytest.mark.parametrize(
    ("path", "status", "expected"),
    [
        ("/table?name=shop.broken", 503, "metadata cannot be read"),
        ("/table?name=shop.nothing", 404, "no such table"),
        ("/table", 400, "does not name a table"),
        ("/table?name=a.b.c", 400, "not a valid table name"),
        ("/past?table=shop.orders&at=gestern", 400, "is not a valid time"),
        ("/past?table=shop.orders&after=nothing", 400, "cursor"),
        ("/past?table=shop.customers&at=2020-01-01", 400, "no longer available"),
        ("/record?table=shop.orders&key.id=x", 400, "not a valid LONG"),
        ("/part/versions?table=shop.orders&key.nope=1", 400, "no such column"),
        ("/part/keys?table=shop.orders&column=status", 400, "no such column"),
        ("/nothing", 404, "does not exist"),
    ],
)
def test_what_cannot_be_shown_is_explained(
    served: Served, path: str, status: int, expected: str
) -> None:
    answer = httpx.get(served.url + path)

    assert answer.status_code == status
    assert expected in answer.text
    assert "What to do" in answer.text


def test_a_name_is_loopback_only_if_its_address_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CHRONOLAKE_UI_TOKEN", raising=False)

    class Listening(Exception):  # noqa: N818 - it is not an error
        pass

    def on_listening(address: Address) -> None:
        raise Listening(address)

    def at(address: str) -> Address:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        with pytest.raises(Listening) as reported:
            serve(load(tmp_path), UiOptions("page.localhost", 0), on_listening)
        return reported.value.args[0]

    assert at("127.0.0.1").token is None
    assert at("0.0.0.0").token
