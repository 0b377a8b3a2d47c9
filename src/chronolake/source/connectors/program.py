"""The program of a configured connector, and the files that it gets."""

from __future__ import annotations

import os
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from chronolake import exact_json
from chronolake.private_folder import private_folder, write_private
from chronolake.source.connectors.environments import environment, program_of
from chronolake.source.connectors.process import ConnectorProcess

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from chronolake.config import ConnectorSection
    from chronolake.masking import Secrets


@dataclass(frozen=True)
class Program:
    """The program of a connector.

    Attributes:
        config: its section of chronolake.yml.
        folder: the project's folder, where it runs.
        pipeline: the pipeline's name, for logs.
        secrets: what logs and errors must not contain.
    """

    config: ConnectorSection
    folder: Path
    pipeline: str
    secrets: Secrets

    @cached_property
    def command(self) -> list[str]:
        """Return the program with its own arguments; its package is installed if necessary.

        Raises:
            MissingRequirementError: the package cannot be installed.
            ConfigurationError: the program of the package is not clear.
        """
        if self.config.command is not None:
            given = self.config.command
            words = given.split() if isinstance(given, str) else list(given)
            program = self.folder / words[0]
            # A name without a folder is found on the path.
            return [str(program) if os.sep in words[0] else words[0], *words[1:]]
        package = self.config.package or ""
        requirements = [package, *self.config.requirements]
        python = self.config.python and program_in(self.folder, self.config.python)
        place = environment(requirements, python=python)
        return [str(program_of(place, package))]

    def start(self, *arguments: str) -> ConnectorProcess:
        """Start the program.

        Raises:
            MissingRequirementError: it does not exist, or cannot be run.
        """
        return ConnectorProcess(
            [*self.command, *arguments],
            pipeline=self.pipeline,
            folder=self.folder,
            secrets=self.secrets,
            silent_seconds=self.config.silent_seconds,
            variables=self.config.environment,
        )


def program_in(folder: Path, program: str) -> str:
    """Return the path of a program in a folder; its name if it is not there."""
    given = folder / program
    return str(given) if given.is_file() else program


@contextmanager
def json_files(contents: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """Write values as JSON files that only this user can read, until the block ends.

    Args:
        contents: the values, by name.

    Yields:
        The paths of the files, by name.
    """
    with private_folder("chronolake-connector-") as folder:
        paths = {}
        for name, value in contents.items():
            path = folder / f"{name}.json"
            write_private(path, exact_json.dumps(value))
            paths[name] = str(path)
        yield paths


def arguments_of(paths: Mapping[str, str], names: Sequence[str]) -> list[str]:
    """Return command-line arguments such as `--config PATH`, for the files that exist."""
    return [word for name in names if name in paths for word in (f"--{name}", paths[name])]
