"""A source's configuration, as the manifest's specification describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_HIDDEN: Final = "****"
_SECRET: Final = "airbyte_secret"  # noqa: S105 - a key of the specification
#: A shorter secret would hide parts of harmless words.
_SHORTEST: Final = 3


def missing_in(config: Mapping[str, Any], specification: Mapping[str, Any]) -> list[str]:
    """The keys that the specification requires and the configuration does not have."""
    required = specification.get("required")
    names = required if isinstance(required, list) else []
    return [str(name) for name in names if config.get(name) is None]


def masking(config: Mapping[str, Any], specification: Mapping[str, Any]) -> Callable[[str], str]:
    """What hides the configuration's secrets in a text.

    Args:
        config: what the user has set.
        specification: says by `airbyte_secret` what is secret.
    """
    found = {text for text in secrets_in(config, specification) if len(text) >= _SHORTEST}
    secrets = sorted(found, key=len, reverse=True)

    def mask(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, _HIDDEN)
        return text

    return mask


def secrets_in(value: Any, schema: Mapping[str, Any]) -> Iterator[str]:
    """The secrets in a value, by its JSON schema."""
    if schema.get(_SECRET):
        yield from _texts_in(value)
        return
    for union in ("oneOf", "anyOf", "allOf"):
        for one in schema.get(union) or ():
            if isinstance(one, dict):
                yield from secrets_in(value, one)
    if isinstance(value, dict):
        for name, inner in (schema.get("properties") or {}).items():
            if name in value and isinstance(inner, dict):
                yield from secrets_in(value[name], inner)
    elif isinstance(value, list) and isinstance(schema.get("items"), dict):
        for item in value:
            yield from secrets_in(item, schema["items"])


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _texts_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts_in(inner)
    elif value is not None:
        yield str(value)
