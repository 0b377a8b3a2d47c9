"""YAML with line numbers, resolved references, default types and inherited `$parameters`.

The rules are those of low-code connectors (`specs/airbyte-declarative.md`): a component inherits
the parameters of all outer components, and its own parameters take precedence. Each parameter
becomes a key of the component unless the component has a key with this name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import yaml

from chronolake.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


_REFERENCE: Final = "$ref"
#: The maximum number of nodes in a manifest after references are resolved.
_MOST_NODES: Final = 400_000
_DEEPEST: Final = 100
#: The nesting that may overflow the stack of the parser that creates nodes.
_OVERFLOWS: Final = 10_000
#: Keys with values of a configuration, which may look like references.
_LITERAL: Final = ("config_overrides",)


@dataclass(frozen=True)
class UnresolvedReference:
    """A reference that cannot be resolved; it takes the place of the value.

    Attributes:
        line: the line of the reference, starting at 1, or None if it is unknown.
        path: the path of its keys.
        message: the problem.
        hint: how to correct it.
    """

    line: int | None
    path: str
    message: str
    hint: str


class YamlMapping(dict[str, Any]):
    """A mapping with the line numbers of its keys, starting at 1.

    A mapping whose `$ref` cannot be resolved is incomplete: its other keys are unknown.
    """

    def __init__(
        self,
        entries: Iterable[tuple[str, Any]] = (),
        lines: dict[str, int] | None = None,
        incomplete: UnresolvedReference | None = None,
    ) -> None:
        super().__init__(entries)
        self.lines: dict[str, int] = lines if lines is not None else {}
        self.incomplete = incomplete


class YamlList(list[Any]):
    """A list with the line numbers of its items."""

    def __init__(self, items: Iterable[Any] = (), lines: list[int] | None = None) -> None:
        super().__init__(items)
        self.lines: list[int] = lines if lines is not None else []


def read(path: Path) -> YamlMapping:
    """Read a YAML or JSON file that contains a mapping.

    Raises:
        ConfigurationError: the file cannot be read, is not valid YAML, or does not contain a
            mapping.
    """
    loader_type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = path.read_text(encoding="utf-8")
        _raise_if_too_deep(text, loader_type)
        loader = loader_type(text)
        try:
            node = loader.get_single_node()
            found = None if node is None else _with_lines(loader, node, {}, 0)
        finally:
            loader.dispose()
    except (OSError, UnicodeDecodeError) as failure:
        reason = getattr(failure, "strerror", None) or "it is not UTF-8 text"
        raise ConfigurationError(f"{path} cannot be read: {reason}.") from failure
    except yaml.MarkedYAMLError as failure:
        mark = failure.problem_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigurationError(f"{path}{line} is not valid YAML: {failure.problem}.") from failure
    except yaml.YAMLError as failure:
        raise ConfigurationError(f"{path} is not valid YAML.") from failure
    if not isinstance(found, YamlMapping):
        raise ConfigurationError(f"{path} must contain a mapping.")
    return found


def _raise_if_too_deep(text: str, loader_type: Any) -> None:
    """Raise MarkedYAMLError if a text is nested so deeply that parsing would overflow the stack."""
    if max(text.count("["), text.count("{"), text.count("- "), text.count(":")) < _OVERFLOWS:
        return
    depth = 0
    for event in yaml.parse(text, loader_type):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            mark: Any = event.start_mark
            raise yaml.MarkedYAMLError(problem="it is nested too deeply", problem_mark=mark)


def _with_lines(loader: Any, node: yaml.Node, known: dict[int, Any], depth: int) -> Any:
    if depth > _DEEPEST:
        raise yaml.MarkedYAMLError(problem="it is nested too deeply", problem_mark=node.start_mark)
    if id(node) in known:
        return known[id(node)]
    found: Any
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)
        found = YamlMapping()
        for key_node, value_node in node.value:
            key = str(loader.construct_object(key_node, deep=True))
            found[key] = _with_lines(loader, value_node, known, depth + 1)
            found.lines[key] = key_node.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        found = YamlList(
            (_with_lines(loader, item, known, depth + 1) for item in node.value),
            [item.start_mark.line + 1 for item in node.value],
        )
    else:
        found = loader.construct_object(node, deep=True)
    known[id(node)] = found
    return found


def resolve(whole: YamlMapping, *, file: str) -> tuple[YamlMapping, list[UnresolvedReference]]:
    """Return a copy with all references resolved, and the references that cannot be resolved.

    `#/a/b` is the value of `b` in `a`. Keys may contain slashes; the longest existing key is used.
    Keys next to a `$ref` override keys of the referenced value.

    Raises:
        ConfigurationError: the result has too many nodes.
    """
    resolution = _Resolution(whole, file)
    found: YamlMapping = resolution.of(whole, ())
    return found, sorted(resolution.unknown.values(), key=lambda unresolved: unresolved.line or 0)


#: The keys and indexes of a value.
_Keys = tuple[str | int, ...]


class _Resolution:
    """The state of one pass that resolves references.

    Attributes:
        unknown: the references that cannot be resolved: one entry for each location, and one for
            each cycle.
    """

    def __init__(self, whole: YamlMapping, file: str) -> None:
        self.whole = whole
        self.file = file
        self.nodes = 0
        self.open: list[str] = []
        self.unknown: dict[object, UnresolvedReference] = {}

    def of(self, node: Any, keys: _Keys, line: int | None = None) -> Any:
        self.nodes += 1
        if self.nodes > _MOST_NODES or len(self.open) > _DEEPEST:
            raise ConfigurationError(
                f"{self.file} is too large with its references resolved.",
                hint="Refer to smaller parts: each reference copies everything that it refers to.",
            )
        if isinstance(node, YamlMapping):
            return self._resolve_mapping(node, keys)
        if isinstance(node, YamlList):
            lines = enumerate(zip(node, node.lines, strict=True))
            items = (self.of(item, (*keys, number), at) for number, (item, at) in lines)
            return YamlList(items, list(node.lines))
        if isinstance(node, str) and node.startswith("#/"):
            return self._resolve_reference(node, keys, line)
        return node

    def _resolve_mapping(self, node: YamlMapping, keys: _Keys) -> Any:
        own = YamlMapping(
            (
                (
                    key,
                    value if key in _LITERAL else self.of(value, (*keys, key), node.lines.get(key)),
                )
                for key, value in node.items()
                if key != _REFERENCE
            ),
            {key: line for key, line in node.lines.items() if key != _REFERENCE},
        )
        if _REFERENCE not in node:
            return own
        base = self.of(node[_REFERENCE], (*keys, _REFERENCE), node.lines.get(_REFERENCE))
        if isinstance(base, UnresolvedReference):
            own.incomplete = base
            return own
        if not isinstance(base, YamlMapping):
            return base
        return YamlMapping({**base, **own}.items(), {**base.lines, **own.lines}, base.incomplete)

    def _resolve_reference(self, reference: str, keys: _Keys, line: int | None) -> Any:
        if reference in self.open:
            circle = frozenset(self.open[self.open.index(reference) :])
            message = f"the reference {reference} refers to itself"
            return self._note_unresolved(
                circle, keys, message, "Replace one of the references by its value."
            )
        try:
            target, place = _find(self.whole, reference.removeprefix("#/"))
        except (KeyError, IndexError, TypeError, ValueError):
            message = f"the reference {reference} does not exist"
            hint = "Write references as #/definitions/name, from the top of the file."
            return self._note_unresolved(keys, keys, message, hint)
        self.open.append(reference)
        found = self.of(target, place, line)
        self.open.pop()
        return found

    def _note_unresolved(
        self, what: object, keys: _Keys, message: str, hint: str
    ) -> UnresolvedReference:
        return self.unknown.setdefault(
            what, UnresolvedReference(*line_of(self.whole, keys), message, hint)
        )


def _find(node: Any, path: str) -> tuple[Any, _Keys]:
    keys: _Keys = ()
    while path:
        if isinstance(node, YamlMapping) and path in node:
            return node[path], (*keys, path)
        head, _, path = path.partition("/")
        key = int(head) if isinstance(node, YamlList) else head
        keys, node = (*keys, key), node[key]
    return node, keys


def find_unresolved(node: Any) -> Iterator[UnresolvedReference]:
    """Yield the unresolved references in a value."""
    if isinstance(node, UnresolvedReference):
        yield node
    elif isinstance(node, dict):
        if isinstance(node, YamlMapping) and node.incomplete is not None:
            yield node.incomplete
        for value in node.values():
            yield from find_unresolved(value)
    elif isinstance(node, list):
        for value in node:
            yield from find_unresolved(value)


def is_unresolved(node: Any) -> bool:
    """Return whether a value, or a part that it may need, is an unresolved reference."""
    return isinstance(node, UnresolvedReference) or (
        isinstance(node, YamlMapping) and node.incomplete is not None
    )


def line_of(node: Any, path: Iterable[str | int]) -> tuple[int | None, str]:
    """Return the line of a value, given its keys and indexes, and its path as a string.

    Parts of the path that do not exist (union tags, missing keys) do not change the line.
    """
    line: int | None = None
    spelled = ""
    for part in path:
        if isinstance(part, int) and isinstance(node, list) and part < len(node):
            line = node.lines[part] if isinstance(node, YamlList) else line
            spelled += f"[{part}]"
            node = node[part]
        elif isinstance(node, dict) and part in node:
            line = node.lines.get(str(part), line) if isinstance(node, YamlMapping) else line
            spelled += f".{part}"
            node = node[part]
        elif re.fullmatch(r"[a-z_$]+", str(part)):
            spelled += f".{part}"
    return line, spelled.lstrip(".")


def value_of(node: Any, path: Iterable[str | int]) -> Any:
    """Return the value at the keys and indexes; parts that do not exist are skipped."""
    for part in path:
        is_item = isinstance(node, list) and isinstance(part, int) and part < len(node)
        if is_item or (isinstance(node, dict) and part in node):
            node = node[part]
    return node


PARAMETERS: Final = "$parameters"

#: The type of a component without a `type`, by the place where it is used.
KINDS: Final = {
    "CompositeErrorHandler.error_handlers": "DefaultErrorHandler",
    "CursorPagination.decoder": "JsonDecoder",
    "DatetimeBasedCursor.end_datetime": "MinMaxDatetime",
    "DatetimeBasedCursor.end_time_option": "RequestOption",
    "DatetimeBasedCursor.start_datetime": "MinMaxDatetime",
    "DatetimeBasedCursor.start_time_option": "RequestOption",
    "DeclarativeSource.check": "CheckStream",
    "DeclarativeSource.spec": "Spec",
    "DeclarativeSource.streams": "DeclarativeStream",
    "DeclarativeStream.retriever": "SimpleRetriever",
    "DeclarativeStream.schema_loader": "JsonFileSchemaLoader",
    "DynamicDeclarativeStream.stream_template": "DeclarativeStream",
    "DynamicDeclarativeStream.components_resolver": "ConfigComponentResolver",
    "HttpComponentsResolver.retriever": "SimpleRetriever",
    "HttpComponentsResolver.components_mapping": "ComponentMappingDefinition",
    "ConfigComponentsResolver.stream_config": "StreamConfig",
    "ConfigComponentsResolver.components_mapping": "ComponentMappingDefinition",
    "DefaultErrorHandler.response_filters": "HttpResponseFilter",
    "DefaultPaginator.decoder": "JsonDecoder",
    "DefaultPaginator.page_size_option": "RequestOption",
    "DpathExtractor.decoder": "JsonDecoder",
    "DpathExtractor.record_expander": "RecordExpander",
    "HttpRequester.error_handler": "DefaultErrorHandler",
    "ListPartitionRouter.request_option": "RequestOption",
    "ParentStreamConfig.request_option": "RequestOption",
    "ParentStreamConfig.stream": "DeclarativeStream",
    "RecordExpander.parent_fields": "ParentFieldPath",
    "RecordSelector.extractor": "DpathExtractor",
    "RecordSelector.record_filter": "RecordFilter",
    "SimpleRetriever.paginator": "NoPagination",
    "SimpleRetriever.record_selector": "RecordSelector",
    "SimpleRetriever.requester": "HttpRequester",
    "SubstreamPartitionRouter.parent_stream_configs": "ParentStreamConfig",
    "AddFields.fields": "AddedFieldDefinition",
    "CustomPartitionRouter.parent_stream_configs": "ParentStreamConfig",
    "DynamicSchemaLoader.retriever": "SimpleRetriever",
    "SchemaTypeIdentifier.types_map": "TypesMap",
}
#: The same for components with a `class_name`.
_CUSTOM_KINDS: Final = {
    "CompositeErrorHandler.backoff_strategies": "CustomBackoffStrategy",
    "DeclarativeStream.retriever": "CustomRetriever",
    "DeclarativeStream.transformations": "CustomTransformation",
    "DefaultErrorHandler.backoff_strategies": "CustomBackoffStrategy",
    "DefaultPaginator.pagination_strategy": "CustomPaginationStrategy",
    "HttpRequester.authenticator": "CustomAuthenticator",
    "HttpRequester.error_handler": "CustomErrorHandler",
    "RecordSelector.extractor": "CustomRecordExtractor",
    "SimpleRetriever.partition_router": "CustomPartitionRouter",
}


def apply_inheritance(
    component: YamlMapping,
    place: str = "",
    given: dict[str, Any] | None = None,
    *,
    is_outer_first: bool = False,
) -> YamlMapping:
    """Return a copy of a component with default types and parameters, at every level.

    Args:
        component: the component, with references resolved.
        place: its parent's type and its key, for example `SimpleRetriever.paginator`.
        given: the parameters of all outer components.
        is_outer_first: whether parameters of outer components override the component's own.
    """
    found = YamlMapping(component.items(), dict(component.lines), component.incomplete)
    if "type" not in found:
        kinds = _CUSTOM_KINDS if "class_name" in found else KINDS
        if place in kinds:
            found["type"] = kinds[place]
    around, own = given or {}, _pop_parameters(found)
    parameters = {**own, **around} if is_outer_first else {**around, **own}
    kind = found.get("type")
    if kind == "object" or isinstance(kind, list | dict):
        # The `type` of a JSON schema has another meaning.
        return found
    if kind is None:
        for name, value in found.items():
            if isinstance(value, YamlMapping) and value.get("type"):
                found[name] = apply_inheritance(
                    value, place, parameters, is_outer_first=is_outer_first
                )
        return found
    for name, value in parameters.items():
        found[name] = found.get(name) or value
    for name, value in found.items():
        # A parameter is not passed to the value that has its name.
        handed = {key: parameter for key, parameter in parameters.items() if key != name}
        found[name] = _apply_within(value, f"{kind}.{name}", handed, is_outer_first=is_outer_first)
    if parameters and PARAMETERS not in found:
        found[PARAMETERS] = parameters
    return found


def _pop_parameters(component: YamlMapping) -> dict[str, Any]:
    """Remove and return a component's parameters; invalid ones remain in place to be reported."""
    reported = component.get(PARAMETERS) or {}
    if not isinstance(reported, dict):
        return {}
    component.pop(PARAMETERS, None)
    return reported


def _apply_within(value: Any, place: str, given: dict[str, Any], *, is_outer_first: bool) -> Any:
    """Apply inheritance to the value of a key: a component, a list of them, or a plain value."""
    if isinstance(value, YamlMapping):
        return apply_inheritance(value, place, given, is_outer_first=is_outer_first)
    if not isinstance(value, YamlList):
        return value
    items = (
        apply_inheritance(item, place, given, is_outer_first=is_outer_first)
        if isinstance(item, YamlMapping)
        else item
        for item in value
    )
    return YamlList(items, value.lines)
