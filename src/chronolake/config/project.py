"""A complete chronolake.yml, and a reload when it changes while in use.

A whole chronolake.yml: a lake, and the pipelines that fill it.

A chronolake.yml that may change while it is in use.
"""

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
        description="The lake's folder for commands that work with pipelines; a relative one is "
        "taken from the folder of chronolake.yml. `--lake` comes over it.",
    )


class FileConfig(Section):
    """A whole chronolake.yml."""

    lake: ProjectLake = Field(default=ProjectLake(), description="Where tables are kept.")
    pipelines: dict[str, PipelineConfig] = Field(
        default_factory=dict, description="What is brought into the lake, by a name for each."
    )

    @model_validator(mode="after")
    def _slots_differ(self) -> Self:
        """Refuse two pipelines that read one slot: each would miss what the other has read."""
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
        lake: the lake that its pipelines fill.
        pipelines: the pipelines by their names.
    """

    file: Path
    lake: LakeConfig
    pipelines: dict[str, PipelineConfig]


class WatchedProject:
    """A project that is read again when its file has changed.

    While the file is wrong, the last one that was right counts.

    Args:
        project: the project as it was read first.
        read: reads it once more.
        complain: told what is wrong with the file, once for each time that it was changed.
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
        """The project as it is now."""
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
        # Editors write a new file and move it to the old one's place.
        return found.st_ino, found.st_mtime_ns, found.st_size
