"""`chronolake ui` in its own process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.processes import COMMAND


@dataclass(frozen=True)
class Shop:
    """The lake, and its past as Spark reports it."""

    folder: Path
    expected: dict[str, Any]


@dataclass(frozen=True)
class Served:
    """A running web UI."""

    process: subprocess.Popen[str]
    url: str
    token: str | None


def start(folder: Path, *words: str, **environment: str) -> Served:
    """Run `chronolake ui` on a lake; the test ends it."""
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, "ui", "--lake", str(folder), "--port", "0", "--json",
         *words],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "chronolake ui ended without an address"
    reported = json.loads(line)
    return Served(process, f"http://{reported['host']}:{reported['port']}", reported["token"])


def stop(served: Served) -> int:
    """End the web UI as a service manager does; return its exit code."""
    served.process.send_signal(signal.SIGTERM)
    code = served.process.wait(timeout=10)
    if served.process.stdout is not None:
        served.process.stdout.close()
    return code
