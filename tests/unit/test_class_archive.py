"""The archive of Spark's classes: when it is created and used, and that a bad one does no harm."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from chronolake import class_archive, class_training, jars
from chronolake.class_archive import archive_file, java_options, record_archive
from chronolake.config import CatalogKind, load_project
from chronolake.errors import LakeError
from chronolake.session import java_home


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder for archives."""
    monkeypatch.setenv("CHRONOLAKE_JARS", str(tmp_path))
    monkeypatch.delenv("CHRONOLAKE_CLASS_ARCHIVE", raising=False)
    return tmp_path


def create(home: str) -> Path:
    with record_archive(home) as file:
        assert file is not None
        file.write_bytes(b"classes")
    return archive_file(home)


@pytest.mark.parametrize("damage", ["truncated", "longer", "without its size"])
def test_an_archive_of_another_size_is_not_used(cache: Path, damage: str) -> None:
    home = java_home()
    file = create(home)
    if damage == "without its size":
        file.with_suffix(".size").unlink()
    else:
        file.write_bytes(b"class" if damage == "truncated" else b"classes and more")

    with record_archive(home) as again:
        assert again is not None
        again.write_bytes(b"classes")
    assert java_options(home) != []
    file.write_bytes(b"class")
    assert java_options(home) == []

    # It was removed, and is created again.
    assert not file.exists()
    assert create(home).read_bytes() == b"classes"
    assert java_options(home) != []


def test_an_archive_belongs_to_its_java_and_its_jars(cache: Path) -> None:
    home = java_home()
    first = archive_file(home)
    assert first.parent == cache
    assert archive_file(home) == first
    other = cache / "java"
    other.mkdir()
    (other / "release").write_text('JAVA_VERSION="21.0.1"\n')
    assert archive_file(str(other)) != first
    (cache / jars.required()[0].file_name).write_bytes(b"another jar")
    assert archive_file(home) != first


def test_java_starts_with_an_archive_if_there_is_one(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = java_home()
    assert java_options(home) == []
    file = create(home)
    assert java_options(home)[0] == f"-XX:SharedArchiveFile={file}"
    monkeypatch.setenv("CHRONOLAKE_CLASS_ARCHIVE", "off")
    assert java_options(home) == []


def test_an_archive_is_created_by_one_process_and_once(cache: Path) -> None:
    home = java_home()
    with record_archive(home) as file:
        assert file is not None
        with record_archive(home) as other:
            assert other is None
        assert not archive_file(home).exists()
        file.write_bytes(b"classes")
    assert archive_file(home).read_bytes() == b"classes"
    with record_archive(home) as again:
        assert again is None


def test_an_archive_that_fails_is_not_tried_by_every_command(cache: Path) -> None:
    home = java_home()

    def fail() -> None:
        with record_archive(home) as file:
            assert file is not None
            file.write_bytes(b"half of the clas")
            raise LakeError("Java ended with exit code 1.")

    with pytest.raises(LakeError):
        fail()
    assert not list(cache.glob("*.jsa")) + list(cache.glob("*.tmp"))
    with record_archive(home) as file:
        assert file is None
    (failure,) = cache.glob("*.failed")
    assert "exit code 1" in failure.read_text()
    os.utime(failure, (0, 0))
    create(home)
    assert not failure.exists()


def test_archives_that_nothing_uses_are_removed(cache: Path) -> None:
    unused, used = cache / "classes-0.jsa", cache / "classes-1.jsa"
    for file in (unused, used):
        file.write_bytes(b"classes")
    os.utime(unused, (0, 0))
    file = create(java_home())
    assert {found.name for found in cache.glob("*.jsa")} == {used.name, file.name}


def test_no_archive_is_created_in_continuous_integration(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_archive, "_scheduled", False)
    monkeypatch.setenv("CI", "true")
    class_archive.create_after_exit(java_home())
    assert not class_archive._scheduled


def test_training_never_uses_a_lake_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHRONOLAKE_CATALOG_URI", "postgresql://me@db.internal/lake")
    monkeypatch.setenv("CHRONOLAKE_WAREHOUSE", "s3://bucket/lake")
    monkeypatch.setenv("CHRONOLAKE_JARS", "/jars")
    # Restored afterwards, whatever happens to it.
    monkeypatch.setenv("CHRONOLAKE_CLASS_ARCHIVE", "on")
    file = tmp_path / "chronolake.yml"
    file.write_text(class_training._PROJECT)

    class_training.forget_settings()

    lake = load_project(file).lake
    assert lake.catalog.kind is CatalogKind.SQLITE
    assert lake.local_warehouse == tmp_path / "lake"
    assert os.environ["CHRONOLAKE_JARS"] == "/jars"


def test_an_archive_is_for_every_user_and_its_path_may_have_spaces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "my jars"
    cache.mkdir()
    monkeypatch.setenv("CHRONOLAKE_JARS", str(cache))
    monkeypatch.delenv("CHRONOLAKE_CLASS_ARCHIVE", raising=False)
    before = os.umask(0o077)
    try:
        file = create(java_home())
    finally:
        os.umask(before)
    assert file.stat().st_mode & 0o777 == 0o644
    assert java_options(java_home())[0] == f'"-XX:SharedArchiveFile={file}"'


_SESSION = """
import sys
from chronolake import session
made = session.start("local[1]", {}, {"type": "hadoop", "warehouse": sys.argv[1]}, is_small=True)
beans = made.spark._jvm.java.lang.management.ManagementFactory
options = list(beans.getRuntimeMXBean().getInputArguments())
print(made.spark.range(3).count(), any("SharedArchiveFile" in option for option in options))
"""


def start_session(folder: Path) -> tuple[str, str]:
    """Start Spark in another process; return its output and its errors."""
    done = subprocess.run(
        [sys.executable, "-c", _SESSION, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip(), done.stderr


@pytest.mark.long
def test_a_damaged_archive_does_not_break_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "jars"
    cache.mkdir()
    for file in jars.paths(java_home()):
        (cache / file.name).symlink_to(file)
    monkeypatch.setenv("CHRONOLAKE_JARS", str(cache))
    monkeypatch.delenv("CHRONOLAKE_CLASS_ARCHIVE", raising=False)
    subprocess.run([sys.executable, "-m", "chronolake.class_training"], check=True, timeout=900)
    archive = archive_file(java_home())
    assert start_session(tmp_path)[0] == "3 True"

    content = archive.read_bytes()
    middle = len(content) // 2
    damaged = {
        "empty": b"",
        "no archive": b"classes" * 1000,
        "truncated": content[:middle],
        "header": content[:40] + b"\0" * 40 + content[80:],
        "content": content[:middle] + bytes(4096) + content[middle + 4096 :],
    }
    archive.chmod(0o600)
    for name, data in damaged.items():
        archive.write_bytes(data)
        # Java itself finds other damage than a missing end.
        size = len(content) if name == "truncated" else len(data)
        archive.with_suffix(".size").write_text(str(size))
        output, errors = start_session(tmp_path)
        assert output.startswith("3 "), (name, output, errors)
