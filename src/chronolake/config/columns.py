"""The key `columns` of pipelines and streams: which columns are stored, and in which form."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, Field, model_validator

from chronolake.config.patterns import Patterns  # noqa: TC001 - pydantic reads it
from chronolake.config.section import Section
from chronolake.errors import UnsupportedTypeError
from chronolake.types import ColumnType, Kind

#: The key of an HMAC with SHA-256 should not be easier to guess than 128 random bits.
_LEAST_KEY: Final = 16


def _check_type(text: str) -> str:
    parse_type(text)
    return text


def parse_type(text: str) -> ColumnType:
    """Return a column type as it is written in the file: `long`, `DECIMAL(10, 2)`.

    Raises:
        ValueError: the type does not exist.
    """
    name = re.sub(r"\s", "", text).upper()
    try:
        return ColumnType.parse(name)
    except UnsupportedTypeError as failure:
        raise ValueError(failure.message) from None
    except (TypeError, ValueError):
        known = ", ".join(kind.value.lower() for kind in Kind)
        raise ValueError(
            f"{text!r} is not a column type; write one of {known}, with digits: decimal(10,2)"
        ) from None


class OnCastError(StrEnum):
    """What happens to a value that does not fit the configured type of its column."""

    #: The stream fails, and nothing of the batch lands.
    FAIL = "fail"
    #: The value is null.
    SET_NULL = "set-null"


class TrackHistory(Section):
    """The columns whose changes start a version of a record in a history table.

    Names may be patterns with `*`, `?` and `[…]`, in any case of letters.
    """

    only: Patterns | None = Field(
        default=None, min_length=1, description="The tracked columns: names or patterns."
    )
    excepted: Patterns | None = Field(
        default=None,
        alias="except",
        min_length=1,
        description="The columns that are not tracked: names or patterns.",
    )

    @model_validator(mode="after")
    def _check_keys(self) -> TrackHistory:
        if (self.only is None) == (self.excepted is None):
            raise ValueError("set either only or except")
        return self


class ColumnSettings(Section):
    """Columns that are excluded, hashed, masked, renamed or cast.

    Names may be patterns with `*`, `?` and `[…]`, in any case of letters.
    """

    exclude: Patterns = Field(
        default_factory=list,
        description="Columns that are not stored: names or patterns, such as '*_ssn'.",
    )
    hash: Patterns = Field(
        default_factory=list,
        description="Columns whose values are replaced by their HMAC-SHA256 with `hash_key`. Equal "
        "values have equal hashes in all tables, and null remains null.",
    )
    hash_key: str | None = Field(
        default=None,
        min_length=_LEAST_KEY,
        repr=False,
        description="The secret key of `hash`, of at least 16 characters. Take it from the "
        "environment: ${HASH_KEY}.",
    )
    mask: Patterns | dict[str, str | None] = Field(
        default_factory=list,
        description="Columns whose values are replaced by null, or by a text: {email: hidden}.",
    )
    rename: dict[str, str] = Field(
        default_factory=dict,
        description="New names of columns, keyed by their names in the source.",
    )
    type: dict[str, Annotated[str, AfterValidator(_check_type)]] = Field(
        default_factory=dict,
        description="Types of columns, keyed by names or patterns: {amount: 'decimal(10,2)'}.",
    )
    on_cast_error: OnCastError | None = Field(
        default=None,
        description="What happens to a value that does not fit its type: the stream fails (fail), "
        "or the value becomes null (set-null). Default: fail.",
    )

    @property
    def types(self) -> dict[str, ColumnType]:
        """Return the types of columns, by name or pattern."""
        return {name: parse_type(text) for name, text in self.type.items()}

    @model_validator(mode="after")
    def _check_rename(self) -> ColumnSettings:
        for name, now in self.rename.items():
            if not now:
                raise ValueError(f"rename: the new name of {name!r} is empty")
        return self

    @property
    def has_rules(self) -> bool:
        """Return whether columns are excluded, hashed or masked."""
        return bool(self.exclude or self.hash or self.mask)

    @property
    def masks(self) -> dict[str, str | None]:
        """Return the replacement of each masked name or pattern; None: null."""
        return dict.fromkeys(self.mask) if isinstance(self.mask, list) else dict(self.mask)
