"""A project: a chronolake.yml with its lake and pipelines, reloaded when the file changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from chronolake.config.pipelines import PipelineConfig, PostgresMethod, PostgresSource
from chronolake.config.sections import LakeConfig, LakeSection, Section
from chronolake.errors import ChronolakeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class ProjectLake(LakeSection):
    """The key `lake` of a project's file."""

    path: str = Field(
        default="lake",
        min_length=1,
        description="The lake's folder. A relative path is resolved against the folder of "
        "chronolake.yml. `--lake` overrides it.",
    )


class FileConfig(Section):
    """The content of a chronolake.yml."""

    lake: ProjectLake = Field(
        default=ProjectLake(), description="The lake in which tables are stored."
    )
    pipelines: dict[str, PipelineConfig] = Field(
        default_factory=dict,
        description="The pipelines that replicate data into the lake, keyed by name.",
    )

    @model_validator(mode="after")
    def _slots_differ(self) -> Self:
        """Raise if two pipelines read one slot, because each would miss the other's changes."""
        readers: dict[tuple[str, tuple[str, str]], str] = {}
        for name, pipeline in self.pipelines.items():
            source = pipeline.source
            if not isinstance(source, PostgresSource):
                continue
            if source.method is not PostgresMethod.LOGICAL_REPLICATION:
                continue
            slot = source.slot_for(name)
            other = readers.setdefault((slot, source.server), name)
            if other != name:
                raise ValueError(
                    f"pipelines.{name}.source.slot: the pipelines {other} and {name} would read "
                    f"one replication slot, {slot}; give one of them another `slot:`"
                )
        return self


@dataclass(frozen=True)
class Project:
    """A folder with a chronolake.yml.

    Attributes:
        file: the chronolake.yml.
        lake: the lake that its pipelines write.
        pipelines: the pipelines by name.
    """

    file: Path
    lake: LakeConfig
    pipelines: dict[str, PipelineConfig]


class WatchedProject:
    """A project that is reloaded when its file has changed.

    While the file is invalid, the last valid project is used.

    Args:
        project: the initial project.
        read: loads the project again.
        complain: called with the error of an invalid file, once for each change of the file.
    """

    def __init__(
        self,
        project: Project,
        read: Callable[[], Project],
        complain: Callable[[ChronolakeError], None] = lambda _: None,
    ) -> None:
        self._project = project
        self._read = read
        self._complain = complain
        self._stamp = self._looked()

    def now(self) -> Project:
        """Return the current project."""
        stamp = self._looked()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._project = self._read()
            except ChronolakeError as failure:
                self._complain(failure)
        return self._project

    def _looked(self) -> tuple[int, int, int] | None:
        try:
            found = self._project.file.stat()
        except OSError:
            return None
        # Editors write a new file and rename it.
        return found.st_ino, found.st_mtime_ns, found.st_size
