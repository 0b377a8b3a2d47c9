"""Programs in processes of their own, which a failpoint may kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Final

#: The command line, as a program for `run_program`.
COMMAND: Final = "from chronolake.cli import main; main()"


def run_program(program: str, *words: str, failpoint: str = "") -> tuple[int, str]:
    """Run a Python program; return its exit code and its output.

    Args:
        program: its source.
        words: its arguments.
        failpoint: such as `staged.appended=kill`; no failpoint if it is empty.
    """
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env={**os.environ, "CHRONOLAKE_FAILPOINT": failpoint},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.returncode, done.stdout + done.stderr


def run_until_failpoint(program: str, *words: str, failpoint: str) -> bool:
    """Run a Python program that succeeds or is killed by its failpoint; return if it was killed."""
    code, reported = run_program(program, *words, failpoint=failpoint)
    assert code in {0, -signal.SIGKILL}, reported
    return code != 0
