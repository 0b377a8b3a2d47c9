"""Dynamic and conditional streams, which depend on the configuration or on API responses."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import yaml

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.field_paths import (
    MISSING,
    only_value,
    path_of,
    places,
    put,
)
from chronolake.source.declarative.manifests.manifest import Gathering, mapped
from chronolake.source.declarative.manifests.yaml_source import inherited
from chronolake.source.declarative.models.streams import (
    ConfigComponentsResolver,
    DeclarativeStream,
    HttpComponentsResolver,
    InlineSchemaLoader,
    SimpleRetriever,
)
from chronolake.source.declarative.records.transformations import KINDS
from chronolake.source.declarative.retrieval.schema_loaders import asked_once
from chronolake.source.declarative.stream_reader import StreamReader
from chronolake.source.declarative.templating.templates import as_truth, evaluated, is_template

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from chronolake.source.declarative.api import Api
    from chronolake.source.declarative.manifests.manifest import Dynamic, Manifest
    from chronolake.source.declarative.manifests.yaml_source import Mapped
    from chronolake.source.declarative.models.streams import (
        ComponentMappingDefinition,
        ComponentsResolver,
    )

#: The template variables of one generated stream, by name.
_Variables = dict[str, Any]
_TIME: Final = "tag:yaml.org,2002:timestamp"


class _Values(yaml.SafeLoader):
    """A YAML loader for the output of templates, which keeps times as strings."""


_Values.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in found if tag != _TIME]
    for letter, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def expanded(manifest: Manifest, api: Api) -> Manifest:
    """Return a manifest with its conditional streams and the streams generated from templates.

    The streams depend on the API's configuration and, for some resolvers, on its responses. A
    problem in one of these streams does not keep the others from being read.

    Raises:
        SourceError: the API does not return the streams.
        ConfigurationError: a template cannot be evaluated, or has no place for a value.
    """
    found = Gathering(manifest.file, allow_components=manifest.allow_components)
    found.streams.update(manifest.streams)
    for one in manifest.conditional:
        if as_truth(one.condition, {"config": api.config, "parameters": {}}):
            for described, spot in one.streams:
                found.add(described, spot)
    generated: dict[str, tuple[str, ...]] = {}
    for dynamic in manifest.dynamic:
        known = len(found.streams)
        for described in _made(dynamic, api):
            found.add(described, dynamic.spot)
        made = tuple(found.streams)[known:]
        generated[dynamic.name] = generated.get(dynamic.name, ()) + made
    # A problem of a template is reported once, not for each stream that is generated from it.
    reported = {(problem.path, problem.message) for problem in manifest.problems}
    new = (problem for problem in found.problems if (problem.path, problem.message) not in reported)
    problems = (*manifest.problems, *dict.fromkeys(new))
    return replace(
        manifest,
        streams=found.streams,
        problems=problems,
        conditional=(),
        dynamic=(),
        generated=generated,
    )


def _made(dynamic: Dynamic, api: Api) -> Iterator[Mapped]:
    """Yield the streams generated from a template, with inherited values filled in."""
    definition = dynamic.definition
    resolver = definition.components_resolver
    for reported in _told(resolver, dynamic.definition.name, api):
        stream = deepcopy(dynamic.template)
        variables = {"config": api.config, "stream_template_config": dynamic.template, **reported}
        for mapping in resolver.components_mapping:
            if mapping.condition and not as_truth(
                mapping.condition, {**variables, "parameters": resolver.parameters}
            ):
                continue
            _put(
                stream,
                mapping,
                {**variables, "parameters": mapping.parameters},
                is_read=not isinstance(resolver, HttpComponentsResolver),
            )
        if isinstance(resolver, HttpComponentsResolver):
            _mark_found(stream, _bases_in(dynamic.template))
        yield inherited(stream, is_outer_first=definition.use_parent_parameters)


def _bases_in(value: Any) -> frozenset[Any]:
    """Return the URLs and base URLs of all requesters in a manifest's template."""
    return frozenset(
        str(one[key]) for one in _requesters_in(value) for key in ("url_base", "url") if key in one
    )


