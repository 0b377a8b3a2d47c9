"""A Data Lake as a source: files of another writer, applied where they are stored."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from chronolake.config import OnBadFile
from chronolake.errors import ConfigurationError
from chronolake.landing import HOURLY_LIMITS, HourlyFolder, ObjectFolder, location_of, objects_of
from chronolake.location import scheme_of
from chronolake.source.protocol import CaptureMethod, CheckResult, Level, StreamDescriptor
from chronolake.stream_modes import StreamCapabilities
from chronolake.types import EPSILON_MICROS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chronolake.config import DataLakeSource, Project
    from chronolake.landing import Location
    from chronolake.source.protocol import Offset


@dataclass(frozen=True)
class DataLake:
    """The objects of one organisation in a Data Lake v2."""

    project: Project
    pipeline: str
    config: DataLakeSource
    _layout: ClassVar[type[ObjectFolder]] = ObjectFolder

    @property
    def _root(self) -> Location:
        path = self.config.path
        if scheme_of(path) is not None:
            return location_of(path, self.config.storage or self.project.lake.object_storage)
        return (self.project.file.parent / Path(path).expanduser()).resolve()

    def discover(self) -> list[StreamDescriptor]:
        """Return the configured objects, or all objects if none are configured."""
        file = self.project.file
        root = self._root
        existing = objects_of(root, self.config.org, self._layout)
        configured = self.config.objects
        names = existing if configured is None else list(dict.fromkeys(configured))
        for name in names:
            # An object may not have any files yet. A name similar to an existing one is a typo.
            similar = difflib.get_close_matches(name, set(existing) - set(names), n=1, cutoff=0.8)
            if name not in existing and similar:
                raise ConfigurationError(
                    f"{file}: pipelines.{self.pipeline}.source.objects: the source has no object "
                    f"{name!r}.",
                    hint=f"Did you mean {similar[0]!r}?",
                )
        return [
            StreamDescriptor(
                # Every version in a data lake has a timestamp.
                StreamCapabilities(name, reports_changes=True),
                # The backup that writes it polls its source from time to time.
                capture_method=CaptureMethod.OBSERVED_CHANGES,
                epsilon_micros=EPSILON_MICROS,
                folder=self._layout(root, self.config.org, name),
                quarantines=self.config.on_bad_file is OnBadFile.QUARANTINE,
            )
            for name in names
        ]


@dataclass(frozen=True)
class HourlyDataLake(DataLake):
    """The objects of one organisation in a Data Lake v1."""

    _layout: ClassVar[type[ObjectFolder]] = HourlyFolder

    def check(
        self,
        *,
        create: bool,  # noqa: ARG002 - nothing can be created in the lake of another writer
        positions: Mapping[str, Offset] | None = None,  # noqa: ARG002 - its tables have them
    ) -> list[CheckResult]:
        """Return a warning for each guarantee that the format does not give."""
        return [CheckResult("source", Level.WARNING, limit) for limit in HOURLY_LIMITS]
