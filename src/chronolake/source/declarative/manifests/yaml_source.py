"""YAML with line numbers, references resolved, $parameters inherited.

YAML whose mappings and lists know the lines they stand in, and references resolved in it.

What components have without saying so: kinds that their places give, and `$parameters`.

The rules are those of low-code connectors (`specs/airbyte-declarative.md`): a component gets the
parameters of all around it, its own over theirs, and each of them is a key of its own where it has
none of that name.
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
#: So many nodes a manifest may have with all references in their places.
_MOST_NODES: Final = 400_000
_DEEPEST: Final = 100
#: So many levels may overflow the stack of what makes nodes.
_OVERFLOWS: Final = 10_000
#: These hold values of a configuration, which may look like references.
_LITERAL: Final = ("config_overrides",)


@dataclass(frozen=True)
class Unknown:
    """What stands where a reference leads nowhere.

    Attributes:
        line: where the reference stands, the first line being 1; None if that is not known.
        path: the keys that lead to it.
        message: what is wrong with it.
        hint: what to do about it.
    """

    line: int | None
    path: str
    message: str
    hint: str


class Mapped(dict[str, Any]):
    """A mapping that knows the lines of its keys, the first of the file being 1.

    One whose `$ref` leads nowhere is incomplete: nobody knows what else is in it.
    """

    def __init__(
        self,
        entries: Iterable[tuple[str, Any]] = (),
        lines: dict[str, int] | None = None,
        incomplete: Unknown | None = None,
    ) -> None:
        super().__init__(entries)
        self.lines: dict[str, int] = lines if lines is not None else {}
        self.incomplete = incomplete


class Listed(list[Any]):
    """A list that knows the lines of its items."""

    def __init__(self, items: Iterable[Any] = (), lines: list[int] | None = None) -> None:
        super().__init__(items)
        self.lines: list[int] = lines if lines is not None else []


def read(path: Path) -> Mapped:
    """The mapping that a YAML or JSON file holds.

    Raises:
        ConfigurationError: the file cannot be read, is no YAML, or holds something else.
    """
    loader_type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        text = path.read_text(encoding="utf-8")
        _expect_shallow(text, loader_type)
        loader = loader_type(text)
        try:
            node = loader.get_single_node()
            found = None if node is None else _located(loader, node, {}, 0)
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
    if not isinstance(found, Mapped):
        raise ConfigurationError(f"{path} must hold keys and values.")
    return found


def _expect_shallow(text: str, loader_type: Any) -> None:
    """Refuse a text that is nested so deeply that its nodes would overflow the stack."""
    if max(text.count("["), text.count("{"), text.count("- "), text.count(":")) < _OVERFLOWS:
        return
    depth = 0
    for event in yaml.parse(text, loader_type):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            mark: Any = event.start_mark
            raise yaml.MarkedYAMLError(problem="it is nested too deeply", problem_mark=mark)


def _located(loader: Any, node: yaml.Node, known: dict[int, Any], depth: int) -> Any:
    if depth > _DEEPEST:
        raise yaml.MarkedYAMLError(problem="it is nested too deeply", problem_mark=node.start_mark)
    if id(node) in known:
        return known[id(node)]
    found: Any
    if isinstance(node, yaml.MappingNode):
        loader.flatten_mapping(node)
        found = Mapped()
        for key_node, value_node in node.value:
            key = str(loader.construct_object(key_node, deep=True))
            found[key] = _located(loader, value_node, known, depth + 1)
            found.lines[key] = key_node.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        found = Listed(
            (_located(loader, item, known, depth + 1) for item in node.value),
            [item.start_mark.line + 1 for item in node.value],
        )
    else:
        found = loader.construct_object(node, deep=True)
    known[id(node)] = found
    return found


def resolved(whole: Mapped, *, file: str) -> tuple[Mapped, list[Unknown]]:
    """A copy in which every reference stands for what it refers to; and those that lead nowhere.

    `#/a/b` is the value of `b` in `a`; a key may have slashes in its name, and the longest name
    that is there counts. What stands beside a `$ref` goes over what the reference has.

    Raises:
        ConfigurationError: it has too many parts then.
    """
    resolution = _Resolution(whole, file)
    found: Mapped = resolution.of(whole, ())
    return found, sorted(resolution.unknown.values(), key=lambda one: one.line or 0)


#: The keys and numbers that lead to a value.
_Keys = tuple[str | int, ...]


class _Resolution:
    """References in their places.

    Attributes:
        unknown: those that lead nowhere, each once, wherever it is used; and one for each circle.
    """

    def __init__(self, whole: Mapped, file: str) -> None:
        self.whole = whole
        self.file = file
        self.nodes = 0
        self.open: list[str] = []
        self.unknown: dict[object, Unknown] = {}

    def of(self, node: Any, keys: _Keys, line: int | None = None) -> Any:
        self.nodes += 1
        if self.nodes > _MOST_NODES or len(self.open) > _DEEPEST:
            raise ConfigurationError(
                f"{self.file} is too large with its references resolved.",
                hint="Let references lead to less: each stands for all that it refers to.",
            )
        if isinstance(node, Mapped):
            return self._mapping(node, keys)
        if isinstance(node, Listed):
            lines = enumerate(zip(node, node.lines, strict=True))
            items = (self.of(item, (*keys, number), at) for number, (item, at) in lines)
            return Listed(items, list(node.lines))
        if isinstance(node, str) and node.startswith("#/"):
            return self._referred(node, keys, line)
        return node

    def _mapping(self, node: Mapped, keys: _Keys) -> Any:
        own = Mapped(
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
        if isinstance(base, Unknown):
            own.incomplete = base
            return own
        if not isinstance(base, Mapped):
            return base
        return Mapped({**base, **own}.items(), {**base.lines, **own.lines}, base.incomplete)

    def _referred(self, reference: str, keys: _Keys, line: int | None) -> Any:
        if reference in self.open:
            circle = frozenset(self.open[self.open.index(reference) :])
            message = f"the reference {reference} refers to itself"
            return self._nothing(circle, keys, message, "Write out what one of them stands for.")
        try:
            target, place = _at(self.whole, reference.removeprefix("#/"))
        except (KeyError, IndexError, TypeError, ValueError):
            message = f"the reference {reference} refers to nothing"
            hint = "References are written #/definitions/name, from the top of the file."
            return self._nothing(keys, keys, message, hint)
        self.open.append(reference)
        found = self.of(target, place, line)
        self.open.pop()
        return found

    def _nothing(self, what: object, keys: _Keys, message: str, hint: str) -> Unknown:
        return self.unknown.setdefault(what, Unknown(*line_of(self.whole, keys), message, hint))


def _at(node: Any, path: str) -> tuple[Any, _Keys]:
    keys: _Keys = ()
    while path:
        if isinstance(node, Mapped) and path in node:
            return node[path], (*keys, path)
        head, _, path = path.partition("/")
        key = int(head) if isinstance(node, Listed) else head
        keys, node = (*keys, key), node[key]
    return node, keys


def unknown_in(node: Any) -> Iterator[Unknown]:
    """The references that lead nowhere, within a value."""
    if isinstance(node, Unknown):
        yield node
    elif isinstance(node, dict):
        if isinstance(node, Mapped) and node.incomplete is not None:
            yield node.incomplete
        for value in node.values():
            yield from unknown_in(value)
    elif isinstance(node, list):
        for value in node:
            yield from unknown_in(value)


def is_unknown(node: Any) -> bool:
    """Whether a value, or a part of it that it may need, stands where a reference leads nowhere."""
    return isinstance(node, Unknown) or (isinstance(node, Mapped) and node.incomplete is not None)


def line_of(node: Any, path: Iterable[str | int]) -> tuple[int | None, str]:
    """Where a value stands that is reached by keys and numbers, and its path as people write it.

    Parts of the path that are not there (what tells kinds apart, a key that is missing) are passed
    over.
    """
    line: int | None = None
    spelled = ""
    for part in path:
        if isinstance(part, int) and isinstance(node, list) and part < len(node):
            line = node.lines[part] if isinstance(node, Listed) else line
            spelled += f"[{part}]"
            node = node[part]
        elif isinstance(node, dict) and part in node:
            line = node.lines.get(str(part), line) if isinstance(node, Mapped) else line
            spelled += f".{part}"
            node = node[part]
        elif re.fullmatch(r"[a-z_$]+", str(part)):
            spelled += f".{part}"
    return line, spelled.lstrip(".")


def value_of(node: Any, path: Iterable[str | int]) -> Any:
    """The value that is reached by keys and numbers; parts that are not there are passed over."""
    for part in path:
        is_item = isinstance(node, list) and isinstance(part, int) and part < len(node)
        if is_item or (isinstance(node, dict) and part in node):
            node = node[part]
    return node


PARAMETERS: Final = "$parameters"

#: What a component is that stands at a place and does not say so.
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
#: The same for components that name a Python class.
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


def inherited(
    component: Mapped,
    place: str = "",
    given: dict[str, Any] | None = None,
    *,
    is_outer_first: bool = False,
) -> Mapped:
    """A copy of a component and all in it, with kinds and parameters in their places.

    Args:
        component: with its references resolved.
        place: its parent's kind and the key that it stands under, as `SimpleRetriever.paginator`.
        given: the parameters of all around it.
        is_outer_first: the parameters of all around a component go over its own.
    """
    found = Mapped(component.items(), dict(component.lines), component.incomplete)
    if "type" not in found:
        kinds = _CUSTOM_KINDS if "class_name" in found else KINDS
        if place in kinds:
            found["type"] = kinds[place]
    around, own = given or {}, _own(found)
    parameters = {**own, **around} if is_outer_first else {**around, **own}
    kind = found.get("type")
    if kind == "object" or isinstance(kind, list | dict):
        # A JSON schema has types of its own.
        return found
    if kind is None:
        for name, value in found.items():
            if isinstance(value, Mapped) and value.get("type"):
                found[name] = inherited(value, place, parameters, is_outer_first=is_outer_first)
        return found
    for name, value in parameters.items():
        found[name] = found.get(name) or value
    for name, value in found.items():
        # A parameter is not handed to what it stands for itself.
        handed = {key: parameter for key, parameter in parameters.items() if key != name}
        found[name] = _within(value, f"{kind}.{name}", handed, is_outer_first=is_outer_first)
    if parameters and PARAMETERS not in found:
        found[PARAMETERS] = parameters
    return found


def _own(component: Mapped) -> dict[str, Any]:
    """The parameters of a component, taken out of it; what are none stay, to be told."""
    reported = component.get(PARAMETERS) or {}
    if not isinstance(reported, dict):
        return {}
    component.pop(PARAMETERS, None)
    return reported


def _within(value: Any, place: str, given: dict[str, Any], *, is_outer_first: bool) -> Any:
    """The same of what stands at a place: a component, several of them, or a plain value."""
    if isinstance(value, Mapped):
        return inherited(value, place, given, is_outer_first=is_outer_first)
    if not isinstance(value, Listed):
        return value
    items = (
        inherited(one, place, given, is_outer_first=is_outer_first)
        if isinstance(one, Mapped)
        else one
        for one in value
    )
    return Listed(items, value.lines)
