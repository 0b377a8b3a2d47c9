"""The wheel works without a checkout, make or downloaded jars, first with only the core."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.request import urlopen

import pytest

from chronolake.session import java_home
from support.datalakes import DataLake
from support.maven_mirror import fill, serve, write_ivy_settings

ROOT: Final = Path(__file__).parents[2]
_PROJECT: Final = """
lake: {path: lake}
pipelines:
  crm:
    source: {type: data_lake_v2, path: source, org: X}
    mode: history
    streams:
      Account: {table: accounts}
"""


class Installation:
    """A new environment with the wheel, and the folder of a project."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "venv" / "bin"
        self.project = folder / "project"
        self.wheel = build_wheel(folder)
        self._constraints = folder / "constraints.txt"
        self._constraints.write_text(pinned_versions(), encoding="utf-8")
        run([sys.executable, "-m", "venv", str(folder / "venv")], folder)
        # Without any variable of the environment that runs the tests.
        self.environment = {
            "HOME": str(folder / "home"),
            "JAVA_HOME": java_home(),
            "PATH": f"{self.bin}:/usr/bin:/bin",
        }

    def install(self, extras: str = "") -> None:
        run(
            [
                str(self.bin / "pip"), "install", "--quiet", "--disable-pip-version-check",
                "--constraint", str(self._constraints), f"{self.wheel}{extras}",
            ],
            self.project.parent,
        )  # fmt: skip

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["chronolake", *words],
            cwd=self.project,
            env=self.environment,
            executable=self.bin / "chronolake",
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )


def build_wheel(folder: Path) -> Path:
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], ROOT)
    (wheel,) = folder.glob("*.whl")
    return wheel


def pinned_versions() -> str:
    """Return the versions of the lock file without hashes, because our own wheel has none."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    return "\n".join(line.removesuffix(" \\") for line in lines if not line.startswith(" "))


def run(words: list[str], folder: Path, environment: Mapping[str, str] = os.environ) -> None:
    clean = {name: text for name, text in environment.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        words, cwd=folder, env=clean, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    """Install the core of the wheel, and create a project that reads a data lake."""
    installed = Installation(tmp_path)
    installed.project.mkdir()
    (installed.project / "chronolake.yml").write_text(_PROJECT, encoding="utf-8")
    row = {"Id": "a", "source__modified": datetime(2026, 1, 1, tzinfo=UTC), "grax__idseq": "1"}
    later = row | {"source__modified": datetime(2026, 1, 2, tzinfo=UTC), "grax__idseq": "2"}
    DataLake(installed.project / "source").write(
        "Account", [row | {"Name": "before"}, later | {"Name": "after"}]
    )
    fill(tmp_path / "mirror")
    installed.install()
    with serve(tmp_path / "mirror") as url:
        settings = write_ivy_settings(url, tmp_path)
        installed.environment["CHRONOLAKE_IVY_SETTINGS"] = str(settings)
        yield installed


@pytest.mark.long
def test_wheel_syncs_and_shows_history_from_another_folder(installation: Installation) -> None:
    synced = installation.command("sync", "crm")
    assert synced.returncode == 0, synced.stdout + synced.stderr
    cache = Path(installation.environment["HOME"]) / ".cache" / "chronolake" / "jars"
    assert f"Downloading Spark's jars to {cache}" in synced.stderr
    assert len(list(cache.glob("*.jar"))) == len(list(cache.iterdir()))

    history = installation.command("history", "crm.accounts", "--key", "Id=a", "--json")
    assert history.returncode == 0, history.stderr
    assert "before" in history.stdout
    assert "after" in history.stdout

    refused = installation.command("ui", "--no-browser")
    assert refused.returncode == 1
    assert "pip install 'chronolake[ui]'" in refused.stderr
    installation.install("[ui]")
    assert "accounts" in first_page(installation)


def first_page(installation: Installation) -> str:
    with subprocess.Popen(
        ["chronolake", "ui", "--port", "0", "--json", "--no-browser"],
        cwd=installation.project,
        env=installation.environment,
        executable=installation.bin / "chronolake",
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())
            with urlopen(f"http://{address['host']}:{address['port']}/", timeout=60) as response:
                return str(response.read().decode())
        finally:
            process.send_signal(signal.SIGTERM)
