"""The configuration: file, environment and flags, and which settings are refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from chronolake.config import (
    CatalogKind,
    FileConfig,
    StorageConfig,
    keys,
    lake_of_project,
    load,
    load_project,
    variable_of,
)
from chronolake.env import KNOWN
from chronolake.errors import ConfigurationError
from chronolake.lake import catalog_settings


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test without a chronolake.yml and without settings in the environment."""
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for key in keys():
        monkeypatch.delenv(variable_of(key), raising=False)


def written(folder: Path, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "chronolake.yml").write_text(text, encoding="utf-8")
    return folder


def test_a_lake_without_a_file_has_its_catalog_and_warehouse_in_its_folder(tmp_path: Path) -> None:
    config = load(tmp_path / "lake")

    assert config.catalog.kind is CatalogKind.SQLITE
    assert config.catalog_file == tmp_path / "lake" / "catalog.db"
    assert config.warehouse_location == str(tmp_path / "lake")
    assert config.spark.master == "local[*]"
    assert not (tmp_path / "lake").exists()


def test_flags_win_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = written(
        tmp_path / "lake",
        "lake:\n  spark: {master: 'local[1]'}\n  maintenance: {small_files: 10, keep_snapshots: 3}",
    )
    monkeypatch.setenv("CHRONOLAKE_SPARK_MASTER", "local[2]")
    monkeypatch.setenv("CHRONOLAKE_MAINTENANCE_SMALL_FILES", "20")

    config = load(lake, overrides={"spark.master": "local[3]", "warehouse": None})

    assert config.spark.master == "local[3]"
    assert load(lake, overrides={"lake.spark.master": "local[4]"}).spark.master == "local[4]"
    assert config.maintenance.small_files == 20
    assert config.maintenance.keep_snapshots == 3
    assert config.maintenance.automatic


def test_the_lakes_own_file_wins_over_the_working_folders(tmp_path: Path) -> None:
    written(tmp_path / "elsewhere", "lake: {spark: {master: here}}")
    assert load(tmp_path / "lake").spark.master == "here"

    written(tmp_path / "lake", "lake: {spark: {master: there}}")
    assert load(tmp_path / "lake").spark.master == "there"

    named = tmp_path / "named.yml"
    named.write_text("lake: {spark: {master: named}}")
    assert load(tmp_path / "lake", file=named).spark.master == "named"


@pytest.mark.parametrize(
    ("text", "nearest"),
    [
        ("lake: {spark: {mastr: x}}", "'lake.spark.master'"),
        ("lake: {maintenance: {small_file: 3}}", "'lake.maintenance.small_files'"),
        ("lakes: {}", "'lake'"),
        ("warehouse: /tmp", "'lake.warehouse'"),
        ("catalog: {}", "'lake.catalog'"),
        (
            "lake: {zebra: 1}",
            "Known keys are: catalog, store, warehouse, raw, storage, format_version, tables",
        ),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(
    tmp_path: Path, text: str, nearest: str
) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(written(tmp_path / "lake", text))

    assert "unknown key" in refused.value.message
    assert nearest in (refused.value.hint or "")


def test_settings_that_values_depend_on_are_refused(tmp_path: Path) -> None:
    zone = "spark.sql.session.timeZone"
    with pytest.raises(ConfigurationError, match=f"{zone} must be UTC"):
        load(tmp_path, overrides={"spark.conf": {zone: "Europe/Berlin"}})
    assert load(tmp_path, overrides={"spark.conf": {zone: "utc"}}).spark.conf == {zone: "utc"}


def test_an_unknown_variable_is_refused_with_the_nearest_known_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHRONOLAKE_CATALOG_URL", "postgresql://a/b")

    with pytest.raises(ConfigurationError) as refused:
        load(tmp_path)

    assert "CHRONOLAKE_CATALOG_URI" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("variable", "hint"),
    [
        ("CHRONOLAKE_LAEK", "Did you mean CHRONOLAKE_LAKE?"),
        ("CHRONOLAKE_WAREHOSE", "Did you mean CHRONOLAKE_WAREHOUSE?"),
        ("CHRONOLAKE_FAILPIONT", "Did you mean CHRONOLAKE_FAILPOINT?"),
        ("CHRONOLAKE_PORT", "The prefix CHRONOLAKE_ is reserved for Chronolake"),
        ("CHRONOLAKE_", "The prefix CHRONOLAKE_ is reserved for Chronolake"),
    ],
)
def test_an_unknown_variable_outside_a_section_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, hint: str
) -> None:
    monkeypatch.setenv(variable, "50052")
    file = written(tmp_path / "lake", "lake: {path: .}") / "chronolake.yml"

    for read in (load, lambda _: load_project(file), lambda _: lake_of_project(file)):
        with pytest.raises(ConfigurationError) as refused:
            read(tmp_path)
        assert f"{variable} is not a known setting" in refused.value.message
        assert hint in (refused.value.hint or "")


