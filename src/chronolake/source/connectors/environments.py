"""Environments of connectors: each package is installed into its own one, once."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from chronolake.errors import ConfigurationError, MissingRequirementError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

log = structlog.get_logger(__name__)

_COMPLETE: Final = "complete"
_SHOWN_CHARACTERS: Final = 600


def environments_folder() -> Path:
    """Return the folder of all environments, in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "chronolake" / "connectors"


def environment(requirements: Sequence[str], *, python: str | None = None) -> Path:
    """Return the folder of an environment with packages; it is created if it does not exist.

    Args:
        requirements: the packages as pip has them, such as `airbyte-source-faker==7.2.1`.
        python: the Python of the environment, if it is not the one that runs this: a program, or
            a version such as `3.10`.

    Raises:
        MissingRequirementError: they cannot be installed, or this Python was not found.
    """
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    interpreter = sys.executable if python is None else _interpreter(python)
    key = "\n".join([*requirements, version if python is None else interpreter])
    place = environments_folder() / hashlib.sha256(key.encode()).hexdigest()[:16]
    if (place / _COMPLETE).is_file():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with _lock(place.with_suffix(".lock")):
        if not (place / _COMPLETE).is_file():
            # What an interrupted installation left is not known.
            shutil.rmtree(place, ignore_errors=True)
            _install(place, requirements, interpreter)
            (place / _COMPLETE).touch()
    return place


@contextmanager
def _lock(file: Path) -> Iterator[None]:
    with file.open("a") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield


def _interpreter(python: str) -> str:
    if shutil.which("uv") is not None:
        return python  # uv also installs versions that the machine lacks.
    found = shutil.which(python) or shutil.which(f"python{python}")
    if found is not None:
        return found
    raise MissingRequirementError(
        f"Python {python} of a connector was not found.",
        hint="Install it, or set source.python to the path of its program.",
    )


def _install(place: Path, requirements: Sequence[str], interpreter: str) -> None:
    log.info("connector_installing", packages=list(requirements), folder=str(place))
    uv = shutil.which("uv")
    python = str(place / "bin" / "python")
    if uv is not None:
        _run([uv, "venv", "--python", interpreter, str(place)], requirements)
        _run([uv, "pip", "install", "--python", python, *requirements], requirements)
        return
    _run([interpreter, "-m", "venv", str(place)], requirements)
    _run([python, "-m", "pip", "install", "--quiet", *requirements], requirements)


def _run(command: Sequence[str], requirements: Sequence[str], *, given: str | None = None) -> str:
    """Run a command with a text on its standard input, and return what it prints."""
    done = subprocess.run(  # noqa: S603 - packages that the user names
        command, capture_output=True, text=True, check=False, input=given
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-_SHOWN_CHARACTERS:]
        raise MissingRequirementError(
            f"The packages {', '.join(requirements)} cannot be installed: {said}",
            hint="Check their names and versions (of a Fivetran project, also source.sdk), and "
            "that the package index can be reached. If they need another version of Python, set "
            "source.python. Or install them yourself, and set source.command or, for Fivetran, "
            "source.python.",
        )
    return done.stdout


def pin(package: str) -> str:
    """Return a package with its newest version on the index: `airbyte-source-faker==7.2.1`.

    Args:
        package: the package's name; with a version, it is returned as it is.

    Raises:
        MissingRequirementError: the index does not have the package, or cannot be reached.
    """
    if "==" in package:
        return package
    uv = shutil.which("uv")
    if uv is not None:
        words = ["pip", "compile", "--quiet", "--no-deps", "--no-header", "--no-annotate", "-"]
        found = _run([uv, *words, "--python", sys.executable], [package], given=package)
        return found.strip()
    words = ["install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet", "--report", "-"]
    reported = _run([sys.executable, "-m", "pip", *words, package], [package])
    metadata = json.loads(reported)["install"][0]["metadata"]
    return f"{metadata['name']}=={metadata['version']}"


def program_of(place: Path, package: str) -> Path:
    """Return the program of an installed package.

    Args:
        place: the environment's folder.
        package: the package's name, with or without a version.

    Raises:
        ConfigurationError: the package has no program, or several and none of its own name.
    """
    name = _name_of(package)
    found = next(
        (
            distribution
            for distribution in _distributions(place)
            if _name_of(distribution.metadata["Name"]) == name
        ),
        None,
    )
    scripts = [] if found is None else found.entry_points.select(group="console_scripts").names
    programs = sorted(scripts)
    same = [script for script in programs if _name_of(script) in {name, name.partition("-")[2]}]
    chosen = same or programs
    if len(chosen) != 1:
        offered = ", ".join(programs) or "none"
        raise ConfigurationError(
            f"The program of the package {package} is not clear: it has {offered}.",
            hint="Set source.command to the program in the environment, or another package.",
        )
    return place / "bin" / chosen[0]


def _name_of(package: str) -> str:
    name = package
    for sign in "=<>!~[;@ ":
        name = name.partition(sign)[0]
    return name.lower().replace("_", "-").replace(".", "-")


def _distributions(place: Path) -> Iterator[Distribution]:
    for folder in (place / "lib").glob("python*/site-packages/*.dist-info"):
        yield PathDistribution(folder)
