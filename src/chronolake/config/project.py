"""A whole chronolake.yml: a lake, and the pipelines that fill it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from chronolake.config.pipelines import PipelineConfig, PostgresMethod, PostgresSource
from chronolake.config.sections import LakeConfig, LakeSection, Section

if TYPE_CHECKING:
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
