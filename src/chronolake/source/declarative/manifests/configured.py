"""A source's configuration, as the manifest's specification describes it."""

from __future__ import annotations

import json
from collections.abc import Hashable
from contextlib import suppress
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final, assert_never
from urllib.parse import quote, quote_plus

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.language.configuration import (
    ConfigAddFields,
    ConfigRemapField,
    ConfigRemoveFields,
    CustomConfigTransformation,
    PredicateValidator,
)
from chronolake.source.declarative.manifests.conformance import misfit_of
from chronolake.source.declarative.manifests.manifest import rules_of
from chronolake.source.declarative.records.fieldpaths import path_of, places, put, removed
from chronolake.source.declarative.records.transformations import KINDS
from chronolake.source.declarative.templating.templates import (
    as_mapping,
    as_truth,
    evaluated,
    is_template,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from chronolake.source.declarative.language.configuration import (
        ConfigTransformation,
        DpathValidator,
    )
    from chronolake.source.declarative.manifests.conformance import Misfit
    from chronolake.source.declarative.manifests.manifest import Manifest

_HIDDEN: Final = "****"
_SECRET: Final = "airbyte_secret"  # noqa: S105 - a key of the specification
#: A shorter secret would hide parts of harmless words.
_SHORTEST: Final = 3


def made_ready(config: Mapping[str, Any], manifest: Manifest) -> dict[str, Any]:
    """The configuration as the manifest's rules make it, and find it right.

    Args:
        config: what the user has set; it stays as it is.
        manifest: the manifest, whose `spec` has the rules.

    Raises:
        ConfigurationError: a rule cannot be used, or the configuration is not as it has to be.
    """
    rules, wrong = rules_of(manifest.content)
    if wrong:
        line = "" if wrong[0].line is None else f", line {wrong[0].line}"
        raise ConfigurationError(
            f"{manifest.file}{line}: {wrong[0].path}: {wrong[0].message}.",
            hint="The manifest's `spec` says what is done to the configuration.",
        )
    ready = deepcopy(dict(config))
    if rules is None:
        return ready
    migrations = [one for migration in rules.config_migrations for one in migration.transformations]
    for step in (*migrations, *rules.transformations):
        # What is not run only rewrites configurations that were made for older manifests.
        if not isinstance(step, CustomConfigTransformation):
            _transform(ready, step)
    for asked in rules.validations:
        _validate(ready, asked)
    return ready


def _transform(config: dict[str, Any], step: ConfigTransformation) -> None:
    variables: dict[str, Any] = {"config": config, "parameters": {}}
    match step:
        case ConfigRemapField():
            _remap(config, step)
        case ConfigRemoveFields():
            if step.condition and not as_truth(step.condition, variables):
                return
            for pointer in filter(None, step.field_pointers):
                for place in tuple(places(config, pointer)):
                    removed(place)
        case ConfigAddFields():
            for added in step.fields:
                kinds = (KINDS[added.value_type],) if added.value_type else ()
                value = evaluated(
                    added.value,
                    {"config": config, "parameters": added.parameters},
                    default=added.value,
                    kinds=kinds,
                )
                told = {**variables, "value": value, "path": added.path}
                if not step.condition or as_truth(step.condition, told):
                    _put(config, added.path, value)
        case _:
            assert_never(step)


def _remap(config: dict[str, Any], step: ConfigRemapField) -> None:
    *above, name = path_of(step.field_path, config, {})
    holder: Any = config
    for segment in above:
        holder = holder.get(segment) if isinstance(holder, dict) else None
    if not isinstance(holder, dict) or not isinstance(holder.get(name), Hashable):
        return
    table = as_mapping(step.map, {"config": config, "parameters": {}})
    if name in holder and holder[name] in table:
        holder[name] = table[holder[name]]


def _put(config: dict[str, Any], path: list[str], value: Any) -> None:
    try:
        put(config, path, value)
    except SourceError as failure:
        raise ConfigurationError(
            f"The manifest cannot add {'.'.join(path)} to the configuration: something else "
            "stands on its path.",
            hint="The manifest's `spec` says what each field of the configuration is.",
        ) from failure


def _validate(config: dict[str, Any], asked: DpathValidator | PredicateValidator) -> None:
    if isinstance(asked, PredicateValidator):
        what = "What the manifest makes of the configuration"
        told = asked.value
        if is_template(told):
            told = evaluated(told, {"config": config, "parameters": {}})
        values = [told]
    else:
        path = path_of(asked.field_path, {}, {})
        what = f"The configuration's {'.'.join(map(str, path))}"
        values = [place.value for place in places(config, path)]
    for value in values:
        if misfit := _misfit(value, asked.validation_strategy.base_schema):
            place, words = misfit
            where = f" at {place}" if place else ""
            raise ConfigurationError(
                f"{what} is not as the manifest wants it{where}: {words}.",
                hint="The manifest's `spec` says what each field of the configuration is.",
            )


def _misfit(value: Any, schema: Mapping[str, Any]) -> Misfit | None:
    if isinstance(value, str):
        # A text has to be JSON, of which the schema speaks.
        try:
            value = json.loads(value)
        except ValueError:
            return "", "it is a text, and no JSON"
    return misfit_of(value, schema)


def expect_complete(config: Mapping[str, Any], manifest: Manifest, where: str) -> None:
    """Refuse a configuration that lacks what the specification requires.

    Args:
        config: what the user has set.
        manifest: the manifest.
        where: the place of the configuration, as the error says it.

    Raises:
        ConfigurationError: it lacks something.
    """
    if missing := missing_in(config, manifest):
        raise ConfigurationError(
            f"{where} lacks {', '.join(missing)}.",
            hint="The manifest's `spec` says what each of them is.",
        )


def missing_in(config: Mapping[str, Any], manifest: Manifest) -> list[str]:
    """The keys that the specification requires, and the configuration does not get by the rules."""
    required = manifest.specification.get("required")
    missing = [
        str(name)
        for name in (required if isinstance(required, list) else [])
        if config.get(name) is None
    ]
    if missing:
        # What is missing tells more than rules that fail for it, or make an empty text of it.
        with suppress(ConfigurationError):
            ready = made_ready(config, manifest)
            return [name for name in missing if ready.get(name) is None or ready[name] == ""]
    return missing


def masking(config: Mapping[str, Any], manifest: Manifest) -> Callable[[str], str]:
    """What hides the configuration's secrets in a text.

    Args:
        config: what the user has set.
        manifest: its specification says by `airbyte_secret` what is secret.
    """
    told = [*secrets_in(config, manifest.specification)]
    with suppress(ConfigurationError):
        # The rules may bring a secret to where the specification knows it.
        told += secrets_in(made_ready(config, manifest), manifest.specification)
    spelled = {form(text) for text in told for form in (str, quote, quote_plus)}
    found = {text for text in spelled if len(text) >= _SHORTEST}
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