def test_variables_that_others_read_are_let_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = {
        # The file's own variables, even if the file's lake does not use them.
        "CHRONOLAKE_MINE": "p", "CHRONOLAKE_CATALOG_SECRET": "p",
        # The variables of a service called chronolake.
        "CHRONOLAKE_SERVICE_HOST": "10.0.0.1", "CHRONOLAKE_SERVICE_PORT_GRPC": "50052",
        "CHRONOLAKE_PORT": "tcp://10.0.0.1:50052", "CHRONOLAKE_PORT_50052_TCP_ADDR": "10.0.0.1",
        "CHRONOLAKE_CATALOG_PORT": "tcp://10.0.0.2:5432",
    } | dict.fromkeys(KNOWN, "1")  # fmt: skip
    for name, text in others.items():
        monkeypatch.setenv(name, text)
    text = (
        "lake: {path: ., spark: {conf: {a: '${CHRONOLAKE_MINE}'}}}\n"
        "pipelines: {p: {source: {type: postgres, dsn: 'postgresql://${CHRONOLAKE_CATALOG_SECRET}'"
        "}}}"
    )
    file = written(tmp_path / "lake", text) / "chronolake.yml"

    for config in (load(file.parent), load_project(file).lake, lake_of_project(file)):
        assert config.spark.conf == {"a": "p"}


def test_every_variable_that_is_named_somewhere_is_known() -> None:
    root = Path(__file__).parents[2]
    places = [root / "Makefile", root / "README.md"]
    for folder in ("src", "bench", "scripts", "examples", "docs", "tests"):
        places += [path for path in (root / folder).rglob("*") if path.is_file()]
    # Those tests contain names of settings that do not exist.
    wrong = {Path(__file__), Path(__file__).with_name("test_cli.py")}
    named = {
        found
        for place in places
        if place not in wrong and place.suffix != ".pyc"
        for found in re.findall(rb"CHRONOLAKE_[A-Z_]*[A-Z]", place.read_bytes())
    }

    assert {b"CHRONOLAKE_JARS", b"CHRONOLAKE_SEED", b"CHRONOLAKE_FAILPOINT_FILE"} <= named
    assert {name.decode() for name in named} <= KNOWN | {variable_of(key) for key in keys()}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lake: {maintenance: {small_files: many}}", "lake.maintenance.small_files"),
        ("lake: {maintenance: {deletion_vector_ratio: 2}}", "less than or equal to 1"),
        ("lake: {catalog: {uri: 'mysql://h/d'}}", "postgresql://"),
        ("lake: {catalog: {uri: 'postgresql:///d'}}", "does not contain a host"),
        ("lake: {catalog: {uri: 'postgresql://h'}}", "does not contain a database"),
        ("lake: {catalog: {uri: 'postgresql://h:99999999/d'}}", "not a valid URL"),
        ("lake: {warehouse: 'ftp://h/d'}", "s3://"),
        ("lake: [1]", "dictionary"),
        ("- 1", "must contain keys and values"),
        ("lake: {warehouse: 2024-13-45}", "another type"),
        ("lake: {a: 1\n", "line 2 is not valid YAML"),
        ("lake: {spark: {master: a}}\nlake: {}", "duplicate key"),
        ("lake: {warehouse: '${}'}", "does not contain a valid variable name"),
    ],
)
def test_what_does_not_fit_is_refused_and_located(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(written(tmp_path / "lake", text))

    assert words in str(refused.value)
    assert "chronolake.yml" in str(refused.value)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("track_history: {only: []}", "pipelines.a.track_history.only: "),
        ("track_history: {only: [a], except: [b]}", "track_history: set either only or except."),
        ("track_history: {onyl: [a]}", "Did you mean 'pipelines.a.track_history.only'?"),
        ("source: {type: python, run: 5}", "pipelines.a.source.run: "),
        (
            "source: {type: postgres, dsn: 'postgresql://h/d', method: xmin}",
            "pipelines.a.source.method: Input should be 'logical_replication' or 'snapshot_diff'",
        ),
        (
            "source: {type: copies, key: [id], table: b.c, catalog: {urj: d}}",
            "Did you mean 'pipelines.a.source.catalog.uri'?",
        ),
    ],
)
def test_sections_of_several_forms_are_located(tmp_path: Path, settings: str, words: str) -> None:
    source = "" if settings.startswith("source") else "    source: {type: python, run: 'b:c'}\n"
    written(tmp_path, f"lake: {{path: lake}}\npipelines:\n  a:\n{source}    {settings}\n")
    with pytest.raises(ConfigurationError) as refused:
        load_project(tmp_path / "chronolake.yml")
    assert words in str(refused.value)


