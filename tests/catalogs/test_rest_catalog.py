"""A lake in a REST catalog: every command works, and failures of the catalog lose nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from pyiceberg.catalog.rest import RestCatalog

from chronolake.failpoints import FAILPOINTS
from support.catalogs.accounts import Accounts, Open
from support.catalogs.oauth import OAuth
from support.catalogs.projects import CatalogProject
from support.catalogs.server import RestCatalogServer, properties_on_s3, rest_catalog
from support.processes import KILLED
from support.store.faulty_proxy import (
    Fault,
    FaultyProxy,
    LoseResponse,
    faulty_proxy,
    refused_by_catalog,
)
from support.store.server import s3_server
from support.waiting import TIMEOUT

_CREDENTIAL: Final = "chronolake:a-secret-of-tests"
_COMMIT: Final = r"POST /v1/namespaces/[^/]*/tables/[^/]+$"


@pytest.mark.long
def test_every_command_works_on_a_lake_in_a_rest_catalog(accounts: Accounts) -> None:
    there, table = accounts.there, accounts.table
    there.run("sync", "crm")
    accounts.expect()
    # Runs and leases are in a file of the lake.
    assert (there.folder / "lake" / "store.db").is_file()
    assert not (there.folder / "lake" / "catalog.db").exists()

    assert table in [found["table"] for found in there.json("tables")]
    assert "Anna" in there.run("history", table, "--key", "Id=a")
    assert there.query(f"SELECT count(*) AS n FROM {table}") == [{"n": 4}]
    assert "crm" in there.run("status")
    there.run("verify", table, "--against-lake")
    there.run("maintain", table)
    accounts.expect()

    before = accounts.rows()
    there.run("rebuild", table)
    accounts.expect()
    assert len(accounts.rows()) == len(before)
    for mode in ("live", "history"):
        accounts.set_mode(mode)
        accounts.write(b=mode)
        there.run("sync", "crm")
        accounts.expect()
    assert len(accounts.rows()) == 6
    there.run("verify", table, "--against-lake")
    # Rows are removed from a table that had other partitions before.
    accounts.write(a="Late", d="Dora")
    there.run("sync", "crm")
    accounts.expect()
    there.run("maintain", table)
    there.run("verify", table)


@pytest.mark.long
def test_tables_on_s3_are_written_with_credentials_of_the_catalog(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, open_accounts: Open, s3_socket: str
) -> None:
    with s3_server(tmp_path_factory.mktemp("s3")) as s3:
        bucket = str(s3.bucket())
        folder = tmp_path / "server"
        folder.mkdir()
        with (
            rest_catalog(folder, properties_on_s3(s3, bucket)) as server,
            faulty_proxy(server.port) as proxy,
        ):
            accounts = open_accounts(
                "shop",
                port=proxy.port,
                socket=s3_socket,
                name="analytics",
                properties={"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"},
                settings={"storage": {"endpoint": s3.endpoint}},
            )
            accounts.write(a="Ann", b="Bob")
            accounts.there.run("sync", "crm")
            accounts.write(a="Anna")
            accounts.there.run("sync", "crm")
            accounts.expect()
            accounts.there.run("rebuild", accounts.table)
            accounts.there.run("maintain", accounts.table)
            accounts.expect()

            files = list(s3.folder.rglob("*.parquet"))
            assert files
            assert all("warehouse/shop/Account" in str(file) for file in files)
            asked = {request for request in proxy.requests if "/v1/config" in request}
            assert asked == {"GET /v1/config?warehouse=analytics"}


@pytest.mark.long
def test_a_schema_may_be_nested(open_accounts: Open, rest: RestCatalogServer) -> None:
    accounts = open_accounts("sales.emea")
    accounts.write(a="Ann", b="Bob")
    accounts.there.run("sync", "crm")
    accounts.write(a="Anna")
    accounts.there.run("sync", "crm")
    accounts.expect()

    with RestCatalog("reader", uri=rest.uri) as catalog:
        assert ("sales", "emea") in catalog.list_namespaces(("sales",))
        assert catalog.list_tables(("sales", "emea")) == [("sales", "emea", "Account")]
    there = accounts.there
    assert accounts.table in [found["table"] for found in there.json("tables")]
    assert there.query("SELECT count(*) AS n FROM sales.emea.Account") == [{"n": 3}]
    there.run("rebuild", accounts.table)
    there.run("maintain", accounts.table)
    there.run("verify", accounts.table, "--against-lake")
    accounts.set_mode("live")
    there.run("sync", "crm")
    accounts.expect()


_CONFLICT: Final = refused_by_catalog(409, "CommitFailedException")
_FAILED: Final = refused_by_catalog(500, "InternalServerError")
_BUSY: Final = refused_by_catalog(503, "ServiceUnavailableException")
#: Requests, a fault, and how many requests pass before it. A sync makes one commit.
_FAULTS: Final = [
    *((_COMMIT, fault, 0) for fault in (LoseResponse(), _CONFLICT, _FAILED, _BUSY)),
    *(
        ("GET /v1/namespaces", fault, passed)
        for fault in (_FAILED, LoseResponse(), _BUSY)
        for passed in range(3)
    ),
]


@pytest.mark.long
@pytest.mark.parametrize(("requests", "fault", "passed"), _FAULTS)
def test_a_failure_of_the_catalog_loses_nothing(
    accounts: Accounts, proxy: FaultyProxy, requests: str, fault: Fault, passed: int
) -> None:
    proxy.fail(requests, fault, after=passed)

    command = accounts.there.start("sync", "crm")
    output, errors = command.communicate(timeout=TIMEOUT)

    assert command.returncode in {0, 1}, output + errors
    assert len(proxy.failed) == 1
    if command.returncode == 1:
        accounts.there.run("sync", "crm")
    accounts.expect()
    accounts.there.run("verify", accounts.table, "--against-lake")


@pytest.mark.long
@pytest.mark.parametrize("change", ["rebuild", "live"])
@pytest.mark.parametrize("passed", range(4))  # as many commits as a replacement makes
@pytest.mark.parametrize("fault", [_CONFLICT, LoseResponse(), _FAILED])
def test_a_failed_replacement_leaves_the_old_table_or_the_new_one(
    accounts: Accounts, proxy: FaultyProxy, change: str, passed: int, fault: Fault
) -> None:
    accounts.there.run("sync", "crm")
    words = ("rebuild", accounts.table) if change == "rebuild" else ("sync", "crm")
    if change == "live":
        accounts.set_mode("live")
    proxy.fail(_COMMIT, fault, after=passed)

    command = accounts.there.start(*words)
    command.communicate(timeout=TIMEOUT)

    assert command.returncode in {0, 1}
    assert len(proxy.failed) == 1
    accounts.expect()
    proxy.heal()
    if command.returncode == 1:
        accounts.there.run(*words)
    accounts.expect()
    accounts.there.run("verify", accounts.table, "--against-lake")


_STEPS: Final = sorted(
    name
    for name in FAILPOINTS
    if name.partition(".")[0] in {"rewrite", "publish", "staged", "create", "sync"}
)


@pytest.mark.long
@pytest.mark.parametrize("change", ["rebuild", "live"])
@pytest.mark.parametrize("failpoint", _STEPS)
def test_a_replacement_that_is_killed_is_repeated(
    accounts: Accounts, change: str, failpoint: str
) -> None:
    accounts.there.run("sync", "crm")
    words = ("rebuild", accounts.table) if change == "rebuild" else ("sync", "crm")
    if change == "live":
        accounts.set_mode("live")

    command = accounts.there.start(*words, failpoint=f"{failpoint}=kill")
    command.communicate(timeout=TIMEOUT)

    # A command does not reach each of them.
    assert command.returncode in {0, KILLED}
    if failpoint.startswith("rewrite."):
        assert command.returncode == KILLED or failpoint == "rewrite.written"
    accounts.expect()
    accounts.there.run(*words)
    accounts.expect()
    accounts.there.run("verify", accounts.table, "--against-lake")
    accounts.there.run("maintain", accounts.table)
    accounts.expect()


@pytest.mark.long
@pytest.mark.parametrize("failpoint", _STEPS)
def test_a_sync_that_is_killed_is_continued(accounts: Accounts, failpoint: str) -> None:
    command = accounts.there.start("sync", "crm", failpoint=f"{failpoint}=kill")
    command.communicate(timeout=TIMEOUT)
    assert command.returncode in {0, KILLED}

    accounts.there.run("sync", "crm")
    accounts.expect()
    accounts.there.run("verify", accounts.table, "--against-lake")


@pytest.fixture
def oauth(proxy: FaultyProxy) -> OAuth:
    found = OAuth(_CREDENTIAL)
    proxy.guard = found.guard
    return found


@pytest.mark.long
def test_client_credentials_are_exchanged_for_tokens(open_accounts: Open, oauth: OAuth) -> None:
    accounts = open_accounts(properties={"credential": _CREDENTIAL})
    accounts.write(a="Ann")
    accounts.there.run("sync", "crm")

    issued = oauth.issued
    assert issued
    assert accounts.there.query(f"SELECT count(*) AS n FROM {accounts.table}") == [{"n": 1}]
    # A process that runs for a long time has a token that ended.
    oauth.revoke_all()
    accounts.write(a="Anna")
    accounts.there.run("sync", "crm")
    assert accounts.there.query(f"SELECT count(*) AS n FROM {accounts.table}") == [{"n": 2}]
    assert oauth.issued > issued


@pytest.mark.long
def test_wrong_credentials_are_reported(open_accounts: Open, oauth: OAuth) -> None:
    accounts = open_accounts(properties={"credential": "chronolake:wrong-secret"})
    accounts.write(a="Ann")

    for words in (("sync", "crm"), ("tables",)):
        reported = " ".join(accounts.there.run(*words, code=1).split())
        assert "refuses" in reported
        assert "lake.catalog.properties" in reported
        assert "wrong-secret" not in reported
    assert not oauth.issued


@pytest.mark.long
def test_a_bearer_token_that_ends_during_a_run_is_reported(
    open_accounts: Open, oauth: OAuth, proxy: FaultyProxy
) -> None:
    accounts = open_accounts(properties={"token": oauth.issue()})
    accounts.write(a="Ann")
    accounts.there.run("sync", "crm")
    accounts.expect()
    accounts.write(a="Anna", b="Bob")
    refused = refused_by_catalog(401, "NotAuthorizedException")
    proxy.fail(_COMMIT, refused, times=100)

    reported = " ".join(accounts.there.run("sync", "crm", code=1).split())

    assert "refuses the credentials" in reported
    proxy.heal()
    accounts.there.run("sync", "crm")
    accounts.expect()
    accounts.there.run("verify", accounts.table, "--against-lake")


@pytest.mark.long
def test_a_destination_writes_to_a_rest_catalog(
    tmp_path: Path, proxy: FaultyProxy, rest: RestCatalogServer
) -> None:
    there = CatalogProject(tmp_path, "", proxy.port, {})
    there.send_examples("serve_shop")
    with RestCatalog("reader", uri=rest.uri) as catalog:
        tables = catalog.list_tables(("serve_shop",))
    assert set(tables) == {("serve_shop", "customers"), ("serve_shop", "orders")}
