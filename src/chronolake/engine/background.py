"""Engines that a command leaves running, so that the next command need not start Java."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from chronolake import env
from chronolake.engine import client

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Files and variables that only containers have.
_CONTAINER_FILES: Final = (".dockerenv", "run/.containerenv")
_CONTAINER_VARIABLES: Final = ("KUBERNETES_SERVICE_HOST", "container")
_FALSE: Final = ("", "0", "false")


def leave_running(words: Sequence[str]) -> None:
    """Start an engine in the background, if a command of a person had to start Spark itself.

    Args:
        words: the arguments of the command, which has ended.
    """
    if not client.may_use_engine(words, os.environ) or os.environ.get(env.ENGINE):
        return
    if not is_interactive(os.environ, Path("/"), is_terminal=os.isatty(2)):
        return
    session = sys.modules.get("chronolake.session")
    if session is None or not session.has_own_java():
        return
    with suppress(OSError):
        place = client.place_of(words, os.environ)
        if place is not None:
            _start(place)


def is_interactive(environment: Mapping[str, str], root: Path, *, is_terminal: bool) -> bool:
    """Return whether a person runs commands here: no scheduler, CI job or container.

    Args:
        environment: the environment variables.
        root: the root folder, where containers have files of their own.
        is_terminal: whether standard error is a terminal.
    """
    if not is_terminal or environment.get("CI", "").lower() not in _FALSE:
        return False
    if any((root / file).exists() for file in _CONTAINER_FILES):
        return False
    return not any(environment.get(name) for name in _CONTAINER_VARIABLES)


def _start(place: Path) -> None:
    option = "--lake" if place.is_dir() else "--project"
    address = client.address_of(place)
    with address.with_suffix(".log").open("wb") as log:
        subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", "chronolake", "engine", "run", option, str(place)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