def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be read: No such file.*chronolake init"):
        load(tmp_path, file=tmp_path / "missing.yml")
    (tmp_path / "latin.yml").write_bytes(b"lake: {warehouse: \xe9}")
    with pytest.raises(ConfigurationError, match=r"not UTF-8.*Save it as UTF-8"):
        load(tmp_path, file=tmp_path / "latin.yml")


def test_variables_are_filled_in_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = written(
        tmp_path / "lake",
        "lake:\n  catalog: {uri: 'postgres://me:${PASSWORD_OF_LAKE}@host:5433/db'}\n"
        "  spark: {conf: {a.b: '$${kept} $5', c: 3, d: true}}",
    )
    with pytest.raises(ConfigurationError, match="PASSWORD_OF_LAKE is not set"):
        load(lake)

    monkeypatch.setenv("PASSWORD_OF_LAKE", "p@ss")
    config = load(lake)

    assert config.catalog.uri == "postgresql://me:p@ss@host:5433/db"
    assert config.catalog.kind is CatalogKind.POSTGRESQL
    assert config.spark.conf == {"a.b": "${kept} $5", "c": "3", "d": "true"}


def test_secrets_are_in_no_text_about_a_configuration(tmp_path: Path) -> None:
    secret = "hunter2"
    overrides = {
        "catalog.uri": f"postgresql://me:{secret}@host/db",
        "catalog.properties": {"s3.secret-access-key": secret},
        "spark.conf": {"spark.hadoop.fs.s3a.secret.key": secret},
    }
    config = load(tmp_path, overrides=overrides)

    assert secret not in repr(config)
    assert secret not in str(config)
    assert config.catalog.label == "postgresql://host/db"


@pytest.mark.parametrize(
    "text",
    [
        "lake: {catalog: {uri: 'mysql://me:hunter2@host/db'}}",
        "lake: {catalog: {uri: [hunter2]}}",
        "lake: {catalog: {uri: 'postgresql://me:hunter2@host:x/db'}}",
        "lake: {catalog: {uri: hunter2: x}}",
        "lake: {spark: {conf: hunter2}}",
    ],
)
def test_secrets_are_in_no_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(written(tmp_path / "lake", text))

    seen: BaseException | None = refused.value
    while seen is not None:
        assert "hunter2" not in str(seen)
        seen = seen.__cause__


def test_a_setting_of_spark_keeps_its_dots(tmp_path: Path) -> None:
    config = load(tmp_path, overrides={"spark.conf.spark.driver.memory": "2g"})

    assert config.spark.conf == {"spark.driver.memory": "2g"}


def test_empty_sections_are_sections_left_out(tmp_path: Path) -> None:
    config = load(written(tmp_path / "lake", "lake:\n  spark:\n  maintenance:\n    small_files:\n"))

    assert config == load(tmp_path / "lake", file=written(tmp_path / "b", "") / "chronolake.yml")


def test_a_relative_warehouse_is_below_the_lake(tmp_path: Path) -> None:
    assert load(tmp_path, overrides={"warehouse": "w"}).warehouse_location == str(tmp_path / "w")
    bucket = load(tmp_path, overrides={"warehouse": "s3://bucket/lake/"})
    assert bucket.warehouse_location == "s3://bucket/lake"
    rest = load(tmp_path, overrides={"catalog.uri": "https://catalog.example:8181/api"})
    assert rest.catalog.kind is CatalogKind.REST


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("lake: {catalog: sqlite}", CatalogKind.SQLITE),
        ("lake: {catalog: 'postgresql://u:p@host/db'}", CatalogKind.POSTGRESQL),
        ("lake: {catalog: 'https://catalog.example/api'}", CatalogKind.REST),
    ],
)
def test_a_catalog_may_be_its_uri_alone(tmp_path: Path, text: str, kind: CatalogKind) -> None:
    config = load(written(tmp_path, text), overrides={"catalog.properties.token": "t"})

    assert config.catalog.kind is kind
    assert config.catalog.properties == {"token": "t"}


