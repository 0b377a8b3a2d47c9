"""Dynamic and conditional streams, which depend on the configuration or on API responses."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any, Final

import yaml

from chronolake.errors import ConfigurationError, SourceError
from chronolake.source.declarative.field_paths import (
    evaluate_path,
    find_places,
    get_only_value,
    put,
)
from chronolake.source.declarative.manifests.manifest import StreamCollector, to_mapped
from chronolake.source.declarative.manifests.yaml_source import apply_inheritance
from chronolake.source.declarative.models.streams import (
    ConfigComponentsResolver,
    DeclarativeStream,
    HttpComponentsResolver,
    InlineSchemaLoader,
    SimpleRetriever,
)
from chronolake.source.declarative.records.transformations import KINDS
from chronolake.source.declarative.retrieval.schema_loaders import with_response_cache
from chronolake.source.declarative.stream_reader import StreamReader
from chronolake.source.declarative.templating.templates import as_truth, evaluate, is_template
from chronolake.source.records.lookup import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from chronolake.source.declarative.api import Api
    from chronolake.source.declarative.manifests.manifest import Dynamic, Manifest
    from chronolake.source.declarative.manifests.yaml_source import YamlMapping
    from chronolake.source.declarative.models.streams import (
        ComponentMappingDefinition,
        ComponentsResolver,
    )

#: The template variables of one generated stream, by name.
_Variables = dict[str, Any]
_TIME: Final = "tag:yaml.org,2002:timestamp"


class _TemplateLoader(yaml.SafeLoader):
    """A YAML loader for the output of templates, which keeps times as strings."""


_TemplateLoader.yaml_implicit_resolvers = {
    letter: [(tag, pattern) for tag, pattern in found if tag != _TIME]
    for letter, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def expand(manifest: Manifest, api: Api) -> Manifest:
    """Return a manifest with its conditional streams and the streams generated from templates.

    The streams depend on the API's configuration and, for some resolvers, on its responses. A
    problem in one of these streams does not keep the others from being read.

    Raises:
        SourceError: the API does not return the streams.
        ConfigurationError: a template cannot be evaluated, or has no place for a value.
    """
    found = StreamCollector(manifest.file, allow_components=manifest.allow_components)
    found.streams.update(manifest.streams)
    for conditional in manifest.conditional:
        if as_truth(conditional.condition, {"config": api.config, "parameters": {}}):
            for described, spot in conditional.streams:
                found.add(described, spot)
    generated: dict[str, tuple[str, ...]] = {}
    for dynamic in manifest.dynamic:
        known = len(found.streams)
        for described in _generate_streams(dynamic, api):
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


def _generate_streams(dynamic: Dynamic, api: Api) -> Iterator[YamlMapping]:
    """Yield the streams generated from a template, with inherited values filled in."""
    definition = dynamic.definition
    resolver = definition.components_resolver
    for reported in _variables_of(resolver, dynamic.definition.name, api):
        stream = deepcopy(dynamic.template)
        variables = {"config": api.config, "stream_template_config": dynamic.template, **reported}
        for mapping in resolver.components_mapping:
            if mapping.condition and not as_truth(
                mapping.condition, {**variables, "parameters": resolver.parameters}
            ):
                continue
            _set_value(
                stream,
                mapping,
                {**variables, "parameters": mapping.parameters},
                is_read=not isinstance(resolver, HttpComponentsResolver),
            )
        if isinstance(resolver, HttpComponentsResolver):
            _mark_api_urls(stream, _urls_in(dynamic.template))
        yield apply_inheritance(stream, is_outer_first=definition.use_parent_parameters)


def _urls_in(value: Any) -> frozenset[Any]:
    """Return the URLs and base URLs of all requesters in a manifest's template."""
    return frozenset(
        str(requester[key])
        for requester in _requesters_in(value)
        for key in ("url_base", "url")
        if key in requester
    )


def _requesters_in(value: Any) -> Iterator[dict[str, Any]]:
    left = [value]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            if node.get("type") == "HttpRequester":
                yield node
            left.extend(node.values())
        elif isinstance(node, list):
            left.extend(node)


