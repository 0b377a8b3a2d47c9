"""The command line in this process, on a lake that tests have open."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from chronolake.cli import main


def run_command(
    folder: Path, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, str]:
    """Run a command on a lake; return its exit code, standard output and standard error."""
    return run_words(capsys, *words, "--lake", str(folder))


def run_words(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run a command with exactly these words; return the same as `run_command`."""
    capsys.readouterr()
    # A command logs to the standard error of its time, which is closed when the test is over.
    logging = structlog.get_config()
    try:
        with pytest.raises(SystemExit) as stopped:
            main(words)
    finally:
        structlog.configure(**logging)
    reported = capsys.readouterr()
    return int(stopped.value.code or 0), reported.out, reported.err