def test_spark_may_be_written_at_the_top(tmp_path: Path) -> None:
    assert load(written(tmp_path, "spark: {master: 'local[3]'}")).spark.master == "local[3]"
    project = load_project(tmp_path / "chronolake.yml")
    assert project.lake.spark.master == "local[3]"

    twice = "lake: {spark: {master: 'local[2]'}}\nspark: {master: 'local[3]'}"
    with pytest.raises(ConfigurationError, match="write them once"):
        load(written(tmp_path, twice))


def test_the_store_is_beside_the_catalog_unless_it_is_set(tmp_path: Path) -> None:
    assert load(tmp_path).store_database == tmp_path / "catalog.db"
    server = "postgresql://u:p@host/db"
    assert load(tmp_path, overrides={"catalog.uri": server}).store_database == server
    rest = {"catalog.uri": "https://catalog.example"}
    # A REST catalog has no database.
    assert load(tmp_path, overrides=rest).store_database == tmp_path / "store.db"
    assert load(tmp_path, overrides=rest).catalog_database is None
    assert load(tmp_path, overrides={**rest, "store": server}).store_database == server
    elsewhere = load(tmp_path, overrides={"store": "ops/store.db"})
    assert elsewhere.store_database == tmp_path / "ops/store.db"
    assert elsewhere.catalog_database == tmp_path / "catalog.db"
    assert "host" not in repr(load(tmp_path, overrides={"store": server}))
    with pytest.raises(ConfigurationError, match="not a valid store"):
        load(tmp_path, overrides={"store": "https://catalog.example"})


def test_a_rest_catalog_is_asked_for_its_warehouse_by_name(tmp_path: Path) -> None:
    rest = {"catalog.uri": "https://catalog.example"}
    alone = load(tmp_path, overrides=rest)
    assert alone.requested_warehouse is None
    assert not alone.chooses_locations
    assert alone.contains("s3://anywhere/table")
    assert alone.local_warehouse is None

    named = load(tmp_path, overrides={**rest, "catalog.warehouse": "analytics"})
    assert named.requested_warehouse == "analytics"
    assert catalog_settings(named)["warehouse"] == "analytics"
    assert named.pyiceberg_properties["warehouse"] == "analytics"
    assert not named.chooses_locations

    both = load(
        tmp_path,
        overrides={**rest, "catalog.warehouse": "analytics", "warehouse": "s3://bucket/lake"},
    )
    assert both.requested_warehouse == "analytics"
    assert both.chooses_locations
    assert both.contains("s3://bucket/lake/tables/t")
    assert not both.contains("s3://other/t")

    url = load(tmp_path, overrides={**rest, "warehouse": "s3://bucket/lake"})
    assert url.requested_warehouse == "s3://bucket/lake"
    with pytest.raises(ConfigurationError, match="only REST catalogs have named warehouses"):
        load(tmp_path, overrides={"catalog.warehouse": "analytics"})


