"""Loader of configurations: the file, the environment and the flags, in rising precedence.

A project is a chronolake.yml with its lake and pipelines; it is reloaded when the file changes.
"""

from __future__ import annotations

import difflib
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError, model_validator

from chronolake.config.pipelines import PipelineConfig, PostgresMethod, PostgresSource
from chronolake.config.section import Section, known_keys
from chronolake.config.sections import (
    CatalogConfig,
    EngineConfig,
    LakeConfig,
    LakeSection,
    SparkConfig,
    UpConfig,
)
from chronolake.config.storage import scheme_of_file_io
from chronolake.config.targets import TargetConfig  # noqa: TC001 - pydantic reads it
from chronolake.env import KNOWN, PREFIX
from chronolake.errors import ChronolakeError, ConfigurationError
from chronolake.location import project_file, scheme_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence


class ProjectLake(LakeSection):
    """The key `lake` of a project's file."""

    path: str = Field(
        default="lake",
        min_length=1,
        description="The lake's folder. A relative path is resolved against the folder of "
        "chronolake.yml. `--lake` overrides it.",
    )


class FileConfig(Section):
    """The content of a chronolake.yml."""

    lake: ProjectLake = Field(
        default=ProjectLake(), description="The lake in which tables are stored."
    )
    spark: SparkConfig | None = Field(
        default=None, description="The Spark session of the lake; the same as `lake.spark`."
    )
    engine: EngineConfig = Field(
        default=EngineConfig(), description="The process that keeps Spark running between commands."
    )
    up: UpConfig = Field(
        default=UpConfig(), description="What `chronolake up` runs beside the pipelines."
    )
    pipelines: dict[str, PipelineConfig] = Field(
        default_factory=dict,
        description="The pipelines that replicate data into the lake, keyed by name.",
    )
    targets: dict[str, TargetConfig] = Field(
        default_factory=dict,
        description="The databases that get copies of the lake's tables, keyed by name.",
    )

    @model_validator(mode="after")
    def _check_spark(self) -> Self:
        """Raise if Spark's settings are written twice, because one of them would be ignored."""
        if self.spark is not None and "spark" in self.lake.model_fields_set:
            raise ValueError("spark: the settings are also in lake.spark; write them once")
        return self

    @model_validator(mode="after")
    def _check_slots(self) -> Self:
        """Raise if two pipelines read one slot, because each would miss the other's changes."""
        readers: dict[tuple[str, tuple[str, str]], str] = {}
        for name, pipeline in self.pipelines.items():
            source = pipeline.source
            if not isinstance(source, PostgresSource):
                continue
            if source.method is not PostgresMethod.LOGICAL_REPLICATION:
                continue
            slot = source.slot_for(name)
            other = readers.setdefault((slot, source.server), name)
            if other != name:
                raise ValueError(
                    f"pipelines.{name}.source.slot: the pipelines {other} and {name} use the same "
                    f"replication slot, {slot}; set another `slot:` for one of them"
                )
        return self


@dataclass(frozen=True)
class Project:
    """A folder with a chronolake.yml.

    Attributes:
        file: the chronolake.yml.
        lake: the lake that its pipelines write.
        pipelines: the pipelines by name.
        up: what `chronolake up` runs beside them.
        targets: the databases that get copies of tables, by name.
    """

    file: Path
    lake: LakeConfig
    pipelines: dict[str, PipelineConfig]
    up: UpConfig = field(default_factory=UpConfig)
    targets: dict[str, TargetConfig] = field(default_factory=dict)


_Watched = TypeVar("_Watched")


