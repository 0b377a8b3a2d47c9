"""Configurations of connectors as entries: from their specifications, or from a file of the user.

A specification is a JSON schema. Secrets become references to environment variables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, Final

from chronolake.errors import ConfigurationError
from chronolake.masking import is_secret
from chronolake.scaffold.document import Entry, literal
from chronolake.scaffold.proposal import Variable, variable_name

_REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
#: Keys that mark secrets: those of Airbyte and of the Singer SDK.
_SECRET: Final = ("airbyte_secret", "secret", "writeOnly")
#: A value that may be a key, whatever its name is.
_LIKE_A_KEY: Final = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w+=-]{20,}")
_DATES: Final = {"date": "2020-01-01", "date-time": "2020-01-01T00:00:00Z"}
_MOST_CHARACTERS: Final = 300


@dataclass
class SourceSettings:
    """The key `config` of a source.

    Attributes:
        pipeline: the pipeline's name, with which names of variables begin.
        variables: the variables that the entries reference.
    """

    pipeline: str
    variables: dict[str, Variable] = field(default_factory=dict)

    def from_given(
        self, given: Mapping[str, Any], schema: Mapping[str, Any] | None = None
    ) -> tuple[Entry, ...]:
        """Return the entries of a configuration that the user has.

        Args:
            given: the configuration.
            schema: the specification, which marks secrets; None without one.
        """
        properties = (schema or {}).get("properties") or {}
        return tuple(
            Entry(str(name), self._given_value(value, properties.get(name) or {}, (str(name),)))
            for name, value in given.items()
        )

    def _given_value(self, value: Any, schema: Mapping[str, Any], path: tuple[str, ...]) -> Any:
        if isinstance(value, date):
            # YAML reads dates without quotes; connectors get texts.
            value = value.isoformat()
        if isinstance(value, str):
            for name in _REFERENCE.findall(value):
                purpose = f"as {'.'.join(path)} references it"
                self.variables[name] = Variable(name, purpose, os.environ.get(name))
            if _REFERENCE.search(value):
                return value
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            is_hidden = _is_secret(path, schema) or _LIKE_A_KEY.fullmatch(str(value))
            return self._reference(path, schema, str(value)) if is_hidden else value
        inner = _properties_of(schema)
        if isinstance(value, Mapping):
            return tuple(
                Entry(str(name), self._given_value(item, inner.get(name) or {}, (*path, str(name))))
                for name, item in value.items()
            )
        if isinstance(value, list):
            items = {**(schema.get("items") or {}), "secret": _is_secret(path, schema)}
            return [
                _plain(self._given_value(item, items, (*path, str(number))))
                for number, item in enumerate(value, 1)
            ]
        return value

    def from_schema(
        self, schema: Mapping[str, Any], path: tuple[str, ...] = ()
    ) -> tuple[Entry, ...]:
        """Return entries for a specification: those with a value, and the others as comments.

        Raises:
            ConfigurationError: a required setting has no default, and is not a text.
        """
        required = [str(name) for name in schema.get("required") or ()]
        described = {name: value or {} for name, value in (schema.get("properties") or {}).items()}
        others = sorted(
            (name for name in described if name not in required),
            key=lambda name: _order(described[name]),
        )
        found = []
        for name in [*required, *others]:
            of_name = described.get(name, {})
            # Airbyte fills in defaults, and connectors rely on it.
            is_set = name in required or of_name.get("default") is not None
            value = (
                self._required_value(of_name, (*path, name)) if is_set else _optional_value(of_name)
            )
            found.append(Entry(name, value, _comment_of(of_name), is_disabled=not is_set))
        return tuple(found)

    def _required_value(self, schema: Mapping[str, Any], path: tuple[str, ...]) -> Any:
        fixed = [schema.get("const"), schema.get("default"), *(schema.get("enum") or ())[:1]]
        known = next((value for value in fixed if value is not None), None)
        if known is not None:
            return literal(known)
        if options := (schema.get("oneOf") or schema.get("anyOf")):
            # Each option is a form of the setting; the first one is the usual one.
            inner = {**schema, "oneOf": None, "anyOf": None, **options[0]}
            return self._required_value(inner, path)
        kinds = _kinds_of(schema)
        if schema.get("properties") or "object" in kinds:
            return self.from_schema(schema, path)
        if "string" in kinds or not kinds:
            date = None if _is_secret(path, schema) else _DATES.get(schema.get("format", ""))
            is_date = date is not None
            return (_example(schema) or date) if is_date else self._reference(path, schema, None)
        return False if "boolean" in kinds else _number_or_list(schema, path)

    def _reference(
        self, path: tuple[str, ...], schema: Mapping[str, Any], value: str | None
    ) -> str:
        name = variable_name(self.pipeline, *path)
        purpose = str(schema.get("title") or ".".join(path))
        known = os.environ.get(name) if value is None else value
        self.variables[name] = Variable(name, purpose, known)
        return f"${{{name}}}"


def _number_or_list(schema: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    example = _example(schema)
    if example is None:
        # A list of some of the values that there are.
        example = next(iter((schema.get("items") or {}).get("enum") or ()), None)
    if example is None:
        raise ConfigurationError(
            f"The source needs a value for {'.'.join(path)}.",
            hint="Write its configuration to a JSON file, and add --source-config FILE.",
        )
    is_list = "array" in _kinds_of(schema)
    return [example] if is_list and not isinstance(example, list) else example


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return {entry.key: _plain(entry.value) for entry in value}
    return value


def _properties_of(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the properties of an object, also those of its forms."""
    found: dict[str, Any] = {}
    for option in [*(schema.get("oneOf") or ()), *(schema.get("anyOf") or ()), schema]:
        if isinstance(option, Mapping):
            found |= option.get("properties") or {}
    return found


def _is_secret(path: tuple[str, ...], schema: Mapping[str, Any]) -> bool:
    # "key" as a part of a name is often that of a record.
    is_named = is_secret(path[-1]) or path[-1].lower() == "key"
    return is_named or any(schema.get(key) is True for key in _SECRET)


def _kinds_of(schema: Mapping[str, Any]) -> list[str]:
    kinds = schema.get("type") or []
    return [kinds] if isinstance(kinds, str) else [str(kind) for kind in kinds]


def _order(schema: Any) -> int:
    found = schema.get("order") if isinstance(schema, Mapping) else None
    return found if isinstance(found, int) else 1_000


def _example(schema: Mapping[str, Any]) -> Any:
    examples = schema.get("examples") or schema.get("example")
    found = examples[0] if isinstance(examples, list) and examples else examples
    return literal(found)


def _optional_value(schema: Mapping[str, Any]) -> Any:
    example = _example(schema)
    if example is not None:
        return example
    return f"<{' or '.join(_kinds_of(schema)) or 'value'}>"


def _comment_of(schema: Mapping[str, Any]) -> str:
    title, about = str(schema.get("title") or ""), str(schema.get("description") or "")
    # Descriptions of connectors contain HTML.
    about = " ".join(re.sub(r"<[^<>]*>", "", about).split())
    text = f"{title}: {about}" if title and about else title or about
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS].rstrip()} ..."
