"""Projects whose lake is in a bucket, and commands on them in an engine with the client's jars."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from chronolake.config import Project, load_project
from support.engines import ENGINE, EngineProcess
from support.lakes import SPARK
from support.store.server import ACCESS_KEY, SECRET_KEY
from support.waiting import TIMEOUT

_EXAMPLES: Final = Path(__file__).parents[3] / "examples"
#: Seconds in which a destination ends.
_END_SECONDS: Final = 120
#: What the provider's default chain finds.
CREDENTIALS: Final = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}


@dataclass
class BucketProject:
    """A project in a folder, whose tables and landed files are in a bucket."""

    folder: Path
    warehouse: str
    port: int
    pipelines: dict[str, Any]
    socket: str = "off"
    spark: dict[str, Any] = field(default_factory=lambda: {"master": "local[2]", "conf": SPARK})
    #: Further keys of `lake.storage`.
    keys: dict[str, Any] = field(default_factory=dict)
    #: The environment of commands.
    environment: Mapping[str, str] = field(default_factory=lambda: CREDENTIALS)

    def __post_init__(self) -> None:
        self.configure()

    @property
    def lake(self) -> dict[str, Any]:
        """Return the key `lake` of the configuration."""
        return {
            "warehouse": self.warehouse,
            "storage": {"endpoint": f"http://127.0.0.1:{self.port}", **self.keys},
        }

    def configure(self) -> None:
        """Write the configuration."""
        self.folder.mkdir(parents=True, exist_ok=True)
        content = {
            "lake": self.lake,
            "spark": self.spark,
            "pipelines": self.pipelines,
        }
        (self.folder / "chronolake.yml").write_text(yaml.safe_dump(content))

    @property
    def project(self) -> Project:
        return load_project(self.folder / "chronolake.yml")

    def start(self, *words: str, failpoint: str = "") -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "chronolake", *words],
            env={
                **os.environ,
                **self.environment,
                "CHRONOLAKE_ENGINE": self.socket,
                "CHRONOLAKE_FAILPOINT": failpoint,
                "CHRONOLAKE_CLASS_ARCHIVE": "off",
            },
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str, code: int = 0, failpoint: str = "") -> str:
        """Run a command, and return what it prints."""
        command = self.start(*words, failpoint=failpoint)
        output, errors = command.communicate(timeout=TIMEOUT)
        assert command.returncode == code, output + errors
        return output if code == 0 else output + errors

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json"))

    def table(self, *identifier: str) -> Table:
        """Return a table as PyIceberg loads it from the catalog.

        Args:
            identifier: the levels of its schema, and its name.
        """
        lake = self.project.lake
        catalog = SqlCatalog(
            "chronolake",
            uri=f"sqlite:///{lake.catalog_file}",
            **{
                "s3.endpoint": f"http://127.0.0.1:{self.port}",
                "s3.region": "us-east-1",
                "warehouse": lake.warehouse_location,
            },
        )
        try:
            return catalog.load_table(identifier)
        finally:
            catalog.engine.dispose()

    def rows(self, *identifier: str) -> list[dict[str, Any]]:
        """Return the rows of a table as PyIceberg reads them; it is found as by `table`."""
        found: list[dict[str, Any]] = self.table(*identifier).scan().to_arrow().to_pylist()
        return found

    @contextmanager
    def serving(self) -> Iterator[int]:
        """Run a destination while the block runs; yield its port.

        The batch files that it reads are in `files` of the project's folder.
        """
        files = self.folder / "files"
        files.mkdir(exist_ok=True)
        words = ("serve", "--port", "0", "--files-root", str(files))
        serving = self.start(*words)
        try:
            assert serving.stdout is not None
            lines = (line for line in serving.stdout if '"listening ' in line)
            yield next(json.loads(line)["port"] for line in lines)
        finally:
            serving.terminate()
            serving.communicate(timeout=_END_SECONDS)
        assert serving.returncode == 0

    def send_examples(self, schema: str, *, before: Callable[[], None] = lambda: None) -> None:
        """Send the example batches to a destination that runs meanwhile.

        Args:
            schema: the schema of their tables.
            before: is called when the destination listens.
        """
        with self.serving() as port:
            before()
            files = str(self.folder / "files")
            words = ("--schema-name", schema, "--work-dir", files, "--shuffle-seed", "1")
            self.run("test-destination", str(_EXAMPLES), "--target", f"127.0.0.1:{port}", *words)

    def query(self, statement: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.run("query", statement, "--json").splitlines()]


class BucketEngine(EngineProcess):
    """An engine whose Java can reach S3."""

    def __init__(
        self, folder: Path, *, credentials: Mapping[str, str] = CREDENTIALS, **settings: Any
    ) -> None:
        super().__init__(folder)
        self.environment |= credentials
        self.project = BucketProject(folder, "s3://none", 1, {}, **settings)

    def start(self) -> str:
        """Start the engine, and return its socket."""
        file = str(self.folder / "chronolake.yml")
        process = self.launch("-c", ENGINE, file, log="log", errors="errors")
        sockets = self.folder / "chronolake"
        while not list(sockets.glob("*.sock")):
            assert process.poll() is None, (self.folder / "errors").read_text()
        return str(next(sockets.glob("*.sock")))


@contextmanager
def bucket_engine(**settings: Any) -> Iterator[str]:
    """Run an engine whose Java can reach S3; yield its socket.

    Args:
        settings: those of `BucketEngine`.
    """
    # A socket's path has at most 107 bytes, which a folder of pytest's may exceed.
    folder = Path(tempfile.mkdtemp(prefix="chronolake-s3-"))
    engine = BucketEngine(folder, **settings)
    yield engine.start()
    engine.stop()
    shutil.rmtree(folder, ignore_errors=True)
