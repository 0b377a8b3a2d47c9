"""Jars are downloaded by Spark's own resolver, here from a registry on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from chronolake import jars
from chronolake.errors import MissingRequirementError
from chronolake.session import java_home
from support.maven_mirror import create_folder_of, fill, serve, write_ivy_settings


def use_registry(url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Configure a registry and an empty folder for jars; return that folder."""
    monkeypatch.setenv("CHRONOLAKE_JARS", str(folder / "jars"))
    monkeypatch.setenv("CHRONOLAKE_IVY_SETTINGS", str(write_ivy_settings(url, folder)))
    return folder / "jars"


def test_each_version_of_spark_has_its_iceberg() -> None:
    assert jars.required("4.1.4")[0].file_name.startswith("iceberg-spark-runtime-4.1_2.13-")
    assert jars.required("4.0.0")[0].file_name.startswith("iceberg-spark-runtime-4.0_2.13-")
    with pytest.raises(MissingRequirementError, match=r"version of PySpark, 4\.2\.0"):
        jars.required("4.2.0")


@pytest.mark.long
def test_jars_are_downloaded_from_a_mirror_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    required = fill(tmp_path / "mirror")
    progress: list[int] = []
    with serve(tmp_path / "mirror") as url:
        cache = use_registry(url, tmp_path, monkeypatch)
        files = jars.paths(java_home(), progress.append)
    assert files == [cache / jar.file_name for jar in required]
    assert {file.name for file in cache.iterdir()} == {jar.file_name for jar in required}
    assert progress == sorted(progress)
    assert progress[-1] == sum(jar.size for jar in required)
    # The registry is down now, and is not needed.
    assert jars.paths(java_home()) == files


@pytest.mark.long
def test_a_jar_with_another_hash_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for jar in jars.required():
        create_folder_of(tmp_path / "mirror", jar).write_bytes(b"something else")
    with serve(tmp_path / "mirror") as url:
        cache = use_registry(url, tmp_path, monkeypatch)
        with pytest.raises(MissingRequirementError, match="is not the pinned one"):
            jars.paths(java_home())
    assert list(cache.iterdir()) == []


def test_a_jar_that_was_copied_incompletely_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHRONOLAKE_JARS", str(tmp_path))
    for jar in jars.required():
        with (tmp_path / jar.file_name).open("wb") as file:
            file.truncate(jar.size)
    assert jars.missing() == []
    incomplete = jars.required()[0]
    (tmp_path / incomplete.file_name).write_bytes(b"half of it")
    assert jars.missing() == [incomplete]


def test_an_unreachable_registry_is_reported_with_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = use_registry("http://127.0.0.1:9/", tmp_path, monkeypatch)
    with pytest.raises(MissingRequirementError, match="Connection refused") as caught:
        jars.paths(java_home())
    assert "CHRONOLAKE_IVY_SETTINGS" in str(caught.value.hint)
    assert str(cache) in str(caught.value.hint)
    assert list(cache.iterdir()) == []


def test_clients_of_object_stores_are_fetched_only_if_they_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHRONOLAKE_JARS", str(tmp_path))

    assert jars.clients([]) == ()
    for spark in ("4.0.0", "4.1.4"):
        names = [jar.file_name for jar in jars.clients({"s3", "gs", "abfss"}, spark)]
        assert [name.rpartition("-")[0] for name in names] == [
            "iceberg-azure-bundle",
            "iceberg-gcp-bundle",
            "iceberg-aws-bundle",
        ]
    assert set(jars.missing(["s3"])) - set(jars.missing()) == set(jars.clients(["s3"]))