def test_the_client_of_a_bucket_is_known_from_the_catalogs_file_io(tmp_path: Path) -> None:
    rest = {"catalog.uri": "https://catalog.example"}
    assert load(tmp_path, overrides=rest).schemes == frozenset()
    file_io = {"catalog.properties.io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
    there = load(tmp_path, overrides={**rest, **file_io, "storage.endpoint": "http://store:9000"})
    assert there.schemes == {"s3"}
    assert there.pyiceberg_properties["s3.endpoint"] == "http://store:9000"
    assert catalog_settings(there)["s3.endpoint"] == "http://store:9000"


def test_files_land_in_the_bucket_of_the_warehouse_or_where_they_were(tmp_path: Path) -> None:
    bucket = {"warehouse": "s3://bucket/lake"}
    assert load(tmp_path).raw_location == str(tmp_path / "raw")
    assert load(tmp_path, overrides=bucket).raw_location == "s3://bucket/lake/raw"
    assert load(tmp_path, overrides={**bucket, "raw": "gs://b"}).raw_location == "gs://b"
    assert load(tmp_path, overrides={**bucket, "raw": "r"}).raw_location == str(tmp_path / "r")

    (tmp_path / "raw" / "parquet").mkdir(parents=True)
    assert load(tmp_path, overrides=bucket).raw_location == str(tmp_path / "raw")


def test_the_schemes_of_all_stores_are_known(tmp_path: Path) -> None:
    assert load(tmp_path).schemes == frozenset()
    text = (
        "lake: {warehouse: 's3a://b/l'}\npipelines:\n"
        "  a: {source: {type: data_lake_v2, path: 'gs://b/crm', org: '${ORG_OF_NOBODY}'}}"
    )
    with pytest.raises(ConfigurationError, match="not a valid location"):
        load(written(tmp_path, text))
    assert load(written(tmp_path, text.replace("s3a", "s3"))).schemes == {"s3", "gs"}
    assert lake_of_project(tmp_path / "chronolake.yml").schemes == {"s3", "gs"}


@pytest.mark.parametrize("url", ["ftp://host/x", "s3://", "abfss://container/path"])
def test_other_urls_are_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(ConfigurationError):
        load(tmp_path, overrides={"warehouse": url})


@pytest.mark.parametrize(
    "path", ["a#b", "a?b/lake", "/lake", "a//lake", "a/../lake", "./lake", "la\nke"]
)
def test_paths_that_libraries_understand_in_different_ways_are_refused(
    tmp_path: Path, path: str
) -> None:
    """Iceberg's FileIO would write all files of `a#b/…` to the object `a`."""
    url = f"s3://bucket/{path}"
    source = {"type": "data_lake_v2", "path": url, "org": "X"}
    for overrides in ({"warehouse": url}, {"raw": url}):
        with pytest.raises(ConfigurationError, match="choose another path"):
            load(tmp_path, overrides=overrides)
    folder = written(tmp_path, yaml.safe_dump({"pipelines": {"crm": {"source": source}}}))
    with pytest.raises(ConfigurationError, match="choose another path"):
        load_project(folder / "chronolake.yml")


@pytest.mark.parametrize("path", ["", "/", "lake/", "my lake/ü", "a%20b", "a+b&c", "a..b"])
def test_other_paths_in_buckets_are_accepted(tmp_path: Path, path: str) -> None:
    load(tmp_path, overrides={"warehouse": f"s3://bucket/{path}"})


def test_one_section_has_the_settings_of_all_libraries() -> None:
    storage = StorageConfig(endpoint="http://minio:9000/", access_key="id", secret_key="secret")
    url = "s3://bucket/lake"

    assert storage.for_java(url) == {
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.endpoint": "http://minio:9000",
        "client.region": "us-east-1",
        "s3.path-style-access": "true",
        "s3.access-key-id": "id",
        "s3.secret-access-key": "secret",
    }
    assert storage.for_pyiceberg(url) == {
        "s3.endpoint": "http://minio:9000",
        "s3.region": "us-east-1",
        "s3.access-key-id": "id",
        "s3.secret-access-key": "secret",
    }
    assert storage.for_obstore(url)["virtual_hosted_style_request"] == "false"
    assert StorageConfig().for_java(url) == {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
    assert StorageConfig().for_pyiceberg(url) == {}
    assert StorageConfig().for_java("/folder") == {}
    assert "secret" not in repr(storage)


def test_properties_of_the_catalog_fill_what_the_storage_does_not_set(tmp_path: Path) -> None:
    properties = {
        "s3.endpoint": "http://minio:9000",
        "s3.access-key-id": "id",
        "s3.secret-access-key": "secret",
        "s3.path-style-access": "false",
    }
    config = load(
        tmp_path, overrides={"catalog.properties": properties, "storage.region": "eu-west-1"}
    )

    found = config.object_storage
    assert (found.endpoint, found.access_key, found.path_style, found.region) == (
        "http://minio:9000",
        "id",
        False,
        "eu-west-1",
    )


def test_a_key_without_its_secret_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="belong together"):
        load(written(tmp_path, "lake: {storage: {access_key: id}}"))


def test_every_key_is_described() -> None:
    schema = FileConfig.model_json_schema()

    for section in ("CatalogConfig", "SparkConfig", "MaintenanceConfig", "StorageConfig"):
        for key, content in schema["$defs"][section]["properties"].items():
            assert content.get("description"), key