def _texts_in(value: Any) -> Iterator[str]:
    left = [value]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            left += [*node.keys(), *node.values()]
        elif isinstance(node, list):
            left += node
        elif isinstance(node, str):
            yield node


def _mark_api_urls(stream: Any, known: frozenset[Any]) -> None:
    """Mark the requesters whose URL comes from an API response instead of the manifest."""
    for requester in _requesters_in(stream):
        if any(
            key in requester and str(requester[key]) not in known for key in ("url_base", "url")
        ):
            requester["is_from_api"] = True


def _variables_of(resolver: ComponentsResolver, name: str, api: Api) -> Iterator[_Variables]:
    """Yield the template variables of each stream to generate."""
    if isinstance(resolver, HttpComponentsResolver):
        yield from _read_variables(resolver, name, api)
    elif isinstance(resolver, ConfigComponentsResolver):
        for values in _combine_config_lists(resolver, api.config):
            yield {"components_values": values}
    else:
        for values in resolver.stream_parameters.list_of_parameters_for_stream:
            yield {"components_values": values}


def _read_variables(resolver: HttpComponentsResolver, name: str, api: Api) -> Iterator[_Variables]:
    retriever = resolver.retriever
    reader = StreamReader(
        DeclarativeStream(
            type="DeclarativeStream",
            name=name,
            retriever=with_response_cache(retriever)
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


def _combine_config_lists(
    resolver: ConfigComponentsResolver, config: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the items of a list in the configuration, or each combination of several lists."""
    lists = []
    for stream_config in resolver.stream_config:
        found = get_only_value(
            dict(config),
            evaluate_path(stream_config.configs_pointer, config, stream_config.parameters),
        )
        items = [] if found is MISSING else list(found) if isinstance(found, list) else [found]
        lists.append(list(enumerate([*items, *(stream_config.default_values or ())])))
    for combination in product(*lists):
        yield _merge_items(combination)


def _merge_items(combination: Iterable[tuple[int, Any]]) -> dict[str, Any]:
    """Merge a combination into one object; other items are stored as `source_config_N`."""
    values: dict[str, Any] = {}
    for number, (at, item) in enumerate(combination):
        if isinstance(item, dict):
            values.update(item)
        else:
            values.setdefault(f"source_config_{number}", (at, item))
    return values


def _set_value(
    stream: YamlMapping,
    mapping: ComponentMappingDefinition,
    variables: _Variables,
    *,
    is_read: bool,
) -> None:
    """Set a mapping's value in a stream, in place.

    If `is_read`, a string that is YAML is parsed.
    """
    kinds = (KINDS[mapping.value_type],) if mapping.value_type else ()
    value = evaluate(mapping.value, variables, default=mapping.value, kinds=kinds)
    if not is_read and all(
        any(map(is_template, _texts_in(source)))
        for source in (value, variables["components_values"])
    ):
        raise SourceError(
            "The API returned a template for a stream, which could read the "
            "configuration's secrets.",
            hint="Do not read this stream, or use another version of the manifest.",
        )
    parts = [evaluate(part, variables, default=part) for part in mapping.field_path]
    path = [part if isinstance(part, str | int | float) else None for part in parts]
    if is_read and isinstance(value, str) and mapping.value_type != "string":
        value = _parse_yaml(value)
    there = tuple(find_places(stream, path))
    for place in there:
        place.holder[place.key] = to_mapped(value)
    if there or not (mapping.create_or_update and is_read and value):
        return
    try:
        put(stream, [str(part) for part in path], to_mapped(value))
    except SourceError as failure:
        raise ConfigurationError(
            f"A value on the path {'.'.join(map(str, path))} in a stream's template "
            "is not an object.",
            hint="Correct the field_path in the manifest's components_mapping.",
        ) from failure


def _parse_yaml(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_TemplateLoader)  # noqa: S506 - it is a SafeLoader
    except (yaml.YAMLError, ValueError):
        return text
