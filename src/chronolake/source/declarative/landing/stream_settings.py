"""Settings in chronolake.yml for single streams of an API, and their validation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from chronolake.config import Nested, StreamConfig, is_never
from chronolake.errors import ConfigurationError
from chronolake.source.declarative.landing.record_schema import (
    Identity,
    Nesting,
    Shape,
    declared_columns,
    has_texts_only,
)
from chronolake.source.declarative.manifests.capabilities import cursor_field_of, cursor_of
from chronolake.source.declarative.models.cursors import DatetimeBasedCursor
from chronolake.source.declarative.parent_streams import chosen, parents_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from chronolake.config import PipelineConfig, Project
    from chronolake.source.declarative.models.streams import AnyStream, DeclarativeStream
    from chronolake.types import ColumnType


@dataclass(frozen=True)
class Settings:
    """The settings of a stream that its source applies.

    Attributes:
        detect_deletes: how often the stream is compared with the API's complete data; None: never.
        may_become_empty: whether such a comparison may delete all records.
        nests: whether declared fields of objects become columns.
        cursor: the cursor's field, if it is part of the key.
    """

    detect_deletes: str | None = None
    may_become_empty: bool = False
    nests: bool = False
    cursor: str | None = None

    @classmethod
    def of(
        cls, project: Project, pipeline: str, stream: AnyStream, api_config: Mapping[str, Any]
    ) -> Self:
        """Return the settings of a stream.

        Args:
            project: the configuration.
            pipeline: the pipeline's name.
            stream: the stream.
            api_config: the user's settings for the manifest.

        Raises:
            ConfigurationError: the stream does not support a setting.
        """
        config = project.pipelines[pipeline]
        own = config.streams.get(stream.name, StreamConfig())
        asked = _Asked(project, pipeline, stream, own)
        return cls(
            asked.detect_deletes(config),
            own.may_become_empty,
            (own.nested or config.nested) is Nested.COLUMNS,
            asked.cursor(api_config),
        )

    def identity_of(self, stream: DeclarativeStream) -> Identity:
        """Return the key of a stream's records."""
        return Identity.of(stream, self.cursor)

    def shape_of(
        self,
        stream: DeclarativeStream,
        schema: Mapping[str, Any],
        known: Mapping[str, ColumnType] | None = None,
    ) -> Shape:
        """Return the columns of a stream's records.

        Args:
            stream: the stream.
            schema: the schema of its records.
            known: the types that columns have had so far.

        Raises:
            ConfigurationError: two fields would become the same column.
        """
        identity = self.identity_of(stream)
        nesting = Nesting(stream.name, schema, identity.columns) if self.nests else None
        declared = declared_columns(schema) if nesting is None else nesting.declared
        typed = identity.typed(declared)
        return Shape(
            {**typed, **(known or {})},
            frozenset(declared) & typed.keys(),
            nesting,
            stream.name,
            has_texts_only(stream),
        )


@dataclass(frozen=True)
class _Asked:
    """A stream's settings, checked against what it supports."""

    project: Project
    pipeline: str
    stream: AnyStream
    own: StreamConfig

    def detect_deletes(self, config: PipelineConfig) -> str | None:
        """Return how often the stream is compared."""
        reason = self._reason_against_comparisons()
        if self.own.detect_deletes is None:
            # The pipeline's setting applies to those streams that support it.
            wanted = config.detect_deletes if reason is None else None
        else:
            wanted = self.own.detect_deletes
        if is_never(wanted):
            return None
        if reason is not None:
            raise self._refused("detect_deletes", *reason)
        return wanted

    def _reason_against_comparisons(self) -> tuple[str, str] | None:
        """Return why the stream cannot be compared, and what to do, or None if it can."""
        leave = f"Leave streams.{self.stream.name}.detect_deletes out."
        if cursor_of(self.stream) is None:
            return "it has no cursor, so that each run reads and compares all of it already", leave
        if not self._identity.paths:
            return (
                "it has no primary key, so that a record that has changed would look deleted",
                "Give it a primary_key in the manifest, or leave detect_deletes out.",
            )
        for parent in parents_of(self.stream):
            if isinstance(cursor_of(parent), DatetimeBasedCursor):
                reason = (
                    f"its parent {parent.name} is read from a time on, so that records of earlier "
                    "parents would look deleted"
                )
                return reason, leave
        if self.own.cursor_in_key:
            reason = "its cursor is part of its key, so that a changed record would look deleted"
            return reason, "Take one of cursor_in_key and detect_deletes."
        return None

    def cursor(self, config: Mapping[str, Any]) -> str | None:
        """Return the cursor's field, if it should be part of the key."""
        if not self.own.cursor_in_key:
            return None
        model = cursor_of(self.stream)
        leave = f"Leave streams.{self.stream.name}.cursor_in_key out."
        if not isinstance(model, DatetimeBasedCursor):
            raise self._refused("cursor_in_key", "it has no cursor over time", leave)
        if not self._identity.paths:
            reason = "it has no primary key: all that a record says is its key"
            raise self._refused("cursor_in_key", reason, leave)
        return cursor_field_of(self.stream, config)

    @property
    def _identity(self) -> Identity:
        return Identity.of(chosen(self.stream, {"": ""}))

    def _refused(self, key: str, reason: str, hint: str) -> ConfigurationError:
        name = self.stream.name
        return ConfigurationError(
            f"{self.project.file}: pipelines.{self.pipeline}.streams.{name}.{key}: the stream "
            f"{name} cannot have it: {reason}.",
            hint=hint,
        )