class WatchedFile(Generic[_Watched]):
    """The content of a configuration file, which is read again when the file has changed.

    While the file is invalid, the last valid content is used.

    Args:
        file: the file, which need not exist.
        content: its current content.
        read: reads it again.
        report_error: called with the error of an invalid file, once for each change of the file.
    """

    def __init__(
        self,
        file: Path,
        content: _Watched,
        read: Callable[[], _Watched],
        report_error: Callable[[ChronolakeError], None] = lambda _: None,
    ) -> None:
        self._file = file
        self._content = content
        self._read = read
        self._report_error = report_error
        self._stamp = self._file_stamp()

    def current(self) -> _Watched:
        """Return the current content."""
        stamp = self._file_stamp()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._content = self._read()
            except ChronolakeError as failure:
                self._report_error(failure)
        return self._content

    def _file_stamp(self) -> tuple[int, int, int] | None:
        try:
            found = self._file.stat()
        except OSError:
            return None
        # Editors write a new file and rename it.
        return found.st_ino, found.st_mtime_ns, found.st_size


class WatchedProject(WatchedFile[Project]):
    """A project that is reloaded when its file has changed.

    Args:
        project: the initial project.
        read: loads the project again.
        report_error: as for `WatchedFile`.
    """

    def __init__(
        self,
        project: Project,
        read: Callable[[], Project],
        report_error: Callable[[ChronolakeError], None] = lambda _: None,
    ) -> None:
        super().__init__(project.file, project, read, report_error)


_Model = TypeVar("_Model", bound=BaseModel)

FILE_NAME: Final = "chronolake.yml"
#: Key that determines the model of a section.
_TYPE_KEY: Final = "type"
_REFERENCE: Final = re.compile(r"\$(\$\{|\{([^}]*)\})")
#: Keys with settings of other software, under its own names.
_SETTINGS: Final = ("catalog.properties", "spark.conf")
_YAML_HINT: Final = (
    "Write each key once, indent with spaces instead of tabs, and quote texts that contain "
    "characters such as `:`, `#`, `{` and `@`."
)
#: Variables that Kubernetes and Docker set for a service with the name chronolake.
_LINK: Final = re.compile(
    r".*_SERVICE_(HOST|PORT(_.+)?)|.*_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?"
)
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def load(
    path: Path | str, *, file: Path | None = None, overrides: Mapping[str, Any] | None = None
) -> LakeConfig:
    """Return the configuration of the lake in a folder.

    Args:
        path: the lake's folder; it need not exist.
        file: the chronolake.yml to read; by default the one in the lake's folder or else in the
            working directory, if any.
        overrides: values of flags by dotted key below `lake`, such as `{"spark.master": "local"}`;
            None means that a flag was not given.

    Raises:
        ConfigurationError: the file cannot be read, a key is unknown, a value is invalid, or a
            referenced environment variable is not set.
    """
    folder = Path(path).expanduser().resolve()
    source = _find_file(folder, file)
    settings = _read_yaml(source) if source else {}
    named = set(_referenced_variables(settings))
    # Environment variables that only pipelines need may be missing.
    sources = _source_schemes(settings)
    settings = {
        "lake": _resolve(settings.get("lake"), str(source), "lake"),
        "spark": _resolve(settings.get("spark"), str(source), "spark"),
    } | {
        name: value
        for name, value in settings.items()
        if name not in {"lake", "spark", "pipelines", "targets"}
    }
    _check(FileConfig, settings, str(source) if source else "the configuration")
    return _lake_config(folder, _lake_section(settings), overrides, named, sources)


def find_project(project: Path | None = None) -> Path | None:
    """Return the chronolake.yml of a project.

    Args:
        project: its folder or the file itself; None for the working folder or the nearest folder
            above it that has one.

    Returns:
        None if `project` is None and no folder has the file.

    Raises:
        ConfigurationError: `project` does not have the file.
    """
    if project is None:
        here = Path.cwd()
        places = (folder / FILE_NAME for folder in (here, *here.parents))
        return next((file for file in places if file.is_file()), None)
    file = project if project.is_file() else project / FILE_NAME
    if not file.is_file():
        raise ConfigurationError(
            f"There is no {FILE_NAME} in {project.resolve()}.",
            hint="Set the project's folder with --project, or create a project with "
            "`chronolake init`.",
        )
    return file


