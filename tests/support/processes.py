"""Programs and commands in processes of their own, which a failpoint may kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from support.engines import shared_engine
from support.waiting import TIMEOUT

#: The command line, as a program.
COMMAND: Final = "from chronolake.cli import main; main()"
#: The exit code of a command that was killed.
KILLED: Final = 128 + signal.SIGKILL
#: The variable that, set to `off`, lets every command start its own Java.
ENGINE_VARIABLE: Final = "TESTS_ENGINE"


def run_program(program: str, *words: str, failpoint: str = "") -> tuple[int, str]:
    """Run a Python program; return its exit code and its output.

    Args:
        program: its source.
        words: its arguments.
        failpoint: such as `staged.appended=kill`; no failpoint if it is empty.
    """
    return _run([sys.executable, "-c", program, *words], failpoint, {})


def run_until_failpoint(program: str, *words: str, failpoint: str) -> bool:
    """Run a Python program that succeeds or is killed by its failpoint; return if it was killed."""
    code, reported = run_program(program, *words, failpoint=failpoint)
    assert code in {0, -signal.SIGKILL}, reported
    return code != 0


def run_command(*words: str, failpoint: str = "") -> tuple[int, str]:
    """Run a command in the engine that all tests share; return its exit code and its output.

    A command that is killed has the exit code of a shell, 137.
    """
    engine = "off" if os.environ.get(ENGINE_VARIABLE) == "off" else str(shared_engine())
    code, output = _run(
        [sys.executable, "-m", "chronolake", *words], failpoint, {"CHRONOLAKE_ENGINE": engine}
    )
    if engine == "off":
        return (128 - code if code < 0 else code), output
    assert code >= 0, f"It ran in a process of its own, not in the engine: {output}"
    return code, output


def run_command_until_failpoint(*words: str, failpoint: str) -> bool:
    """Run a command that succeeds or is killed by its failpoint; return whether it was killed."""
    code, reported = run_command(*words, failpoint=failpoint)
    assert code in {0, KILLED}, reported
    return code == KILLED


def _run(command: Sequence[str], failpoint: str, variables: Mapping[str, str]) -> tuple[int, str]:
    done = subprocess.run(
        command,
        env={**os.environ, **variables, "CHRONOLAKE_FAILPOINT": failpoint},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    return done.returncode, done.stdout + done.stderr
