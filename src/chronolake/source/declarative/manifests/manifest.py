"""A manifest with its streams, and validation of all its parts.

A problem in one stream does not keep the others from being read.
"""

from __future__ import annotations

import importlib.metadata
import re
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from chronolake.errors import ConfigurationError
from chronolake.formatting import did_you_mean
from chronolake.source.declarative.manifests.problems import (
    Problem,
    Spot,
    convert_errors,
    problems_of_code,
)
from chronolake.source.declarative.manifests.reference_validation import (
    Names,
    known_settings,
    problems_of_lookups,
)
from chronolake.source.declarative.manifests.text_validation import problems_of_texts
from chronolake.source.declarative.manifests.yaml_source import (
    UnresolvedReference,
    YamlList,
    YamlMapping,
    apply_inheritance,
    find_unresolved,
    is_unresolved,
    read,
    resolve,
)
from chronolake.source.declarative.models.base import Origin
from chronolake.source.declarative.models.requests import HTTPAPIBudget
from chronolake.source.declarative.models.spec import (
    Check,
    CheckDynamicStream,
    CheckStream,
    ConfigNormalizationRules,
)
from chronolake.source.declarative.models.streams import (
    AnyStream,
    ConditionalStreams,
    DynamicDeclarativeStream,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping


STREAM: Final[TypeAdapter[AnyStream]] = TypeAdapter(AnyStream)


class StreamCollector:
    """A collector of a manifest's streams and of their problems.

    Attributes:
        file: the path of the manifest.
        allow_components: whether the connector's own Python classes may run.
        settings: the names that a configuration can have, or None if they are unknown.
        streams: the valid streams, by name.
        unread: the streams that cannot be read because of an unresolved reference, by reference.
    """

    def __init__(
        self, file: Path, *, allow_components: bool, settings: Names | None = None
    ) -> None:
        self.file = file
        self.settings = settings
        self.allow_components = allow_components
        self.streams: dict[str, AnyStream] = {}
        self.problems: list[Problem] = []
        self.unread: dict[UnresolvedReference, list[str]] = {}

    def new_empty(self) -> StreamCollector:
        """Return an empty collector for the same manifest."""
        return StreamCollector(
            self.file, allow_components=self.allow_components, settings=self.settings
        )

    def note_unresolved_references(self, component: Any, name: str) -> bool:
        """Return whether all references in a stream are resolved; if not, record it in `unread`."""
        unknown = set(find_unresolved(component))
        for reference in unknown:
            self.unread.setdefault(reference, []).append(name)
        return not unknown

    def reference_problems(self, unknown: list[UnresolvedReference]) -> list[Problem]:
        """Return a problem for each unresolved reference, with the streams that cannot be read."""
        problems = []
        for reference in unknown:
            names = tuple(self.unread.get(reference, ()))
            if len(names) == 1:
                problems.append(
                    Problem(
                        reference.line, reference.path, reference.message, names[0], reference.hint
                    )
                )
                continue
            reported = (
                f"; therefore, these streams cannot be read: {', '.join(names)}" if names else ""
            )
            message = f"{reference.message}{reported}"
            problems.append(
                Problem(reference.line, reference.path, message, None, reference.hint, names)
            )
        return problems

    def may_run(self, component: Any, spot: Spot, name: str) -> bool:
        """Return whether a stream's Python code may run; if not, record a problem."""
        refused = [] if self.allow_components else problems_of_code(component, spot, name)
        self.problems += refused
        return not refused

    def add(self, component: Any, spot: Spot) -> None:
        """Add a stream, which has its inherited values filled in, or its problems."""
        if not isinstance(component, YamlMapping):
            if not is_unresolved(component):
                self.problems.append(spot.problem("a stream must be a mapping"))
            return
        name = name_of(component, spot)
        is_known = self.note_unresolved_references(component, name)
        self.problems += problems_of_texts(component, spot, name)
        if is_known:
            self.problems += problems_of_lookups(component, spot, name, self.settings)
        may_run = self.may_run(component, spot, name)
        try:
            stream = STREAM.validate_python(component, context=Origin(self.file, name))
        except ValidationError as failure:
            self.problems += convert_errors(failure, component, spot, name)
            return
        if not (may_run and is_known):
            return
        if not stream.name:
            self.problems.append(spot.problem("the stream has no name", hint="Give it a `name`."))
        elif stream.name in self.streams:
            message = f"there are two streams named {stream.name}"
            self.problems.append(spot.problem(message, hint="Give one of them another `name`."))
        else:
            self.streams[stream.name] = stream


def name_of(component: YamlMapping, spot: Spot) -> str:
    """Return a stream's name, or its path if it has no name, for use in problems."""
    name = component.get("name")
    return spot.path if not name or is_unresolved(name) else str(name)


_KEY: Final = "check"
_CONFIGS: Final = "dynamic_streams_check_configs"
_CHECK: Final[TypeAdapter[CheckStream | CheckDynamicStream]] = TypeAdapter(Check)


def parse_check(
    content: YamlMapping, templates: Collection[str]
) -> tuple[CheckStream | CheckDynamicStream | None, list[Problem]]:
    """Return the manifest's connection check, or None, and its problems.

    `templates` are the names of the manifest's dynamic streams.
    """
    described = content.get(_KEY)
    if not described:
        return None, []
    try:
        found = _CHECK.validate_python(described)
    except ValidationError as failure:
        return None, convert_errors(failure, described, Spot.of(content, (_KEY,)))
    if isinstance(found, CheckDynamicStream):
        return found, []
    return found, [
        Spot.of(content, (_KEY, _CONFIGS, number, "dynamic_stream_name")).problem(
            f"there is no dynamic stream {config.dynamic_stream_name}",
            hint=did_you_mean(
                config.dynamic_stream_name,
                templates,
                f"Dynamic streams of the manifest: {', '.join(templates) or 'none'}.",
            ),
        )
        for number, config in enumerate(found.dynamic_streams_check_configs)
        if config.dynamic_stream_name not in templates
    ]


def checked_streams(manifest: Manifest, stream_names: Collection[str] | None) -> tuple[str, ...]:
    """Return the names of the streams that are read to test a connection.

    Args:
        manifest: the manifest, including generated and conditional streams.
        stream_names: the streams of the pipeline, or None for all. Of generated streams, only these
            are checked.

    Returns:
        Distinct names. Names that the manifest does not define are included; streams with problems
        are not, because the manifest's problems are reported separately. The first stream, if the
        list would be empty.
    """
    names = tuple(name for name in manifest.streams if stream_names is None or name in stream_names)
    check = manifest.check
    if isinstance(check, CheckDynamicStream):
        return names[: max(check.stream_count, 0)] if check.use_check_availability else ()
    if check is None:
        return names[:1]
    reported = {problem.stream for problem in manifest.problems}
    found = [
        name
        for name in check.stream_names
        if name in manifest.streams or (name not in reported and manifest.is_whole)
    ]
    for config in check.dynamic_streams_check_configs:
        made = manifest.generated.get(config.dynamic_stream_name, ())
        found += islice((name for name in made if name in names), config.stream_count)
    return tuple(dict.fromkeys(found)) or names[:1]


#: The file name of a manifest in a folder or package.
FILE_NAME: Final = "manifest.yaml"
_PACKAGE: Final = re.compile(r"airbyte-source-[a-z0-9-]+")
_BUDGET: Final = "api_budget"
_DYNAMIC: Final = "dynamic_streams"
_STREAMS: Final = "Define them below `streams` or `dynamic_streams`."
_ALL: Final = "`chronolake check` lists all problems of the manifest."
#: The keys of a manifest that concern only the streams that use them.
_OF_STREAMS: Final = frozenset({"definitions", "streams", _DYNAMIC, "check", "schemas", "metadata"})
_RULES: Final = "config_normalization_rules"


@dataclass(frozen=True)
class Conditional:
    """Streams, with their locations, that exist only if a condition on the configuration holds."""

    condition: str | bool
    streams: tuple[tuple[YamlMapping, Spot], ...]


@dataclass(frozen=True)
class Dynamic:
    """Streams that are generated from a template.

    Attributes:
        name: the name of the group of streams.
        definition: the model, with the resolver.
        template: the template, with line numbers.
        spot: the location of the template.
    """

    name: str
    definition: DynamicDeclarativeStream
    template: YamlMapping
    spot: Spot


@dataclass(frozen=True)
class Manifest:
    """A manifest with its references resolved.

    Attributes:
        file: the path of the file.
        streams: the valid streams by name, in the manifest's order.
        problems: all problems, in the order of the file.
        content: the whole content, for parts that are not streams.
        conditional: streams that depend on the configuration.
        dynamic: streams that depend on the configuration or on the API.
        allow_components: whether the connector's own Python classes may run.
        generated: the names of generated streams, by the name of their group.
        check: the connection check, or None.
    """

    file: Path
    streams: Mapping[str, AnyStream]
    problems: tuple[Problem, ...]
    content: YamlMapping = field(repr=False)
    conditional: tuple[Conditional, ...] = ()
    dynamic: tuple[Dynamic, ...] = ()
    allow_components: bool = False
    generated: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    check: CheckStream | CheckDynamicStream | None = None

    @property
    def is_whole(self) -> bool:
        """Return whether the manifest alone determines its streams (see `create_api`)."""
        return not (self.conditional or self.dynamic)

    def lists(self, stream_names: Collection[str] | None) -> bool:
        """Return whether the manifest lists all wanted streams; None means all streams."""
        return self.is_whole or (
            stream_names is not None and self.streams.keys() >= set(stream_names)
        )

    @property
    def specification(self) -> Mapping[str, Any]:
        """Return the JSON schema of the configuration; empty if the manifest has no valid one."""
        spec = self.content.get("spec")
        found = spec.get("connection_specification") if isinstance(spec, dict) else None
        return found if isinstance(found, dict) and not any(find_unresolved(found)) else {}

    def raise_if_unresolved(self) -> None:
        """Raise ConfigurationError if unresolved references hide secrets or API limits.

        Raises:
            ConfigurationError: a reference outside of the streams cannot be resolved.
        """
        for key, value in self.content.items():
            if key not in _OF_STREAMS and (reference := next(find_unresolved(value), None)):
                line = "" if reference.line is None else f", line {reference.line}"
                raise ConfigurationError(
                    f"{self.file}{line}: {reference.path}: {reference.message}.",
                    hint=reference.hint,
                )

    def stream(self, name: str) -> AnyStream:
        """Return a stream of the manifest.

        Raises:
            ConfigurationError: the manifest has no such stream, or the stream cannot be read.
        """
        if name in self.streams:
            return self.streams[name]
        own = [problem for problem in self.problems if name in {problem.stream, *problem.streams}]
        wrong = (
            own
            or [problem for problem in self.problems if problem.stream is None]
            or [
                # The names of these streams are unknown.
                problem
                for problem in self.problems
                if problem.path.startswith(_DYNAMIC)
            ]
        )
        if wrong:
            first = wrong[0]
            line = "" if first.line is None else f", line {first.line}"
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise ConfigurationError(
                f"{self.file}{line}: {first.path}: {first.message}{more}",
                hint=f"{first.hint or ''} {_ALL}".strip(),
            )
        raise ConfigurationError(
            f"{self.file} has no stream {name!r}.",
            hint=did_you_mean(
                name, self.streams, f"Streams of the manifest: {', '.join(self.streams) or 'none'}."
            ),
        )


def find(given: str, *, beside: Path) -> Path:
    """Return the path of a manifest.

    Args:
        given: a file, a folder that contains `manifest.yaml`, or the name of an installed package
            `airbyte-source-*`.
        beside: the folder that relative paths refer to.

    Raises:
        ConfigurationError: the manifest does not exist.
    """
    path = (beside / Path(given).expanduser()).resolve()
    if path.is_dir():
        path /= FILE_NAME
    if path.is_file():
        return path
    if _PACKAGE.fullmatch(given):
        try:
            files = importlib.metadata.files(given) or []
        except importlib.metadata.PackageNotFoundError:
            raise ConfigurationError(
                f"The package {given} is not installed.", hint=f"pip install {given}"
            ) from None
        for file in files:
            if file.name == FILE_NAME:
                return Path(str(file.locate())).resolve()
    raise ConfigurationError(
        f"There is no manifest {given}.",
        hint="Name a YAML file, a folder with a manifest.yaml, or an installed package "
        "airbyte-source-….",
    )


def load(file: Path, *, allow_components: bool = False) -> Manifest:
    """Read a manifest and collect all its problems.

    `allow_components` allows the connector's own Python classes to run. Loading runs none of them.

    Raises:
        ConfigurationError: the file is not valid YAML, or is too large.
    """
    return parse(read(file), file, allow_components=allow_components)


def parse(content: YamlMapping, file: Path, *, allow_components: bool = False) -> Manifest:
    """Return a manifest from the content of its file; see `load` for the arguments.

    Raises:
        ConfigurationError: the manifest is too large.
    """
    whole, unknown = resolve(content, file=str(file))
    whole.setdefault("type", "DeclarativeSource")
    whole = apply_inheritance(whole)
    found = StreamCollector(file, allow_components=allow_components, settings=known_settings(whole))
    found.problems += (*parse_rules(whole)[1], *_api_problems(whole))
    if not whole.get("streams") and not whole.get(_DYNAMIC):
        found.problems.append(
            Spot.of(whole, ("streams",)).problem("the manifest has no streams", hint=_STREAMS)
        )
    conditional: list[Conditional] = []
    for described, spot in _get_list(whole, "streams"):
        if isinstance(described, YamlMapping) and described.get("type") == "ConditionalStreams":
            conditional += _parse_conditional(described, spot, found)
        else:
            found.add(described, spot)
    dynamic: list[Dynamic] = []
    templates: list[str] = []
    for number, (described, spot) in enumerate(_get_list(whole, _DYNAMIC)):
        templates.append(_group_name(described, number))
        dynamic += _parse_dynamic(described, spot, found, templates[-1])
    check, wrong = parse_check(whole, templates)
    return Manifest(
        file,
        found.streams,
        (*found.reference_problems(unknown), *found.problems, *wrong),
        whole,
        tuple(conditional),
        tuple(dynamic),
        allow_components,
        check=check,
    )


def _api_problems(whole: YamlMapping) -> list[Problem]:
    """Return the problems of the API budget, the concurrency level and the configuration rules."""
    found: list[Problem] = []
    if described := whole.get(_BUDGET):
        try:
            HTTPAPIBudget.model_validate(described)
        except ValidationError as failure:
            found += convert_errors(failure, described, Spot.of(whole, (_BUDGET,)))
    spec = whole.get("spec")
    for keys, described, kind in (
        ((_BUDGET,), whole.get(_BUDGET), "HTTPAPIBudget"),
        (("concurrency_level",), whole.get("concurrency_level"), "ConcurrencyLevel"),
        (("spec", _RULES), spec.get(_RULES) if isinstance(spec, dict) else None, "Rules"),
    ):
        found += problems_of_texts(described, Spot.of(whole, keys), kind=kind)
    return found


def parse_rules(
    content: Mapping[str, Any],
) -> tuple[ConfigNormalizationRules | None, list[Problem]]:
    """Return the rules for the configuration, or None, and their problems."""
    spec = content.get("spec")
    described = spec.get(_RULES) if isinstance(spec, dict) else None
    if not described:
        return None, []
    try:
        return ConfigNormalizationRules.model_validate(described), []
    except ValidationError as failure:
        return None, convert_errors(failure, described, Spot.of(content, ("spec", _RULES)))


def _get_list(whole: YamlMapping, key: str) -> list[tuple[Any, Spot]]:
    listed = whole.get(key)
    return [
        (described, Spot.of(whole, (key, number)))
        for number, described in enumerate(listed if isinstance(listed, list) else [])
    ]


def _parse_conditional(
    component: YamlMapping, spot: Spot, collector: StreamCollector
) -> list[Conditional]:
    """Return conditional streams; their problems are reported even if the condition is false."""
    alone = YamlMapping(
        ((key, component[key]) for key in ("type", "condition") if key in component),
        component.lines,
    )
    collector.problems += problems_of_texts(alone, spot)
    try:
        condition = ConditionalStreams.model_validate(component).condition
    except ValidationError as failure:
        collector.problems += convert_errors(failure, component, spot, spot.path)
        return []
    tried = collector.new_empty()
    streams = [
        (stream, spot.within(component, ("streams", number)))
        for number, stream in enumerate(component["streams"])
    ]
    for stream, place in streams:
        tried.add(stream, place)
    collector.problems += tried.problems
    for unknown, names in tried.unread.items():
        collector.unread.setdefault(unknown, []).extend(names)
    return [Conditional(condition, tuple(streams))]


def _group_name(component: Any, number: int) -> str:
    """Return the name of the group of streams of a template."""
    name = component.get("name") if isinstance(component, YamlMapping) else None
    return f"dynamic_stream_{number}" if name is None or is_unresolved(name) else str(name)


def _parse_dynamic(
    component: Any, spot: Spot, collector: StreamCollector, called: str
) -> list[Dynamic]:
    """Return a dynamic stream unless problems are found before streams are generated from it."""
    if not isinstance(component, YamlMapping):
        if not is_unresolved(component):
            collector.problems.append(spot.problem("a dynamic stream must be a mapping", spot.path))
        return []
    name = name_of(component, spot)
    is_known = collector.note_unresolved_references(component, name)
    if not collector.may_run(component, spot, name):
        return []
    origin = Origin(collector.file, name)
    resolver = spot.within(component, ("components_resolver",))
    collector.problems += problems_of_texts(component.get("components_resolver"), resolver, name)
    try:
        definition = DynamicDeclarativeStream.model_validate(component, context=origin)
    except ValidationError as failure:
        collector.problems += convert_errors(failure, component, spot, name)
        return []
    template: YamlMapping = component["stream_template"]
    place = spot.within(component, ("stream_template",))
    paths = [mapping.field_path for mapping in definition.components_resolver.components_mapping]
    collector.problems += problems_of_texts(template, place, name, open_to=paths)
    try:
        STREAM.validate_python(template, context=origin)
    except ValidationError as failure:
        wrong = convert_errors(failure, template, place, name, open_to=paths)
        if wrong:
            collector.problems += wrong
            return []
    if not is_known:
        return []
    return [Dynamic(called, definition, template, place)]


def to_mapped(value: Any) -> Any:
    """Convert plain dictionaries and lists to the types of values that are read from a file."""
    if isinstance(value, dict):
        return YamlMapping(((str(key), to_mapped(item)) for key, item in value.items()))
    if isinstance(value, list):
        return YamlList((to_mapped(item) for item in value), [1] * len(value))
    return value
