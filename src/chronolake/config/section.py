"""The base class of all sections of chronolake.yml."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Section(BaseModel):
    """A part of chronolake.yml, which rejects unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_unset_keys(cls, values: Any) -> Any:
        """Remove keys without a value, which means that they are not set."""
        if not isinstance(values, dict):
            return values
        return {
            name: value
            for name, value in values.items()
            if value is not None or name not in known_keys(cls)
        }


def known_keys(section: type[BaseModel]) -> list[str]:
    """Return the keys of a section as they are written in the file."""
    return [field.alias or name for name, field in section.model_fields.items()]
