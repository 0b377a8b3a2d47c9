"""A whole chronolake.yml: a lake, and the pipelines that fill it."""

from __future__ import annotations

# pydantic reads annotations at run time.
# ruff: noqa: TC001
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from chronolake.config.pipelines import PipelineConfig
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