def _requesters_in(value: Any) -> Iterator[dict[str, Any]]:
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            if one.get("type") == "HttpRequester":
                yield one
            left.extend(one.values())
        elif isinstance(one, list):
            left.extend(one)


def _texts_in(value: Any) -> Iterator[str]:
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            left += one
        elif isinstance(one, str):
            yield one


def _mark_found(stream: Any, known: frozenset[Any]) -> None:
    """Mark the requesters whose URL comes from an API response instead of the manifest."""
    for one in _requesters_in(stream):
        if any(key in one and str(one[key]) not in known for key in ("url_base", "url")):
            one["is_from_api"] = True


def _told(resolver: ComponentsResolver, name: str, api: Api) -> Iterator[_Variables]:
    """Yield the template variables of each stream to generate."""
    if isinstance(resolver, HttpComponentsResolver):
        yield from _reported_by_api(resolver, name, api)
    elif isinstance(resolver, ConfigComponentsResolver):
        for values in _listed_in_config(resolver, api.config):
            yield {"components_values": values}
    else:
        for values in resolver.stream_parameters.list_of_parameters_for_stream:
            yield {"components_values": values}


def _reported_by_api(resolver: HttpComponentsResolver, name: str, api: Api) -> Iterator[_Variables]:
    retriever = resolver.retriever
    reader = StreamReader(
        DeclarativeStream(
            type="DeclarativeStream",
            name=name,
            retriever=asked_once(retriever)
            if isinstance(retriever, SimpleRetriever)
            else retriever,
            schema_loader=(InlineSchemaLoader(type="InlineSchemaLoader"),),
        ),
        api,
    )
    for work in reader.work():
        for page in reader.slices.pages(work):
            for record in page.records:
                yield {"components_values": record, "stream_slice": work.slice}


def _listed_in_config(
    resolver: ConfigComponentsResolver, config: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the items of a list in the configuration, or each combination of several lists."""
    lists = []
    for one in resolver.stream_config:
        found = only_value(dict(config), path_of(one.configs_pointer, config, one.parameters))
        items = [] if found is MISSING else list(found) if isinstance(found, list) else [found]
        lists.append(list(enumerate([*items, *(one.default_values or ())])))
    for combination in product(*lists):
        yield _united(combination)


def _united(combination: Iterable[tuple[int, Any]]) -> dict[str, Any]:
    """Merge a combination into one object; other items are stored as `source_config_N`."""
    values: dict[str, Any] = {}
    for number, (at, item) in enumerate(combination):
        if isinstance(item, dict):
            values.update(item)
        else:
            values.setdefault(f"source_config_{number}", (at, item))
    return values


def _put(
    stream: Mapped, mapping: ComponentMappingDefinition, variables: _Variables, *, is_read: bool
) -> None:
    """Set a mapping's value in a stream, in place.

    If `is_read`, a string that is YAML is parsed.
    """
    kinds = (KINDS[mapping.value_type],) if mapping.value_type else ()
    value = evaluated(mapping.value, variables, default=mapping.value, kinds=kinds)
    if not is_read and all(
        any(map(is_template, _texts_in(one))) for one in (value, variables["components_values"])
    ):
        raise SourceError(
            "The API returned a template for a stream, which could read the "
            "configuration's secrets.",
            hint="Do not read this stream, or use another version of the manifest.",
        )
    parts = [evaluated(part, variables, default=part) for part in mapping.field_path]
    path = [part if isinstance(part, str | int | float) else None for part in parts]
    if is_read and isinstance(value, str) and mapping.value_type != "string":
        value = _read(value)
    there = tuple(places(stream, path))
    for place in there:
        place.holder[place.key] = mapped(value)
    if there or not (mapping.create_or_update and is_read and value):
        return
    try:
        put(stream, [str(part) for part in path], mapped(value))
    except SourceError as failure:
        raise ConfigurationError(
            f"A value on the path {'.'.join(map(str, path))} in a stream's template "
            "is not an object.",
            hint="Correct the field_path in the manifest's components_mapping.",
        ) from failure


def _read(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_Values)  # noqa: S506 - it is a SafeLoader
    except (yaml.YAMLError, ValueError):
        return text