def project_at(
    project: Path | None = None,
    *,
    lake: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Project:
    """Return the project of a folder.

    Args:
        project: as for `find_project`.
        lake: as for `load_project`.
        overrides: as for `load`.

    Raises:
        ConfigurationError: chronolake.yml is missing or invalid.
    """
    file = find_project(project)
    if file is None:
        raise ConfigurationError(
            f"There is no {FILE_NAME} in {Path.cwd()} or a folder above it.",
            hint="Create a project with `chronolake init`, or set its folder with --project.",
        )
    return load_project(file, lake=lake, overrides=overrides)


def load_project(
    file: Path, *, lake: Path | None = None, overrides: Mapping[str, Any] | None = None
) -> Project:
    """Load a chronolake.yml with its pipelines.

    Args:
        lake: the lake's folder; None for the one in the file.
        overrides: as for `load`.

    Raises:
        ConfigurationError: as for `load`.
    """
    return _project_of(_read_yaml(file), file, os.environ, lake=lake, overrides=overrides)


def project_of_text(text: str, file: Path, *, variables: Mapping[str, str]) -> Project:
    """Return the project of a chronolake.yml that is not written yet.

    Args:
        text: the file's content.
        file: where the file will be.
        variables: values of the environment variables that the text references.

    Raises:
        ConfigurationError: as for `load`.
    """
    return _project_of(_parse_yaml(text, file), file, variables)


def _project_of(
    written: dict[str, Any],
    file: Path,
    variables: Mapping[str, str],
    *,
    lake: Path | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Project:
    settings = _resolve(written, str(file), variables=variables)
    checked = _check(FileConfig, settings, str(file))
    folder = lake or file.parent / Path(checked.lake.path).expanduser()
    return Project(
        project_file(file),
        _lake_config(
            folder.expanduser().resolve(),
            _lake_section(settings),
            overrides,
            set(_referenced_variables(written)),
            _source_schemes(written),
        ),
        checked.pipelines,
        checked.up,
        checked.targets,
    )


def lake_of_project(file: Path, *, overrides: Mapping[str, Any] | None = None) -> LakeConfig:
    """Load the lake of a chronolake.yml without its pipelines, for commands that only read.

    Environment variables that only pipelines need may be missing.

    Args:
        overrides: as for `load`.

    Raises:
        ConfigurationError: as for `load`.
    """
    written = _read_yaml(file)
    settings = {
        name: part for name, part in written.items() if name not in {"pipelines", "targets"}
    }
    settings = _resolve(settings, str(file))
    checked = _check(FileConfig, settings, str(file))
    folder = (file.parent / Path(checked.lake.path).expanduser()).resolve()
    return _lake_config(
        folder,
        _lake_section(settings),
        overrides,
        set(_referenced_variables(written)),
        _source_schemes(written),
    )


def engine_of_project(file: Path) -> EngineConfig:
    """Load the key `engine` of a chronolake.yml; the other keys may be invalid.

    Raises:
        ConfigurationError: the file cannot be read, or the key is invalid.
    """
    settings = {"engine": _resolve(_read_yaml(file).get("engine"), str(file), "engine")}
    return _check(FileConfig, settings, str(file)).engine


def sources_of_project(file: Path) -> dict[str, str]:
    """Return the pipelines of a chronolake.yml with the types of their sources.

    The pipelines' settings may be invalid, and environment variables that they need may be missing.

    Raises:
        ConfigurationError: the file cannot be read, or is not valid YAML.
    """
    pipelines = _read_yaml(file).get("pipelines")
    found: dict[str, str] = {}
    for name, pipeline in (pipelines if isinstance(pipelines, dict) else {}).items():
        source = pipeline.get("source") if isinstance(pipeline, dict) else None
        kind = source.get("type") if isinstance(source, dict) else None
        found[str(name)] = str(kind or "")
    return found


def has_targets(file: Path) -> bool:
    """Return whether a chronolake.yml has targets; its other keys may be invalid.

    Raises:
        ConfigurationError: the file cannot be read, or is not valid YAML.
    """
    return bool(_read_yaml(file).get("targets"))


def _lake_section(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the key `lake` of a valid file, with the settings of Spark from either place."""
    lake = dict(settings.get("lake") or {})
    if settings.get("spark"):
        lake["spark"] = settings["spark"]
    return lake


def _source_schemes(settings: Mapping[str, Any]) -> frozenset[str]:
    """Return the schemes of object stores that the pipelines of a file, valid or not, read."""
    pipelines = settings.get("pipelines")
    found = set()
    for pipeline in pipelines.values() if isinstance(pipelines, dict) else ():
        source = pipeline.get("source") if isinstance(pipeline, dict) else None
        tables = source.get("tables") if isinstance(source, dict) else None
        sections = [source, *(tables.values() if isinstance(tables, dict) else ())]
        for section in sections:
            path = section.get("path") if isinstance(section, dict) else None
            found.add(scheme_of(path) if isinstance(path, str) else None)
            found.add(_scheme_of_catalog(section))
    return frozenset(scheme for scheme in found if scheme is not None)


def _scheme_of_catalog(section: object) -> str | None:
    """Return the scheme of the object store that the catalog of a source, valid or not, names."""
    catalog = section.get("catalog") if isinstance(section, dict) else None
    properties = catalog.get("properties") if isinstance(catalog, dict) else None
    name = properties.get("io-impl") if isinstance(properties, dict) else None
    return scheme_of_file_io(name) if isinstance(name, str) else None


def _lake_config(
    folder: Path,
    section: Mapping[str, Any],
    overrides: Mapping[str, Any] | None,
    named: Collection[str],
    sources: frozenset[str] = frozenset(),
) -> LakeConfig:
    """Return a lake's configuration from the file's section, the environment, and the flags.

    Args:
        folder: the lake's folder.
        section: the key `lake` of the file.
        overrides: values of flags.
        named: the environment variables that the file references.
        sources: the schemes of the object stores that pipelines read.
    """
    lake = {name: value for name, value in section.items() if name != "path"}
    if isinstance(lake.get("catalog"), str):
        # The environment or a flag may set one of the section's other keys.
        lake["catalog"] = CatalogConfig.section_of(lake["catalog"])
    for key, value in _from_environment(named):
        _put(lake, key, value)
        _check(LakeSection, lake, f"the environment variable {variable_of(key)}")
    for key, value in (overrides or {}).items():
        if value is not None:
            # In the file, the key is below `lake`; both spellings are accepted.
            _put(lake, key.removeprefix("lake."), value)
            _check(LakeSection, lake, f"the setting {key}")
    return LakeConfig(path=folder, source_schemes=sources, **lake)


def variable_of(key: str) -> str:
    """Return the environment variable of a dotted key below `lake`."""
    return PREFIX + key.replace(".", "_").upper()


def keys(model: type[BaseModel] = LakeSection, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys below `lake` that have a value, in the order of the file."""
    for name in model.model_fields:
        if section := _section_of(model, name):
            yield from keys(section, f"{prefix}{name}.")
        else:
            yield prefix + name


def _section_of(model: type[BaseModel], name: str) -> type[BaseModel] | None:
    """Return the model of a key that is a section; None for a value."""
    kind = model.model_fields[name].annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _find_file(folder: Path, file: Path | None) -> Path | None:
    if file is not None:
        return file
    return next(
        (place for place in (folder / FILE_NAME, Path(FILE_NAME).resolve()) if place.is_file()),
        None,
    )


def _read_yaml(source: Path) -> dict[str, Any]:
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        reason = getattr(failure, "strerror", None)
        raise ConfigurationError(
            f"{source} cannot be read: {reason or 'it is not UTF-8 text'}.",
            hint="Check the file's path and permissions; `chronolake init` creates one."
            if reason
            else "Save it as UTF-8.",
        ) from failure
    return _parse_yaml(text, source)


def _parse_yaml(text: str, source: Path) -> dict[str, Any]:
    import yaml  # noqa: PLC0415 - most lakes have no file, and start faster without a parser

    class UniqueKeys(yaml.SafeLoader):
        """YAML loader that rejects duplicate keys instead of using the last one."""

    def construct_mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
        names = [loader.construct_object(key, deep=True) for key, _ in node.value]
        for place, name in enumerate(names):
            if name in names[:place]:
                raise yaml.MarkedYAMLError(
                    problem=f"duplicate key {name!r}",
                    problem_mark=node.value[place][0].start_mark,
                )
        return loader.construct_mapping(node, deep=True)

    UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, construct_mapping)
    try:
        # S506 is about unsafe loaders; this one is a SafeLoader.
        content = yaml.load(text, Loader=UniqueKeys)  # noqa: S506
    except yaml.MarkedYAMLError as failure:
        mark = failure.problem_mark
        line = f", line {mark.line + 1}" if mark else ""
        # Not chained: the parser's message quotes the line, which may contain a password.
        raise ConfigurationError(
            f"{source}{line} is not valid YAML: {failure.problem}.", hint=_YAML_HINT
        ) from None
    except yaml.YAMLError:
        raise ConfigurationError(f"{source} is not valid YAML.", hint=_YAML_HINT) from None
    except ValueError as failure:
        raise ConfigurationError(
            f"{source} contains a value that YAML reads as another type: {failure}.",
            hint="Quote texts that look like dates or numbers.",
        ) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigurationError(
            f"{source} must contain keys and values.", hint="Its first line is usually `lake:`."
        )
    return content


def _resolve(
    value: Any, source: str, key: str = "", variables: Mapping[str, str] = os.environ
) -> Any:
    """Return the value with every `${NAME}` replaced from the environment."""
    if isinstance(value, dict):
        return {
            name: _resolve(item, source, f"{key}.{name}" if key else str(name), variables)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_resolve(item, source, key, variables) for item in value]
    if not isinstance(value, str):
        return value

    def replace_reference(match: re.Match[str]) -> str:
        if match[1] == "${":
            return "${"
        name = match[2]
        if not _VARIABLE.fullmatch(name):
            raise ConfigurationError(
                f"{source}, {key}: `${{…}}` does not contain a valid variable name.",
                hint="Write ${NAME}, or $${ for a literal ${.",
            )
        if name not in variables:
            raise ConfigurationError(
                f"{source}, {key}: the environment variable {name} is not set.",
                hint=f"Set {name}, or write $${{ for a literal ${{.",
            )
        return variables[name]

    return _REFERENCE.sub(replace_reference, value)


def _referenced_variables(value: Any) -> Iterator[str]:
    """Yield the environment variables that a value references as `${NAME}`."""
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _referenced_variables(item)
    elif isinstance(value, str):
        yield from (found[2] for found in _REFERENCE.finditer(value) if found[2])


def _from_environment(named: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield dotted keys and values from the environment.

    Raises:
        ConfigurationError: a variable has Chronolake's prefix but an unknown name.
    """
    by_variable = {variable_of(key): key for key in keys() if key not in _SETTINGS}
    for name in sorted(os.environ):
        if name in by_variable:
            yield by_variable[name], os.environ[name]
        elif name.startswith(PREFIX) and not (name in KNOWN or name in named or _is_link(name)):
            known = (*by_variable, *sorted(KNOWN))
            variables = {variable.removeprefix(PREFIX): variable for variable in known}
            nearest = difflib.get_close_matches(name.removeprefix(PREFIX), variables, n=1)
            raise ConfigurationError(
                f"The environment variable {name} is not a known setting.",
                hint=f"Did you mean {variables[nearest[0]]}?"
                if nearest
                else f"The prefix {PREFIX} is reserved for Chronolake. Unset the variable, or "
                "rename it.",
            )


def _is_link(name: str) -> bool:
    """Return whether platforms set a variable for a service with the name chronolake."""
    is_address = name.endswith("_PORT") and "://" in os.environ[name]
    return is_address or _LINK.fullmatch(name) is not None


def _put(tree: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key in nested mappings, which are copied."""
    for settings in _SETTINGS:
        if key.startswith(f"{settings}."):
            # The rest is one name that contains dots: spark.conf.spark.driver.memory.
            path = [*settings.split("."), key.removeprefix(f"{settings}.")]
            break
    else:
        path = key.split(".")
    for section in path[:-1]:
        tree[section] = dict(tree.get(section) or {})
        tree = tree[section]
    tree[path[-1]] = value


def _check(model: type[_Model], values: dict[str, Any], where: str) -> _Model:
    try:
        return model.model_validate(values)
    except ValidationError as failure:
        # Not chained: pydantic's error contains the rejected values.
        problems = failure.errors(include_url=False, include_input=False, include_context=False)
        # A missing key is often a misspelled one.
        unknown_keys = (item for item in problems if item["type"] == "extra_forbidden")
        problem = next(unknown_keys, problems[0])
        place, section = _locate(model, problem["loc"])
        if problem["type"] == "extra_forbidden":
            raise ConfigurationError(
                f"{where}: unknown key {'.'.join(place)!r}.",
                hint=_hint_for_unknown_key(place, section),
            ) from None
        reason = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "union_tag_not_found":
            reason = f"`{_TYPE_KEY}` is missing"
        raise ConfigurationError(
            f"{where}: {'.'.join(place)}: {reason}.",
            hint="`chronolake schema` prints the allowed values of every key.",
        ) from None


def _locate(model: type[BaseModel], location: Sequence[int | str]) -> tuple[list[str], Any]:
    """Return the path of a problem for users, and the annotation of its section.

    Pydantic's path also contains the types of sections, which are removed.
    """
    section: Any = None
    level: Any = model
    place = []
    for part in map(str, location):
        if get_origin(level) in {Union, UnionType}:
            given = [kind for kind in get_args(level) if kind is not NoneType]
            if len(given) > 1:
                level = _section_of_type(level, part)
                continue
            # Pydantic's path does not contain that a section may be left out.
            level = given[0]
        place.append(part)
        section, level = level, _annotation_of(level, part)
    return place, section


def _section_of_type(union: Any, kind: str) -> Any:
    """Return the section with a type from a union of sections, or the only one of other unions."""
    sections = [
        part for part in get_args(union) if isinstance(part, type) and issubclass(part, BaseModel)
    ]
    typed = (section for section in sections if _TYPE_KEY in section.model_fields)
    for section in typed:
        if kind in get_args(section.model_fields[_TYPE_KEY].annotation):
            return section
    return next(iter(sections), None)


def _annotation_of(level: Any, name: str) -> Any:
    """Return the annotation of a key's value; of a user-defined name, that of its section."""
    if isinstance(level, type) and issubclass(level, BaseModel):
        fields = {field.alias or key: field for key, field in level.model_fields.items()}
        return fields[name].annotation if name in fields else None
    inside = get_args(level)
    return inside[-1] if inside else None


def _hint_for_unknown_key(place: Sequence[str], section: Any) -> str:
    """Return a hint with the known key that is most similar to an unknown one.

    Args:
        place: path of the unknown key.
        section: the annotation of its section.
    """
    known = known_keys(section)
    if near := difflib.get_close_matches(place[-1], known, n=1):
        return f"Did you mean {'.'.join([*place[:-1], near[0]])!r}?"
    elsewhere = [f"lake.{key}" for key in keys()] + [
        f"lake.{key}" for key in LakeSection.model_fields
    ]
    for key in sorted(elsewhere, key=lambda key: key.count(".")):
        if key.rpartition(".")[2] == place[-1]:
            return f"Did you mean {key!r}?"
    return f"Known keys are: {', '.join(known)}."
